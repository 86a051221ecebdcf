"""The repair strategies by name."""

from __future__ import annotations

from coinkv.errors import InputError
from coinkv.model.backbone import Backbone
from coinkv.model.cost import calibrated
from coinkv.repair.auto import Auto
from coinkv.repair.base import Strategy
from coinkv.repair.cacheblend import CacheBlend
from coinkv.repair.epic import Epic
from coinkv.repair.nothing import Nothing
from coinkv.repair.selective import Selective

STRATEGIES: tuple[str, ...] = ("auto", "selective", "cacheblend", "epic", "none")


def require_strategy(name: str) -> None:
    """Refuse a strategy that does not exist.

    Raises:
        InputError: it is none of `STRATEGIES`.
    """
    if name not in STRATEGIES:
        raise InputError(
            f"no repair is called {name!r}", hint=f"use one of {', '.join(STRATEGIES)}"
        )


def strategy_named(name: str, backbone: Backbone) -> Strategy:
    """A strategy with its defaults.

    Args:
        name: one of `STRATEGIES`.
        backbone: the model; `auto` measures what it costs.

    Raises:
        InputError: there is none of this name.
    """
    require_strategy(name)
    if name == Auto.name:
        return Auto(calibrated(backbone), backbone.shape.layers)
    plain: tuple[Strategy, ...] = (Selective(), CacheBlend(), Epic(), Nothing())
    return next(each for each in plain if each.name == name)
