"""The answer to a question, with its evidence and where the time to the first token went."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from coinkv.model.decode import FinishReason


@dataclass(frozen=True)
class Evidence:
    """A piece of a document that stood in the context.

    Attributes:
        document: the document's key (its path in the folder, or its name in the JSONL file).
        title: the document's title.
        chunk: number of the chunk in the document, from 0.
        start: first character in the document's text.
        end: one past the last character.
        text: the characters `[start, end)`.
        score: similarity to the question (cosine).
        chunk_start: first character of the chunk it lies in.
        chunk_end: one past the last character of that chunk.
    """

    document: str
    title: str
    chunk: int
    start: int
    end: int
    text: str
    score: float
    chunk_start: int
    chunk_end: int


@dataclass(frozen=True)
class AdapterUsed:
    """The adapter that an answer was given with.

    Attributes:
        name: that it is listed by, else as its card calls it, else its folder's.
        digest: hex digest of its settings and weights.
    """

    name: str
    digest: str


@dataclass(frozen=True)
class Answer:
    """What `CoinRAG.ask` returns.

    Attributes:
        text: the answer.
        method: how the context was made.
        evidence: what stood in the context, best first.
        len_tokens: Len, tokens of the context before the question.
        suffix_tokens: tokens of question and template computed live.
        ttft_seconds: from the question's arrival to the first token's logits, everything included.
        stages_seconds: the same by stage (embed, retrieve, read, compose, prefill); they add up.
        answer_tokens: tokens generated.
        decode_seconds: from the first token's logits to the end of the answer.
        finish_reason: `stop`, or `length` when a limit ended the answer.
        bytes_read: bytes read from the store.
        page_bytes: bytes of the distinct pages that hold the tokens used.
        blocks_missing: blocks that were not in the store and were recomputed.
        blocks_damaged: blocks that failed their checksum and were recomputed.
        layer_tokens: tokens computed up to the first token, summed over the layers.
        flops: floating-point operations of that.
        adapter: the adapter it was given with, if any.
    """

    text: str
    method: str
    evidence: tuple[Evidence, ...]
    len_tokens: int
    suffix_tokens: int
    ttft_seconds: float
    stages_seconds: dict[str, float] = field(hash=False)
    answer_tokens: int
    decode_seconds: float
    finish_reason: FinishReason
    bytes_read: int
    page_bytes: int
    blocks_missing: int
    blocks_damaged: int
    layer_tokens: int
    flops: int
    adapter: AdapterUsed | None = None

    def to_dict(self) -> dict[str, Any]:
        """The answer as JSON-ready facts, times in milliseconds."""
        facts = asdict(self)
        facts["answer"] = facts.pop("text")
        facts["ttft_ms"] = 1000 * facts.pop("ttft_seconds")
        facts["decode_ms"] = 1000 * facts.pop("decode_seconds")
        stages = facts.pop("stages_seconds")
        facts["stages_ms"] = {stage: 1000 * seconds for stage, seconds in stages.items()}
        return facts
