"""One run: a configuration asked a set of questions, its answers scored."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coinkv.errors import InputError
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.dataset import EvalRow
from coinkv.evaluate.metrics import exact_match, token_f1
from coinkv.evaluate.provenance import provenance, spread_ms
from coinkv.evaluate.recall import answer_recall, evidence_recall
from coinkv.methods.base import Workbench
from coinkv.methods.registry import method_named
from coinkv.model.decode import Sampling, decode
from coinkv.model.decode_batch import Decoded, decode_batch
from coinkv.model.work import flops
from coinkv.rag.adapters import AdapterScope, adapted_bench
from coinkv.rag.ask import CoinRAG, FirstToken
from coinkv.rag.evidence import evidence_of, in_context
from coinkv.rag.index import Index

ANSWER_TOKENS = 32
"""LongBench's limit for answers of its multi-document question sets (arXiv 2308.14508)."""
ANSWER_LEAD = "The answer is:"
"""Begins every answer: token F1 counts each word of a sentence around the answer as wrong."""
_DECODED_ALONE = 2
_SCORES = ("f1", "exact_match", "evidence_recall", "answer_recall")
_COSTS = ("len_tokens", "kv_bytes", "layer_tokens", "flops", "bytes_read")


@dataclass(frozen=True)
class Asking:
    """How questions are asked, the same for every configuration.

    Attributes:
        answer_tokens: most tokens of an answer.
        answer_lead: first words of every answer, given to the model and not scored.
        batch: answers decoded together; 1 decodes each alone.
        adapter: folder of a LoRA adapter.
        adapter_scope: what the adapter takes part in, see `coinkv.rag.ask.CoinRAG`.
        seed: of whatever is random; greedy decoding has nothing that is.
    """

    answer_tokens: int = ANSWER_TOKENS
    answer_lead: str = ANSWER_LEAD
    batch: int = 8
    adapter: Path | None = None
    adapter_scope: AdapterScope | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.answer_tokens < 1:
            raise InputError(f"answer_tokens is {self.answer_tokens}", hint="use 1 or more")
        if self.batch < 1:
            raise InputError(f"batch is {self.batch}", hint="use 1 or more")

    @property
    def adapter_name(self) -> str | None:
        """The adapter as configurations name it: by its folder."""
        return None if self.adapter is None else self.adapter.resolve().name

    def bench(self, index: Index) -> Workbench:
        """What answers questions of an index.

        Raises:
            InputError: the adapter is not there or does not fit.
        """
        if self.adapter is None:
            return index.bench
        return adapted_bench(index.bench, self.adapter, self.adapter_scope)

    def asker(self, index: Index, configuration: Configuration) -> CoinRAG:
        """The configuration at work on an index.

        Raises:
            InputError: an unknown method or option, or k above what the index holds.
        """
        return CoinRAG(
            index,
            method=method_named(configuration.method, dict(configuration.options)),
            k_chunks=configuration.k_chunks,
            k_nuggets=configuration.k_nuggets,
            sampling=Sampling(self.answer_tokens, first_line=True),
            answer_lead=self.answer_lead,
            adapter=self.adapter,
            adapter_scope=self.adapter_scope,
        )


