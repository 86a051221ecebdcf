"""Composing while training: from blocks kept once and for all, or by the weights as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from coinkv.methods.base import Workbench
from coinkv.retrieval.two_stage import Retrieval
from coinkv.train.data import TrainingRow
from coinkv.train.evidence import Noise, noise_of, retrieved
from coinkv.train.fresh import fresh_bench
from coinkv.train.learner import Learner
from coinkv.train.passages import Passages
from coinkv.train.recipe import Recipe
from coinkv.train.showing import Shower, Shown


@dataclass(frozen=True, eq=False)
class Composer:
    """Makes what is shown of rows.

    Where only what is live learns, the prefix comes from the model as it was, out of the block
    store, without gradient: a step costs about its live tokens. Otherwise the weights that learn
    make it anew in every step, with gradient if `through_cache`.

    Attributes:
        passages: the rows' passages.
        learner: the weights.
        shower: shows a row.
        recipe: says how.
    """

    passages: Passages
    learner: Learner
    shower: Shower
    recipe: Recipe
    _found: dict[tuple[str, str, Noise], Retrieval] = field(default_factory=dict)

    @property
    def stored(self) -> bool:
        """Prefixes come from the block store."""
        return self.recipe.weights == "lora" and not self.recipe.through_cache

    def evidence(self, row: TrainingRow, epoch: int | None = None) -> Retrieval:
        """What a row retrieves in an epoch; without one, without noise."""
        recipe = self.recipe
        noise: Noise = "none"
        if epoch is not None:
            noise = noise_of("/".join(row.key), epoch, recipe.seed, recipe.raft)
        key = (*row.key, noise)
        if key not in self._found:
            self._found[key] = retrieved(
                self.passages,
                row.row,
                noise,
                k_chunks=recipe.k_chunks,
                k_nuggets=recipe.k_nuggets,
            )
        return self._found[key]

    @contextmanager
    def learning(
        self, rows: Sequence[TrainingRow], epoch: int, step: int, part: int
    ) -> Iterator[list[Shown]]:
        """What is shown of rows, inside which the pass over them and its backward pass are made.

        Args:
            rows: a micro-batch.
            epoch: from 0.
            step: from 0.
            part: number of the micro-batch in its step.
        """
        # what is kept (vectors, blocks) is made in full precision, whatever passes compute in
        with torch.autocast(self.learner.view.device.type, enabled=False), torch.no_grad():
            found = [self.evidence(row, epoch) for row in rows]
            shown = self._shown(self._stored_bench(), rows, found) if self.stored else []
        if self.stored:
            with self.learner.learning((step, part), self.recipe.seed):
                yield shown
            return
        with self.learner.learning((step, part), self.recipe.seed):
            with torch.set_grad_enabled(self.recipe.through_cache):
                shown = self._shown(self._fresh_bench(), rows, found)
            yield shown

    @contextmanager
    def bench(self) -> Iterator[Workbench]:
        """A bench to compose contexts with, without gradient; whatever is made must stay inside."""
        if self.stored:
            yield self._stored_bench()
            return
        with self.learner.view.computing():
            yield self._fresh_bench()

    def _shown(
        self, bench: Workbench, rows: Sequence[TrainingRow], found: Sequence[Retrieval]
    ) -> list[Shown]:
        return [
            shown
            for row, evidence in zip(rows, found, strict=True)
            for shown in self.shower.shown(bench, row.row, evidence)
        ]

    def _stored_bench(self) -> Workbench:
        return replace(self.passages.bench, backbone=self.learner.view)

    def _fresh_bench(self) -> Workbench:
        return fresh_bench(
            self.passages.bench, self.learner.view, checkpointing=self._checkpointing
        )

    @property
    def _checkpointing(self) -> bool:
        return self.recipe.checkpointing and self.recipe.through_cache
