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
        first_line: an answer ends with its first line that is not blank.
        seed: makes sampling repeatable; 0 or more, in 64 bits.
        trimmed: white space around the answer is left out.

    Raises:
        InputError: a value is out of range.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    first_line: bool = False
    trimmed: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.max_tokens, int):
            raise InputError(f"max_tokens is {self.max_tokens!r}", hint="use a whole number")
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
    choice = Choice(backbone, cache, sampling)
    position = int(cache.positions.max()) + 1
    row = logits[-1]
    while choice.take(row):
        yield Piece(choice.added, choice.token)
        computed = fill(backbone, cache, [choice.token], torch.tensor([position]))
        row = row if computed is None else computed[-1]
        position += 1
    yield Piece(choice.added, choice.last_token, choice.finish_reason)


class Choice:
    """One answer in the making: takes row after row of logits until the answer ends.

    Attributes:
        token: the token chosen last, to be computed next.
        last_token: the same, or None where the answer ended without one.
        added: text that became certain with it.
        text: the answer so far.
        token_ids: tokens of the answer so far.
        finish_reason: why it ended, once it has.
    """

    def __init__(self, backbone: Backbone, cache: LiveCache, sampling: Sampling) -> None:
        self._backbone, self._sampling = backbone, sampling
        self._writer = _TextWriter(backbone, sampling)
        self._generator = None
        if sampling.seed is not None:
            self._generator = torch.Generator().manual_seed(sampling.seed)
        position = int(cache.positions.max()) + 1
        room = min(cache.capacity - cache.length, backbone.context_length - position)
        self._limit = min(sampling.max_tokens, room + 1)  # the last is chosen, not computed
        self.token = 0
        self.last_token: int | None = None
        self.added = self.text = ""
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason = "length"

    def take(self, logits: torch.Tensor) -> bool:
        """Choose a token by its logits `[vocabulary]`; whether the answer goes on."""
        self.added, self.last_token = "", None
        if len(self.token_ids) >= self._limit:
            return False
        token = _choose(logits, self._sampling, self._generator)
        if token in self._backbone.end_token_ids:
            return self._end("stop", self._writer.rest())
        self.token = self.last_token = token
        self.token_ids.append(token)
        text = self._writer.add(token)
        if self._writer.stopped:
            return self._end("stop", text)
        if len(self.token_ids) == self._limit:
            return self._end("length", text + self._writer.rest())
        self.added = text
        self.text += text
        return True

    def _end(self, reason: FinishReason, text: str) -> bool:
        self.added, self.finish_reason = text, reason
        self.text += text
        return False


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


def _first_line_end(text: str) -> int | None:
    """Where the first line break behind something visible is."""
    blank = len(text) - len(text.lstrip())
    found = text.find("\n", blank)
    return None if found < 0 else found


class _TextWriter:
    """Turns tokens into certain text: whole characters, no beginning of a stop string."""

    def __init__(self, backbone: Backbone, sampling: Sampling) -> None:
        self._backbone, self._stop = backbone, sampling.stop
        self._first_line, self._trimmed = sampling.first_line, sampling.trimmed
        self._token_ids: list[int] = []
        self._text = ""
        self._given = 0
        self.stopped = False

    def add(self, token_id: int) -> str:
        self._token_ids.append(token_id)
        self._text = self._backbone.detokenize(self._token_ids)
        ends = [(at + len(stop), at) for stop in self._stop if (at := self._text.find(stop)) >= 0]
        if self._first_line and (line_end := _first_line_end(self._text)) is not None:
            ends.append((line_end + 1, line_end))
        if ends:  # the first to be complete, however the text came in tokens
            self.stopped = True
            self._text = self._text[: min(ends)[1]]
            return self.rest()
        certain = self._text.rstrip("\ufffd")  # at the end it may be half a character
        return self._give(len(certain) - self._held(certain))

    def rest(self) -> str:
        return self._give(len(self._text))

    def _give(self, end: int) -> str:
        if self._trimmed:  # white space may be the answer's end
            end = len(self._text[:end].rstrip())
            begin = len(self._text) - len(self._text.lstrip())
            self._given = max(self._given, min(begin, end))
        text = self._text[self._given : end]
        self._given = max(self._given, end)
        return text

    def _held(self, text: str) -> int:
        """Length of the text's end that may be the beginning of a stop string."""
        return max(
            (n for stop in self._stop for n in range(1, len(stop)) if text.endswith(stop[:n])),
            default=0,
        )
