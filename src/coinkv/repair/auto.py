"""Auto: the strategy for each prompt, chosen by what it is predicted to cost on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coinkv.errors import InputError
from coinkv.model.cost import CostModel
from coinkv.model.work import Work
from coinkv.repair.base import Moved, Repair, Strategy
from coinkv.repair.cacheblend import CacheBlend
from coinkv.repair.selective import Selective

_KEPT_SAVING = 0.5


@dataclass(frozen=True)
class Auto(Strategy):
    """CacheBlend while its probe is cheap, the window behind seams where it is not.

    A probe's time grows with the moved context, and beyond some length eats what reuse saves (the
    open question of arXiv 2608.21362). So three predictions are compared:

    - where a probe and its picks take as long as computing all moved tokens, these are computed:
      the probe would save nothing;
    - where they take at most `allowance_seconds` more than the window, and leave at least half of
      what reuse saves, CacheBlend is used;
    - else the window.

    Args:
        cost: what passes cost.
        layers: of the model.
        allowance_seconds: how much longer a first token may take for the sake of the probe; a
            person does not notice a tenth of a second.
        window: the strategy without a probe.
        probe: the strategy with one.
    """

    cost: CostModel
    layers: int
    allowance_seconds: float = 0.1
    window: Selective = field(default_factory=Selective)
    probe: CacheBlend = field(default_factory=CacheBlend)

    name = "auto"

    def __post_init__(self) -> None:
        if not self.allowance_seconds >= 0:
            raise InputError(f"allowance_seconds is {self.allowance_seconds}", hint="use 0 or more")

    def choice(self, moved: Sequence[Moved], others: int, context: int) -> Strategy:
        """See `Strategy.choice`."""
        count = sum(map(len, moved))
        nothing = self._seconds(others * self.layers, context)
        everything = self._seconds((others + count) * self.layers, context)
        window = len(self.window.repair(moved, others, context))
        windowed = self._seconds((others + window) * self.layers, context)
        early = min(self.layers, self.probe.check_layer + 1)
        late = (self.layers - early) * self.probe.ratio
        probed = self._seconds(others * self.layers + count * (early + late), context)
        if probed >= everything or window == count:
            return CacheBlend(ratio=1)
        affordable = probed - windowed <= self.allowance_seconds
        worthwhile = probed - nothing <= _KEPT_SAVING * (everything - nothing)
        return self.probe if affordable and worthwhile else self.window

    def repair(self, moved: Sequence[Moved], others: int, context: int) -> Repair:
        """See `Strategy.repair`."""
        return self.choice(moved, others, context).repair(moved, others, context)

    def _seconds(self, layer_tokens: float, context: int) -> float:
        return self.cost.seconds(Work(int(layer_tokens), int(layer_tokens * context)))
