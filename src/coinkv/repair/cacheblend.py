"""CacheBlend repair: a probe in the early layers finds the moved tokens that deviate most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from coinkv.errors import InputError
from coinkv.repair.base import Moved, Repair, Strategy, ranges
from coinkv.repair.deviation import Criterion, DeviationRepair, require_repair


@dataclass(frozen=True)
class CacheBlend(Strategy):
    """Recomputes moved tokens up to a check layer, then the deviating ones only (arXiv 2405.16444).

    Args:
        ratio: share of the moved tokens that is recomputed in all layers, at most.
        threshold: of those, only tokens whose deviation is above this; relative to what was
            computed for `values` and `keys`, a cosine distance for `key_cosine`. None: no limit.
        criterion: what deviation is, see `DeviationRepair`.
        check_layer: the layer whose KV is compared, from 0.
        gradual: filter again in every later layer.
    """

    ratio: float = 0.15
    threshold: float | None = None
    criterion: Criterion = "values"
    check_layer: int = 1
    gradual: bool = False

    name = "cacheblend"

    def __post_init__(self) -> None:
        require_repair(self.ratio, self.criterion, self.check_layer)
        if self.threshold is not None and not self.threshold >= 0:
            raise InputError(f"threshold is {self.threshold}", hint="use 0 or more")

    def repair(self, moved: Sequence[Moved], others: int, context: int) -> Repair:
        """See `Strategy.repair`."""
        if self.ratio == 0:
            return Repair()
        positions = ranges([(part.start, part.end) for part in moved])
        if self.ratio == 1 and self.threshold is None:
            return Repair(positions)
        offsets = torch.cat([torch.arange(len(part)) for part in moved])
        narrowing = DeviationRepair(
            offsets,
            self.ratio,
            self.criterion,
            self.check_layer,
            self.gradual,
            threshold=self.threshold,
        )
        return Repair(positions, narrowing)
