"""The history of a run: what its journal says of steps and of evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coinkv.errors import InputError
from coinkv.train.journal import JOURNAL, read

_NUMBERS = {"step": ("loss", "learning_rate", "rows"), "dev": ("loss", "f1", "exact_match")}
_SMOOTHING = 0.03
"""Span of the smoothed loss as a share of a run's steps; at least 2 steps."""


@dataclass(frozen=True)
class History:
    """Lines of a journal in their order; at least one.

    Attributes:
        steps: lines of kind `step`.
        dev: lines of kind `dev`: evaluations on development rows.
    """

    steps: tuple[Mapping[str, Any], ...]
    dev: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, folder: Path) -> History:
        """Read a run's journal; lines of other kinds or without their numbers are left out.

        Raises:
            InputError: the folder holds no journal, or one without a step or an evaluation.
            StorageError: the journal cannot be read.
        """
        lines: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in _NUMBERS}
        for line in read(folder):
            for kind, names in _NUMBERS.items():
                numbers = all(isinstance(line.get(name), int | float) for name in names)
                if line.get("kind") == kind and numbers:
                    lines[kind].append(line)
        if not any(lines.values()):
            raise InputError(
                "holds no step of a run" if (folder / JOURNAL).exists() else "is not there",
                where=folder / JOURNAL,
                hint="name the folder of a run of fine-tuning that has done its first step",
            )
        return cls(tuple(lines["step"]), tuple(lines["dev"]))

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The best evaluation as the run judges: more F1, or as much with less loss."""
        return max(self.dev, key=lambda line: (line["f1"], -line["loss"]), default=None)

    @property
    def last_step(self) -> int:
        """The last one that has a line."""
        return max(int(line["step"]) for line in (*self.steps, *self.dev))

    @property
    def rows(self) -> int:
        """Rows learned from, repeated ones counted each time."""
        return sum(line["rows"] for line in self.steps)

    def smoothed_loss(self) -> list[float]:
        """The training loss of each step, smoothed."""
        losses = [line["loss"] for line in self.steps]
        return smoothed(losses, max(2.0, _SMOOTHING * len(losses)))


def smoothed(values: Sequence[float], span: float) -> list[float]:
    """Local trends: at each value, the height there of a straight line through those around it.

    The line is fitted by least squares, with weights that fall exponentially to both sides. Unlike
    a mean of the values before it does not lag where they fall, nor is it off at the ends.

    Args:
        values: in their order, finite.
        span: distance at which a weight is 1/e.
    """
    heights, places = np.array(values, dtype=float), np.arange(len(values), dtype=float)
    trend = []
    for place in places:
        weights = np.exp(-np.abs(places - place) / span)
        weights /= weights.sum()
        away = places - weights @ places
        spread = weights @ away**2
        slope = weights @ (away * heights) / spread if spread else 0.0
        trend.append(float(weights @ heights + slope * (place - weights @ places)))
    return trend
