"""Whether a difference is more than chance: the paired bootstrap over questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coinkv.errors import InputError

RESAMPLES = 10_000
"""As in the paper (arXiv 2608.07458, appendix E)."""
_BLOCK = 1 << 22  # numbers drawn at a time: 32 MB

Question = tuple[str, str]
"""A set and the id of a question in it."""


@dataclass(frozen=True)
class Difference:
    """Mean of first minus second over the questions that both answered.

    Attributes:
        mean: in the unit of the values, as are `low` and `high`.
        low: lower end of the 95 % confidence interval.
        high: its upper end.
        p: two-sided p value; at least 2 / (resamples + 1).
        questions: how many were paired.
    """

    mean: float
    low: float
    high: float
    p: float
    questions: int


def paired_bootstrap(
    first: Mapping[Question, float],
    second: Mapping[Question, float],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Difference:
    """Resample the questions with replacement, each with both its values.

    The interval is that between the percentiles 2.5 and 97.5 of the resampled means. p is twice
    the smaller share of means on one side of 0, the observed difference counted as one resample,
    so that it is never 0.

    Args:
        first: value (such as F1) of each question.
        second: value of each question; questions that only one of the two has are left out.
        resamples: how often.
        seed: makes it repeatable.

    Raises:
        InputError: no question is in both, or resamples below 1.
    """
    if resamples < 1:
        raise InputError(f"resamples is {resamples}", hint="use 1 or more")
    common = sorted(first.keys() & second.keys())
    if not common:
        raise InputError("the two have no question in common, so nothing can be paired")
    values = np.array([first[question] - second[question] for question in common])  # [questions]
    means = np.concatenate(list(_resampled_means(values, resamples, seed)))  # [resamples]
    tail = min(np.count_nonzero(means <= 0), np.count_nonzero(means >= 0))
    low, high = np.percentile(means, [2.5, 97.5])
    return Difference(
        mean=float(values.mean()),
        low=float(low),
        high=float(high),
        p=min(1.0, 2 * (tail + 1) / (resamples + 1)),
        questions=len(common),
    )


def _resampled_means(
    values: NDArray[np.float64], resamples: int, seed: int
) -> Iterator[NDArray[np.float64]]:
    """Means of resamples, in blocks that bound the memory."""
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK // len(values))
    for start in range(0, resamples, block):
        drawn = min(block, resamples - start)
        picks = generator.integers(len(values), size=(drawn, len(values)))  # [drawn, questions]
        yield values[picks].mean(axis=1)
