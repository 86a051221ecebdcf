"""Selective repair: a window of tokens behind every seam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coinkv.errors import InputError
from coinkv.repair.base import Moved, Repair, Strategy, ranges


@dataclass(frozen=True)
class Selective(Strategy):
    """Recomputes the first tokens of every moved part (SelectiveRecompute, arXiv 2608.21362).

    The error lies behind a seam, where tokens never saw what now stands before them; what stands
    before a seam is right. Inside a part there is no seam, however many chunks it has.

    Args:
        window: tokens behind each seam.
    """

    window: int = 32

    name = "selective"

    def __post_init__(self) -> None:
        if self.window < 0:
            raise InputError(f"window is {self.window}", hint="use 0 or more")

    def repair(self, moved: Sequence[Moved], others: int, context: int) -> Repair:
        """See `Strategy.repair`."""
        return Repair(ranges([(m.start, min(m.end, m.start + self.window)) for m in moved]))
