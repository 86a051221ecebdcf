"""Pareto frontiers: the best F1 that can be had for at most so much (paper's figures 2 and 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from coinkv.evaluate.results import Result


@dataclass(frozen=True)
class Point:
    """A point of a figure.

    Attributes:
        x: the cost.
        y: what it buys.
        label: the configuration measured there.
    """

    x: float
    y: float
    label: str


def frontier(results: Iterable[Result], cost: Callable[[Result], float]) -> tuple[Point, ...]:
    """The results that no cheaper one reaches in F1, by rising cost and F1.

    Between two of them, and beyond the last, the best F1 is that of the one to the left (paper
    arXiv 2608.07458, section 4.2).
    """
    best: list[Point] = []
    for result in sorted(results, key=lambda r: (cost(r), -r.f1, r.configuration.label)):
        if not best or result.f1 > best[-1].y:
            best.append(Point(cost(result), result.f1, result.configuration.label))
    return tuple(best)


def half_to_show(results: Sequence[Result]) -> str:
    """One half for a whole figure: `test` if everything was run on it, else `dev` if anything was.

    Without either of these the half that most results are of.
    """
    runs = {(result.set, result.configuration) for result in results}
    halves = Counter(result.half for result in results)
    if halves["test"] == len(runs):
        return "test"
    return "dev" if halves["dev"] else max(halves, key=lambda half: halves[half])
