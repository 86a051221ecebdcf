"""What a repair strategy is: the choice of moved tokens that are computed again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import torch

from coinkv.model.narrow import Narrowing


@dataclass(frozen=True)
class Moved:
    """Consecutive tokens of a context whose KV was encoded in one piece, behind other tokens.

    Attributes:
        start: position of the first; there is the seam.
        end: one past the last.
        chunks: positions inside where a chunk begins.
    """

    start: int
    end: int
    chunks: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def chunk_lengths(self) -> tuple[int, ...]:
        """Tokens from one chunk's beginning to the next one's, all of the part."""
        edges = (self.start, *self.chunks, self.end)
        return tuple(end - start for start, end in pairwise(edges))


@dataclass(frozen=True)
class Repair:
    """Tokens to compute again, in one pass with what has to be computed anyway.

    Attributes:
        positions: int64 `[n]`, ascending, distinct.
        narrowing: leaves some of them out of later layers while the pass runs; None computes all
            of them in all layers.
    """

    positions: torch.Tensor = field(default_factory=lambda: torch.arange(0))
    narrowing: Narrowing | None = None

    def __len__(self) -> int:
        return len(self.positions)


class Strategy(ABC):
    """One way to choose; options are dataclass fields, a strategy is one file."""

    name: ClassVar[str]

    def choice(self, moved: Sequence[Moved], others: int, context: int) -> Strategy:
        """The strategy to use here: this one, unless it chooses among others.

        Args:
            moved: what was moved, in order; at least one.
            others: tokens that are computed anyway.
            context: tokens of the whole context.
        """
        return self

    @abstractmethod
    def repair(self, moved: Sequence[Moved], others: int, context: int) -> Repair:
        """Choose tokens.

        Args:
            moved: what was moved, in order; at least one.
            others: tokens that are computed anyway.
            context: tokens of the whole context.
        """


def ranges(spans: Sequence[tuple[int, int]]) -> torch.Tensor:
    """int64 positions of the ranges `[start, end)`, in order."""
    return torch.cat([torch.arange(0), *(torch.arange(start, end) for start, end in spans)])
