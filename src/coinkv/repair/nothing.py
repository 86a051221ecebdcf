"""No repair: moved KV is used as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coinkv.repair.base import Moved, Repair, Strategy


@dataclass(frozen=True)
class Nothing(Strategy):
    """Recomputes nothing: the fastest and the least faithful; never chosen unless asked for."""

    name = "none"

    def repair(self, moved: Sequence[Moved], others: int, context: int) -> Repair:
        """See `Strategy.repair`."""
        return Repair()