def run(
    index: Index,
    rows: Sequence[EvalRow],
    configuration: Configuration,
    asking: Asking | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Ask every question once and score the answers.

    TTFT is taken as in paper arXiv 2608.07458, appendix E: from the question's arrival to the first
    token's logits, after a warm-up, batch 1. Contexts are composed and prefilled one by one; only
    the decoding behind them is batched.

    Args:
        index: what to ask.
        rows: questions with answers.
        configuration: method, options and k.
        asking: how to ask.
        on_progress: told of questions done and of all.

    Returns:
        JSON-ready facts, the `answers` row of a results file but for set and half.

    Raises:
        InputError: no questions, one without answers, or a configuration that cannot be asked:
            what it is made of is unknown or does not fit, or a question's context is too long.
    """
    if not rows:
        raise InputError("there are no questions to ask")
    asking = asking or Asking()
    asker = asking.asker(index, configuration)
    method = asker.method
    made = provenance(asker, asking.seed)
    started = time.perf_counter()
    answered: list[dict[str, Any]] = []
    speeds: list[float] = []
    asker.first_token(rows[0].question, answer_tokens=asking.answer_tokens)  # warms up
    for batch in _batches(rows, asking.batch):
        firsts = [first_token(asker, row.question, asking.answer_tokens) for row in batch]
        decoded = _decoded(asker, firsts, speeds, alone=asking.batch == 1)
        for row, first, answer in zip(batch, firsts, decoded, strict=True):
            answered.append(_scored(asker, row, first, answer))
        if on_progress is not None:
            on_progress(len(answered), len(rows))
    note = method.note
    return {
        "kind": "answers",
        **configuration_facts(configuration),
        **({"note": note} if note else {}),
        "questions": len(rows),
        **{name: _mean(answered, name) for name in _SCORES},
        "ttft_ms": spread_ms([fact["ttft_ms"] / 1000 for fact in answered]),
        **{name: _mean(answered, name) for name in _COSTS},
        "decode_tokens_per_second": statistics.median(speeds) if speeds else None,
        "answer_tokens": asking.answer_tokens,
        "batch": asking.batch,
        "seconds": time.perf_counter() - started,
        **made,
        "per_question": answered,
    }


def configuration_facts(configuration: Configuration) -> dict[str, Any]:
    """A configuration as fields of a row."""
    return {
        "index": configuration.index,
        "method": configuration.method,
        "options": dict(configuration.options),
        "k_chunks": configuration.k_chunks,
        "k_nuggets": configuration.k_nuggets,
        "adapter": configuration.adapter,
    }


def _batches(rows: Sequence[EvalRow], size: int) -> Iterator[Sequence[EvalRow]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def first_token(asker: CoinRAG, question: str, answer_tokens: int) -> FirstToken:
    """A question taken to its first token, on blocks that were there before.

    One that had to make blocks is asked again, so that what is timed is the reuse of blocks and
    not their making.

    Args:
        asker: a configuration at work.
        question: the question.
        answer_tokens: room left for an answer.
    """
    first = asker.first_token(question, answer_tokens=answer_tokens)
    counts = first.context.counts
    if counts.missing or counts.damaged:
        first = asker.first_token(question, answer_tokens=answer_tokens)
    return first


def _decoded(
    asker: CoinRAG, firsts: Sequence[FirstToken], speeds: list[float], *, alone: bool
) -> list[Decoded]:
    """Answers behind the first tokens; the first few of a run are decoded alone, and timed."""
    backbone = asker.bench.backbone
    answers: list[Decoded] = []
    while len(answers) < len(firsts) and (alone or len(speeds) < _DECODED_ALONE):
        first, started = firsts[len(answers)], time.perf_counter()
        pieces = list(decode(backbone, first.context.cache, first.logits, asker.sampling))
        token_ids = tuple(piece.token_id for piece in pieces if piece.token_id is not None)
        speeds.append(len(token_ids) / (time.perf_counter() - started))
        text = "".join(piece.text for piece in pieces)
        answers.append(Decoded(text, token_ids, pieces[-1].finish_reason or "length"))
    rest = firsts[len(answers) :]
    caches, logits = [f.context.cache for f in rest], [f.logits for f in rest]
    return [*answers, *decode_batch(backbone, caches, logits, asker.sampling)]


def _scored(asker: CoinRAG, row: EvalRow, first: FirstToken, answer: Decoded) -> dict[str, Any]:
    unit = asker.method.unit
    found = in_context(first.retrieval, first.context.pieces, unit)
    evidence = evidence_of(asker.index.catalogue, found, unit)
    backbone, length = asker.bench.backbone, first.context_tokens
    text = answer.text.strip()
    return {
        "id": row.id,
        "answer": text,
        "f1": token_f1(text, row.answers),
        "exact_match": exact_match(text, row.answers),
        "evidence_recall": evidence_recall(evidence, row),
        "answer_recall": answer_recall(evidence, row),
        "len_tokens": length,
        "kv_bytes": length * backbone.shape.values_per_token * backbone.dtype.itemsize,
        "layer_tokens": first.work.layer_tokens,
        "flops": flops(backbone, first.work),
        "bytes_read": first.context.counts.bytes_read,
        "ttft_ms": round(1000 * first.clock.total_seconds, 3),
        "answer_tokens": answer.tokens,
        "finish_reason": answer.finish_reason,
    }


def _mean(facts: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [fact[name] for fact in facts if fact[name] is not None]
    return statistics.mean(values) if values else None
