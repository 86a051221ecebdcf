"""EPIC repair: the head of every moved chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coinkv.errors import InputError
from coinkv.repair.base import Moved, Repair, Strategy, ranges


@dataclass(frozen=True)
class Epic(Strategy):
    """Recomputes the first tokens of every chunk of every moved part (LegoLink, arXiv 2410.15332).

    The choice is static, so there is no probe.

    Args:
        tokens: how many of each chunk.
    """

    tokens: int = 8

    name = "epic"

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise InputError(f"tokens is {self.tokens}", hint="use 0 or more")

    def repair(self, moved: Sequence[Moved], others: int, context: int) -> Repair:
        """See `Strategy.repair`."""
        spans = []
        for part in moved:
            starts = (part.start, *part.chunks)
            ends = (*part.chunks, part.end)
            spans += [
                (start, min(end, start + self.tokens))
                for start, end in zip(starts, ends, strict=True)
            ]
        return Repair(ranges(spans))
