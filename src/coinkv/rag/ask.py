"""Ask: from a question to an answer over an index, by any method, with honest timing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from coinkv.config import DEFAULT_K_CHUNKS, DEFAULT_K_NUGGETS
from coinkv.errors import InputError
from coinkv.methods.base import Context, Method
from coinkv.methods.registry import method_named
from coinkv.model.backbone import Backbone
from coinkv.model.clock import StageClock
from coinkv.model.decode import FinishReason, Sampling, decode
from coinkv.model.decode_batch import Decoded
from coinkv.model.fill import fill
from coinkv.model.work import Work, flops
from coinkv.rag.adapters import AdapterScope, LoadedAdapter, adapter_for
from coinkv.rag.answer import Answer, Evidence
from coinkv.rag.evidence import evidence_of, in_context
from coinkv.rag.index import Index
from coinkv.retrieval.two_stage import Retrieval, retrieve, retrieve_nuggets


@dataclass(frozen=True, eq=False)
class FirstToken:
    """A question taken as far as its first token's logits: what TTFT measures.

    Attributes:
        context: the context, whose cache now holds the question too.
        context_tokens: Len.
        suffix_ids: the question's tokens, computed live behind the context.
        logits: `[1, vocabulary]` float32 behind the question.
        retrieval: what was retrieved.
        clock: the stages so far.
        work: what was computed, the question included.
    """

    context: Context
    context_tokens: int
    suffix_ids: tuple[int, ...]
    logits: torch.Tensor
    retrieval: Retrieval
    clock: StageClock
    work: Work


class CoinRAG:
    """Question answering over an index (paper arXiv 2608.07458). Safe to use from many threads.

    Args:
        index: an opened index.
        method: how contexts are made: a name such as `coinrag` or `standard_rag` (see
            `coinkv.methods.registry.method_names`), or a `Method` with options.
        k_chunks: chunks retrieved (`k_c`); None takes 5, or all there are.
        k_nuggets: nuggets retrieved among those chunks (`k`); None takes 10, or all there are.
        sampling: how answers are decoded; by default greedily, up to 64 tokens or the first line.
        answer_lead: first words of every answer, given to the model; `"The answer is:"` has small
            models name the answer instead of writing a sentence about it.
        adapter: LoRA adapter to answer with: a folder (PEFT), a name (see `coinkv.model.shipped`),
            or one that is loaded already. `"default"` is the one that ships for the index's
            backbone, or none where none does.
        adapter_scope: the adapter takes part in what is computed `live` only, so that the index's
            KV stays valid, or in `all`, so that chunks are encoded with it, too, when they are
            first asked for. None: what the adapter's card says, else `live`.

    Attributes:
        adapter: the adapter that answers, if any.

    Raises:
        InputError: the index is empty, k is below 1 or above what it holds, the method is unknown,
            or the adapter does not fit.
    """

    def __init__(
        self,
        index: Index,
        *,
        method: str | Method = "coinrag",
        k_chunks: int | None = None,
        k_nuggets: int | None = None,
        sampling: Sampling | None = None,
        answer_lead: str = "",
        adapter: str | Path | LoadedAdapter | None = None,
        adapter_scope: AdapterScope | None = None,
    ) -> None:
        self.index = index
        self.method = method_named(method) if isinstance(method, str) else method
        self.adapter = adapter_for(index.backbone, adapter, adapter_scope)
        self.bench = index.bench if self.adapter is None else self.adapter.bench(index.bench)
        if not index.vectors.chunks:
            raise InputError("the index is empty", where=index.folder, hint="add documents to it")
        self.k_chunks = _within("k_chunks", k_chunks, DEFAULT_K_CHUNKS, index.vectors.chunks)
        self.k_nuggets = _within("k_nuggets", k_nuggets, DEFAULT_K_NUGGETS, index.vectors.nuggets)
        self.answer_lead = answer_lead
        self.sampling = sampling or Sampling(first_line=True)

    def ask(self, question: str, *, sampling: Sampling | None = None) -> Answer:
        """Answer a question.

        Raises:
            InputError: the question is empty, or does not fit into the context window.
        """
        stream = self.stream(question, sampling=sampling)
        for _ in stream:
            pass
        return stream.answer

    def stream(self, question: str, *, sampling: Sampling | None = None) -> AnswerStream:
        """Answer a question piece by piece: iterate over the text, then read `.answer`.

        The first token is computed when this returns.
        """
        sampling = sampling or self.sampling
        first = self.first_token(question, answer_tokens=sampling.max_tokens)
        return AnswerStream(self, first, sampling)

    def first_token(self, question: str, *, answer_tokens: int) -> FirstToken:
        """Retrieve, compose and prefill: everything up to the first token's logits.

        Args:
            question: the question.
            answer_tokens: room left for an answer.
        """
        index, bench, backbone = self.index, self.bench, self.bench.backbone
        clock = StageClock(backbone.synchronize)
        suffix = bench.prompt.suffix_ids(question, self.answer_lead)
        backbone.require_room(
            len(bench.prompt.prefix_ids) + len(suffix) + answer_tokens,
            "the question with prompt and answer",
        )
        vector = index.embedder.embed([question])[0]
        clock.lap("embed")
        if self.method.one_stage:
            found = retrieve_nuggets(index.vectors, vector, k_nuggets=self.k_nuggets)
        else:
            found = retrieve(
                index.vectors, vector, k_chunks=self.k_chunks, k_nuggets=self.k_nuggets
            )
        clock.lap("retrieve")
        context = self.method.compose(bench, found, len(suffix) + answer_tokens, clock)
        logits = prefilled(backbone, context, suffix)
        clock.lap("prefill")
        work = context.cache.work
        return FirstToken(context, context.len_tokens, suffix, logits, found, clock, work)

    def evidence(self, first: FirstToken) -> tuple[Evidence, ...]:
        """What stands in the context of a question, best first."""
        unit = self.method.unit
        found = in_context(first.retrieval, first.context.pieces, unit)
        return evidence_of(self.index.catalogue, found, unit)

    def complete(
        self,
        first: FirstToken,
        decoded: Decoded,
        decode_seconds: float,
        evidence: tuple[Evidence, ...] | None = None,
    ) -> Answer:
        """The answer to a question that `first_token` began and somebody decoded.

        Args:
            first: the question.
            decoded: the answer's text and tokens.
            decode_seconds: from the first token's logits to the end.
            evidence: what `evidence` gave, where it was asked before.
        """
        counts = first.context.counts
        return Answer(
            text=decoded.text,
            method=self.method.name,
            evidence=self.evidence(first) if evidence is None else evidence,
            len_tokens=first.context_tokens,
            suffix_tokens=len(first.suffix_ids),
            ttft_seconds=first.clock.total_seconds,
            stages_seconds=dict(first.clock.stages_seconds),
            answer_tokens=decoded.tokens,
            decode_seconds=decode_seconds,
            finish_reason=decoded.finish_reason,
            bytes_read=counts.bytes_read,
            page_bytes=counts.page_bytes,
            blocks_missing=counts.missing,
            blocks_damaged=counts.damaged,
            layer_tokens=first.work.layer_tokens,
            flops=flops(self.bench.backbone, first.work),
            adapter=None if self.adapter is None else self.adapter.used,
        )


def prefilled(backbone: Backbone, context: Context, suffix: tuple[int, ...]) -> torch.Tensor:
    """Compute what is live in the context and the question behind it, in one pass.

    Args:
        backbone: the model.
        context: its cache holds the question afterwards.
        suffix: tokens of the question.

    Returns:
        `[1, vocabulary]` float32 logits behind the question.
    """
    live = context.live
    held = context.cache.positions
    start = int(held.max()) + 1 if len(held) else 0
    logits = fill(
        backbone,
        context.cache,
        (*live.token_ids, *suffix),
        torch.cat([live.positions, torch.arange(start, start + len(suffix))]),
        embeddings=live.embeddings,
        narrowing=live.narrowing,
    )
    if logits is None:
        raise TypeError("fill was asked for logits")
    return logits


class AnswerStream:
    """The text of an answer as it is decoded; `.answer` holds all of it once iterated through.

    The pieces joined are `answer.text`: white space around the answer is left out.
    """

    def __init__(self, asker: CoinRAG, first: FirstToken, sampling: Sampling) -> None:
        self._asker, self._first, self._sampling = asker, first, sampling
        self._answer: Answer | None = None
        self._pieces = self._decoded()

    @property
    def answer(self) -> Answer:
        """The whole answer.

        Raises:
            InputError: the stream was not read to its end.
        """
        if self._answer is None:
            raise InputError("the answer is not complete", hint="iterate over the stream first")
        return self._answer

    @property
    def ttft_seconds(self) -> float:
        """Time to the first token, known from the start."""
        return self._first.clock.total_seconds

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def _decoded(self) -> Iterator[str]:
        first, asker = self._first, self._asker
        started = time.perf_counter()
        texts: list[str] = []
        token_ids: list[int] = []
        reason: FinishReason = "length"
        sampling = replace(self._sampling, trimmed=True)
        for piece in decode(asker.bench.backbone, first.context.cache, first.logits, sampling):
            token_ids += [] if piece.token_id is None else [piece.token_id]
            reason = piece.finish_reason or reason
            texts.append(piece.text)
            if piece.text:
                yield piece.text
        seconds = time.perf_counter() - started
        self._answer = asker.complete(
            first, Decoded("".join(texts), tuple(token_ids), reason), seconds
        )


def _within(name: str, given: int | None, default: int, available: int) -> int:
    if given is None:
        return max(1, min(default, available))
    if not 1 <= given <= available:
        raise InputError(
            f"{name} is {given}, the index holds {available}",
            hint=f"use 1 to {available}" if available else "leave it out",
        )
    return given
