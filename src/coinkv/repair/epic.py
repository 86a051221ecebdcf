"""EPIC repair: the head of every moved chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from coinkv.errors import InputError
from coinkv.repair.base import Moved, Repair, Strategy
from coinkv.repair.head import heads


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
        chosen = [part.start + heads(part.chunk_lengths, self.tokens) for part in moved]
        return Repair(torch.cat(chosen))
