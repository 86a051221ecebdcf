"""How a method looks in every figure, and where it stands in every table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Dashes = Literal["-", "--", "-.", ":"]


@dataclass(frozen=True)
class Style:
    """A line of a figure: colour, dashes and marker as matplotlib names them."""

    colour: str
    dashes: Dashes
    marker: str


# Okabe and Ito's colours without yellow, which white paper swallows. Methods of one colour are
# told apart by their dashes and markers.
STYLES = {
    "standard_rag": Style("#000000", "-", "o"),
    "text_nuggets": Style("#777777", "--", "s"),
    "standard_cag": Style("#56B4E9", "-", "^"),
    "turborag": Style("#0072B2", "-", "v"),
    "block_attention": Style("#0072B2", "--", "D"),
    "cacheblend": Style("#009E73", "-", "P"),
    "epic": Style("#009E73", "--", "X"),
    "kvlink": Style("#CC79A7", "-", "<"),
    "coinrag": Style("#D55E00", "-", "o"),
    "coinrag_cacheblend": Style("#E69F00", "-", "s"),
    "coinrag_kvlink": Style("#E69F00", "--", ">"),
}
OTHERS = (
    Style("#332288", "-.", "d"),
    Style("#882255", "-.", "p"),
    Style("#999933", "-.", "h"),
    Style("#44AA99", "-.", "*"),
)
"""For names that have no style of their own, in turn."""


def in_order(methods: Iterable[str]) -> list[str]:
    """Methods as tables list them: those with a style first, then the others by name."""
    known = list(STYLES)
    return sorted(set(methods), key=lambda m: (known.index(m) if m in STYLES else len(known), m))


def styles_of(names: Iterable[str]) -> dict[str, Style]:
    """A style for each name, the same in every figure that has the same names."""
    ordered = in_order(names)
    others = [name for name in ordered if name not in STYLES]
    return {name: STYLES.get(name) or OTHERS[others.index(name) % len(OTHERS)] for name in ordered}
