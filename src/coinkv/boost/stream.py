"""The text of an answer as it is decoded."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence

from coinkv.boost.prefill import FirstToken, Prefiller
from coinkv.boost.result import BoostResult
from coinkv.errors import InputError
from coinkv.model.decode import FinishReason, Sampling, decode
from coinkv.model.decode_batch import Decoded, decode_batch
from coinkv.model.work import flops


class BoostStream:
    """Iterate for pieces of text; `.result` holds everything once that has ended.

    The pieces joined are `result.text`. When iteration ends, or `close` ends it, the KV made so far
    is kept.
    """

    def __init__(self, prefiller: Prefiller, first: FirstToken, sampling: Sampling) -> None:
        self._prefiller, self._first, self._sampling = prefiller, first, sampling
        self._result: BoostResult | None = None
        self._begun = False
        self._pieces = self._decoded()

    @property
    def result(self) -> BoostResult:
        """The whole result.

        Raises:
            InputError: the stream was not read to its end.
        """
        if self._result is None:
            raise InputError(
                "the text is not complete", hint="iterate to its end before you close the stream"
            )
        return self._result

    @property
    def ttft_seconds(self) -> float:
        """Time to the first token, known from the start."""
        return self._first.clock.total_seconds

    def close(self) -> None:
        """Give the rest of the text up; the KV made so far is kept."""
        self._pieces.close()
        if not self._begun:
            self._begun = True
            self._prefiller.keep(self._first)

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def _decoded(self) -> Generator[str, None, None]:
        self._begun = True
        first, backbone = self._first, self._prefiller.backbone
        started = time.perf_counter()
        texts: list[str] = []
        token_ids: list[int] = []
        reason: FinishReason = "length"
        try:
            for piece in decode(backbone, first.placed.live, first.placed.logits, self._sampling):
                token_ids += [] if piece.token_id is None else [piece.token_id]
                reason = piece.finish_reason or reason
                texts.append(piece.text)
                if piece.text:
                    yield piece.text
        finally:
            ended = time.perf_counter()
            kept = self._prefiller.keep(first, token_ids)
        self._result = result_of(
            self._prefiller,
            first,
            Decoded("".join(texts), tuple(token_ids), reason),
            decode_seconds=ended - started,
            keep_seconds=time.perf_counter() - ended,
            kept_tokens=kept,
        )


def decoded_together(
    prefiller: Prefiller, firsts: Sequence[FirstToken], kept: Sequence[int], sampling: Sampling
) -> list[BoostResult]:
    """The results of several prompts, decoded in one batch.

    Args:
        prefiller: the engine's.
        firsts: the prompts.
        kept: tokens kept of each.
        sampling: for all.
    """
    started = time.perf_counter()
    live, logits = zip(*((first.placed.live, first.placed.logits) for first in firsts), strict=True)
    decoded = decode_batch(prefiller.backbone, live, logits, sampling)
    seconds = time.perf_counter() - started
    return [
        result_of(
            prefiller,
            first,
            one,
            decode_seconds=seconds,
            keep_seconds=0.0,
            kept_tokens=tokens,
        )
        for first, tokens, one in zip(firsts, kept, decoded, strict=True)
    ]


def result_of(
    prefiller: Prefiller,
    first: FirstToken,
    decoded: Decoded,
    *,
    decode_seconds: float,
    keep_seconds: float,
    kept_tokens: int,
) -> BoostResult:
    """The result of a prompt that was prefilled, decoded and kept."""
    work = first.work
    return BoostResult(
        text=decoded.text,
        token_ids=decoded.token_ids,
        finish_reason=decoded.finish_reason,
        prompt_tokens=len(first.intent.plan.ids),
        reuse=first.placed.split,
        repair=first.intent.strategy,
        ttft_seconds=first.clock.total_seconds,
        stages_seconds=dict(first.clock.stages_seconds),
        decode_seconds=decode_seconds,
        keep_seconds=keep_seconds,
        kept_tokens=kept_tokens,
        layer_tokens=work.layer_tokens,
        flops=flops(prefiller.backbone, work),
    )
