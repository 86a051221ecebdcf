"""How many rows each set gives: whole numbers in proportion to weights, within what there is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from coinkv.errors import InputError


def counts(
    rows: int | None, held_out: int, weights: Sequence[float], usable: Sequence[int]
) -> tuple[list[int], list[int]]:
    """How many rows of each set are drawn, and how many are held out.

    Rows are held out in the proportion in which they would be drawn if none were held out.

    Args:
        rows: to draw in all, at least 1; None for as many as the weights allow: all where they are
            equal, else until the first set runs out.
        held_out: to hold out in all.
        weights: above 0, one of each set.
        usable: rows of each set, at least 1.

    Raises:
        InputError: no row is left to train on.
    """
    shares = [max(1, n) for n in _drawn(rows, weights, usable)]  # a set of which none is drawn, too
    held = apportioned(held_out, shares, usable)
    left = [most - n for most, n in zip(usable, held, strict=True)]
    drawn = _drawn(rows, weights, left)
    if not any(drawn):
        raise InputError(
            f"with {held_out} of {sum(usable)} rows held out none is left to train on",
            hint="hold fewer out"
            if len(usable) == 1
            else "hold fewer out, or give weights that differ less",
        )
    return drawn, held


def apportioned(total: int, weights: Sequence[float], most: Sequence[int]) -> list[int]:
    """Whole numbers that add up to a total, in proportion to weights, none above its most.

    What one cannot take is shared among the others, by their weights. Remainders go to the largest
    fractions (Hamilton's method), so that each number is within 1 of its exact share.

    Args:
        total: what to share out, not below 0; where all `most` together are less, they are given.
        weights: above 0, one of each share.
        most: upper bounds, one of each share.
    """
    exact = _exact(weights)
    given = [0] * len(exact)
    wanting = list(range(len(exact)))
    while wanting:
        whole = sum((exact[n] for n in wanting), Fraction())
        quota = {n: (total - sum(given)) * exact[n] / whole for n in wanting}
        full = [n for n in wanting if quota[n] >= most[n]]
        if not full:
            floors = {n: math.floor(share) for n, share in quota.items()}
            spare = total - sum(given) - sum(floors.values())
            largest = sorted(quota, key=lambda n: floors[n] - quota[n])[:spare]
            for n in wanting:
                given[n] = floors[n] + (n in largest)
            break
        for n in full:
            given[n] = most[n]
        wanting = [n for n in wanting if n not in full]
    return given


def _drawn(rows: int | None, weights: Sequence[float], usable: Sequence[int]) -> list[int]:
    if rows is not None:
        return apportioned(rows, weights, usable)
    exact = _exact(weights)
    if len(set(exact)) == 1:
        return list(usable)
    unit = min(most / weight for most, weight in zip(usable, exact, strict=True))
    return [math.floor(unit * weight) for weight in exact]


def _exact(weights: Sequence[float]) -> list[Fraction]:
    """Weights as they are written: 0.1 is a tenth."""
    return [Fraction(str(weight)) for weight in weights]
