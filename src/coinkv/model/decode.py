"""Decoding: from the logits behind a filled cache to text, token by token."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from coinkv.errors import InputError
from coinkv.model.backbone import Backbone
from coinkv.model.fill import LiveCache, fill

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen and when an answer ends.

    Args:
        max_tokens: most tokens of an answer; 0 gives none.
        temperature: 0 is greedy; above, logits are divided by it.
        top_p: keep the smallest set of tokens whose probabilities reach this sum, in (0, 1].
        stop: an answer ends before the one of these strings that is complete first.
        seed: makes sampling repeatable; 0 or more, in 64 bits.

    Raises:
        InputError: a value is out of range.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise InputError(f"max_tokens is {self.max_tokens}", hint="use 0 or more")
        if not 0 <= self.temperature < math.inf:
            raise InputError(f"temperature is {self.temperature}", hint="use 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}", hint="use a value above 0 and at most 1")
        if isinstance(self.stop, str):
            raise InputError("stop is one string", hint="give a tuple of strings")
        if "" in self.stop:
            raise InputError("a stop string is empty", hint="leave it out")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise InputError(f"seed is {self.seed}", hint="use 0 or more, below 2**64")


@dataclass(frozen=True)
class Piece:
    """One step of an answer: text that became certain, its token, and why the answer ended."""

    text: str
    token_id: int | None
    finish_reason: FinishReason | None = None


def decode(
    backbone: Backbone, cache: LiveCache, logits: torch.Tensor, sampling: Sampling
) -> Iterator[Piece]:
    """Continue from a filled cache until an end token, a stop string or the token limit.

    Args:
        backbone: the model.
        cache: holds everything before the answer; grows by the answer's tokens.
        logits: `[1, vocabulary]` behind the last cached token.
        sampling: how to choose and when to end.

    Yields:
        pieces whose texts joined are the answer; the last one has a finish reason.
    """
    generator = None
    if sampling.seed is not None:
        generator = torch.Generator().manual_seed(sampling.seed)
    writer = _TextWriter(backbone, sampling.stop)
    position = int(cache.positions.max()) + 1
    room = min(cache.capacity - cache.length, backbone.context_length - position)
    limit = min(sampling.max_tokens, room + 1)  # the last token is chosen, not computed
    for step in range(limit):
        token = _choose(logits[-1], sampling, generator)
        if token in backbone.end_token_ids:
            yield Piece(writer.rest(), None, "stop")
            return
        text = writer.add(token)
        if writer.stopped:
            yield Piece(text, token, "stop")
            return
        if step + 1 == limit:
            yield Piece(text + writer.rest(), token, "length")
            return
        yield Piece(text, token)
        logits_or_none = fill(backbone, cache, [token], torch.tensor([position + step]))
        logits = logits if logits_or_none is None else logits_or_none
    yield Piece("", None, "length")


def _choose(logits: torch.Tensor, sampling: Sampling, generator: torch.Generator | None) -> int:
    if sampling.temperature == 0:
        return int(logits.argmax())
    # float64 and the largest logit at 0: no temperature above 0 overflows
    scaled = (logits - logits.max()).cpu().double() / sampling.temperature
    probabilities = scaled.softmax(-1)
    if sampling.top_p < 1:
        ordered, order = probabilities.sort(descending=True, stable=True)
        beyond = ordered.cumsum(-1) - ordered >= sampling.top_p
        probabilities = probabilities.index_fill(0, order[beyond], 0.0)
    return int(torch.multinomial(probabilities, 1, generator=generator))


class _TextWriter:
    """Turns tokens into certain text: whole characters, no beginning of a stop string."""

    def __init__(self, backbone: Backbone, stop: tuple[str, ...]) -> None:
        self._backbone, self._stop = backbone, stop
        self._token_ids: list[int] = []
        self._text = ""
        self._given = 0
        self.stopped = False

    def add(self, token_id: int) -> str:
        self._token_ids.append(token_id)
        self._text = self._backbone.detokenize(self._token_ids)
        ends = [(at + len(stop), at) for stop in self._stop if (at := self._text.find(stop)) >= 0]
        if ends:  # the first to be complete, however the text came in tokens
            self.stopped = True
            self._text = self._text[: min(ends)[1]]
            return self.rest()
        certain = self._text.rstrip("\ufffd")  # at the end it may be half a character
        return self._give(len(certain) - self._held(certain))

    def rest(self) -> str:
        return self._give(len(self._text))

    def _give(self, end: int) -> str:
        text = self._text[self._given : end]
        self._given = max(self._given, end)
        return text

    def _held(self, text: str) -> int:
        """Length of the text's end that may be the beginning of a stop string."""
        return max(
            (n for stop in self._stop for n in range(1, len(stop)) if text.endswith(stop[:n])),
            default=0,
        )
