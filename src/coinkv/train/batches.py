"""Batches: the rows of every epoch as steps of micro-batches, rows of like length together."""

from __future__ import annotations

import random
from functools import lru_cache

from coinkv.evaluate.dataset import EvalRow
from coinkv.train.data import TrainingData, TrainingRow
from coinkv.train.recipe import Recipe

MicroBatch = tuple[TrainingRow, ...]
_WINDOW_STEPS = 16
"""Rows are sorted by length within so many steps: like lengths meet, and the order stays random."""


class Batches:
    """The steps of a run, the same on every machine. In an epoch every row comes once.

    Args:
        data: the rows.
        recipe: sizes, epochs and seed.
        whole_context: the context is computed live, so that its length counts, too.
    """

    def __init__(self, data: TrainingData, recipe: Recipe, *, whole_context: bool) -> None:
        self._data, self._recipe, self._whole_context = data, recipe, whole_context
        self._epoch = lru_cache(maxsize=1)(self._steps_of)
        self._per_epoch = len(self._epoch(0))

    @property
    def steps(self) -> int:
        """How many steps the run has."""
        whole = self._recipe.epochs * self._per_epoch
        return whole if self._recipe.steps is None else min(whole, self._recipe.steps)

    def at(self, step: int) -> tuple[int, tuple[MicroBatch, ...]]:
        """Epoch and micro-batches of a step, both from 0; the last of an epoch may be smaller."""
        epoch, within = divmod(step, self._per_epoch)
        return epoch, self._epoch(epoch)[within]

    def _steps_of(self, epoch: int) -> list[tuple[MicroBatch, ...]]:
        recipe, rows = self._recipe, self._data.epoch(epoch)
        draw = random.Random(f"batches {recipe.seed} {epoch}")
        steps: list[tuple[MicroBatch, ...]] = []
        window = recipe.rows_per_step * _WINDOW_STEPS
        for start in range(0, len(rows), window):
            alike = sorted(rows[start : start + window], key=lambda each: self._length(each.row))
            micro = [
                tuple(alike[at : at + recipe.micro_batch])
                for at in range(0, len(alike), recipe.micro_batch)
            ]
            draw.shuffle(micro)
            steps += [
                tuple(micro[at : at + recipe.accumulation])
                for at in range(0, len(micro), recipe.accumulation)
            ]
        return steps

    def _length(self, row: EvalRow) -> int:
        """Characters that a pass computes, which go with its tokens well enough to sort by."""
        live = len(row.question) + len(row.answers[0])
        return live + (sum(len(p.text) for p in row.passages) if self._whole_context else 0)
