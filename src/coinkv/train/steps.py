"""A step: gradients of micro-batches, summed over all processes, and one change of the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from coinkv.errors import TrainingError
from coinkv.train.batches import MicroBatch
from coinkv.train.composing import Composer
from coinkv.train.processes import Processes
from coinkv.train.showing import loss_sum


@dataclass(frozen=True)
class Sum:
    """What micro-batches came to, so that several processes can add theirs up.

    Attributes:
        loss: summed over the answers' tokens.
        tokens: how many those were.
        rows: rows they were of; those too long are in neither.
    """

    loss: float = 0.0
    tokens: int = 0
    rows: int = 0

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.loss + other.loss, self.tokens + other.tokens, self.rows + other.rows)


@dataclass(frozen=True, eq=False)
class Stepper:
    """Makes the steps of a run.

    Attributes:
        folder: of the run, for messages.
        composer: shows rows.
        processes: the processes that share the work.
        optimizer: changes the weights.
    """

    folder: Path
    composer: Composer
    processes: Processes
    optimizer: Any

    def step(
        self, micro_batches: Sequence[MicroBatch], *, epoch: int, step: int, rate: float
    ) -> tuple[Sum, float]:
        """Learn from micro-batches, this process computing its share of them.

        Args:
            micro_batches: of all processes.
            epoch: from 0.
            step: from 0.
            rate: the learning rate.

        Returns:
            The sum over all processes, and the norm of the mean loss's gradient; where no row fits
            nothing changes, and the norm is 0.

        Raises:
            TrainingError: loss or gradient is not finite; the weights are as they were.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        learned = self._backward(micro_batches, epoch, step)
        norm = self._update(learned, step) if learned.tokens else 0.0
        self.optimizer.zero_grad(set_to_none=True)
        return learned, norm

    def _backward(self, micro_batches: Sequence[MicroBatch], epoch: int, step: int) -> Sum:
        """Gradients of the summed loss: what its mean is over is known behind all processes."""
        learner, recipe = self.composer.learner, self.composer.recipe
        forms = len(self.composer.shower.objective.forms)
        mine = Sum()
        for number, micro in self.processes.share(micro_batches):
            with (
                self.processes.autocast(half=recipe.weights == "all"),
                self.composer.learning(micro, epoch, step, number) as shown,
            ):
                if shown:
                    loss = loss_sum(learner.view, shown, checkpointing=recipe.checkpointing)
                    loss.backward()  # type: ignore[no-untyped-call]
                    tokens = sum(len(each.targets) for each in shown)
                    mine += Sum(float(loss.detach()), tokens, len(shown) // forms)
        self.processes.add_gradients(learner.parameters.values())
        return sum(self.processes.gathered(mine), Sum())

    def _update(self, learned: Sum, step: int) -> float:
        parameters = list(self.composer.learner.parameters.values())
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.div_(learned.tokens)
        clip = self.composer.recipe.clip
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, clip))
        if not math.isfinite(learned.loss) or not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise TrainingError(
                f"the loss of step {step + 1} is {learned.loss / learned.tokens:.4g}, its gradient "
                f"{norm:.4g}",
                where=self.folder,
                hint="lower the learning rate, or compute in float32, in another folder",
            )
        self.optimizer.step()
        return norm
