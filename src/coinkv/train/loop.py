"""The loop: steps over rows, with checkpoints to go on from, evaluations and an early end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from coinkv.errors import InputError, StorageError, TrainingError
from coinkv.train.batches import Batches
from coinkv.train.checkpoint import BEST, CHECKPOINTS, load, save
from coinkv.train.composing import Composer
from coinkv.train.data import TrainingData, TrainingRow
from coinkv.train.evaluation import DevScores, Sums, dev_sums
from coinkv.train.journal import Journal
from coinkv.train.optimising import learning_rate, optimizer_of
from coinkv.train.processes import Processes
from coinkv.train.steps import Stepper

Keep = Literal["best", "last"]
OnProgress = Callable[[str, int, int], None]
"""Called with a stage's name, what is done and what there is."""
_PATIENT_ROWS = 64
"""So many rows may be too long from the start before a run is given up."""


@dataclass(frozen=True)
class Watch:
    """How a run is watched over.

    Attributes:
        checkpoint_every: steps between checkpoints.
        evaluate_every: steps between evaluations on development rows; None: once at the end.
        patience: end after so many evaluations without a better one; None: never.
        answer_tokens: most tokens of a development answer.
        keep: which weights come out: those of the `best` evaluation, or the `last`, which a few
            development questions cannot tell from worse ones.
    """

    checkpoint_every: int = 25
    evaluate_every: int | None = None
    patience: int | None = None
    answer_tokens: int = 32
    keep: Keep = "best"

    def __post_init__(self) -> None:
        if self.keep not in get_args(Keep):
            raise InputError(f"keep is {self.keep!r}", hint="use best or last")
        if self.keep == "last" and self.patience is not None:
            raise InputError(
                "patience waits for a better evaluation, and the last weights are to be kept",
                hint="give one of the two",
            )
        for name in ("checkpoint_every", "evaluate_every", "patience", "answer_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}", hint="use 1 or more")


@dataclass(frozen=True)
class Learned:
    """What a run came to.

    Attributes:
        steps: steps done.
        best_step: whose weights the learner has now: those of the best evaluation, or the last.
        first: scores before the first step; None without development rows.
        best: scores at `best_step`.
        answer_tokens: tokens learned from, repeated rows counted each time.
        seconds: of all steps, without evaluations.
        stopped_early: evaluations had stopped getting better.
    """

    steps: int
    best_step: int
    first: DevScores | None
    best: DevScores | None
    answer_tokens: int
    seconds: float
    stopped_early: bool


@dataclass
class _State:
    """What a checkpoint keeps beside weights and moments."""

    step: int = 0
    rows_seen: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0
    first: dict[str, Any] | None = None
    best: dict[str, Any] | None = None
    best_step: int = 0
    evaluations_since: int = 0
    ended: bool = False


class Loop:
    """One run of a recipe over rows.

    Args:
        folder: of the run: checkpoints, the best weights and the journal.
        composer: shows rows.
        data: the rows.
        dev: development rows; may be empty.
        watch: when to check, keep and end.
        processes: the processes that share the work.
        writer: a `torch.utils.tensorboard.SummaryWriter`, or None.
    """

    def __init__(
        self,
        folder: Path,
        composer: Composer,
        data: TrainingData,
        dev: Sequence[TrainingRow],
        watch: Watch,
        processes: Processes,
        writer: Any | None = None,
    ) -> None:
        self._folder, self._composer, self._dev = folder, composer, dev
        self._watch, self._processes, self._writer = watch, processes, writer
        self._recipe, self._learner = composer.recipe, composer.learner
        self._optimizer = optimizer_of(self._learner.parameters, self._recipe)
        objective = composer.shower.objective
        self._batches = Batches(data, self._recipe, whole_context=objective.whole_context)
        self._stepper = Stepper(folder, composer, processes, self._optimizer)

    def run(self, tell: OnProgress) -> Learned:
        """Learn from where the folder's newest checkpoint left off to the end.

        The learner then has the weights of the best evaluation, or the last ones where there is
        none or `keep` says so.

        Raises:
            StorageError: the disk is full or a checkpoint damaged; what was kept is still there.
            InputError: the folder's checkpoint is of another run.
            TrainingError: the loss is not finite, or every row is too long.
        """
        main = self._processes.main
        tell = tell if main else _silent
        state = self._resumed()
        journal = Journal(self._folder, state.step, self._writer) if main else None
        if self._dev and state.first is None:
            self._evaluate(state, journal, tell)
        while state.step < self._batches.steps and not state.ended:
            tell("training", state.step, self._batches.steps)
            self._step(state, journal)
            last = state.step == self._batches.steps
            if self._dev and (last or _due(state.step, self._watch.evaluate_every)):
                self._evaluate(state, journal, tell)
            elif last or _due(state.step, self._watch.checkpoint_every):
                self._keep(CHECKPOINTS, state)
        tell("training", state.step, state.step)
        if state.best_step != state.step:
            self._take_best(state.best_step)
        return Learned(
            state.step,
            state.best_step,
            _scores(state.first),
            _scores(state.best),
            state.answer_tokens,
            state.seconds,
            state.ended,
        )

    def _resumed(self) -> _State:
        """The state to go on from."""
        found = load(self._folder / CHECKPOINTS, self._learner, self._optimizer)
        if found is None:
            return _State()
        try:
            state = _State(**found)
        except TypeError as error:
            raise StorageError(
                f"this checkpoint is of another version ({error})",
                where=self._folder / CHECKPOINTS,
                hint="train in another folder",
            ) from error
        if self._dev and state.best_step == state.step:  # cut off between the two
            self._keep(BEST, state)
        return state

    def _take_best(self, step: int) -> None:
        kept = load(self._folder / BEST, self._learner, None)
        if kept is None or kept.get("step") != step:
            raise StorageError(
                f"the weights of the best evaluation, at step {step}, are not there",
                where=self._folder / BEST,
                hint=f"remove the folder {CHECKPOINTS} of this run; it then begins anew",
            )

    def _step(self, state: _State, journal: Journal | None) -> None:
        started = time.perf_counter()
        epoch, micro_batches = self._batches.at(state.step)
        rate = learning_rate(state.step, self._batches.steps, self._recipe)
        learned, norm = self._stepper.step(micro_batches, epoch=epoch, step=state.step, rate=rate)
        seconds = time.perf_counter() - started
        state.step += 1
        state.rows_seen += sum(map(len, micro_batches))
        state.answer_tokens += learned.tokens
        state.seconds += seconds
        if not self._dev:
            state.best_step = state.step
        self._require_learning(state)
        if journal is not None and learned.tokens:
            facts = {
                "step": state.step,
                "epoch": epoch,
                "loss": learned.loss / learned.tokens,
                "learning_rate": rate,
                "gradient_norm": norm,
                "rows": learned.rows,
                "answer_tokens": learned.tokens,
                "seconds": round(seconds, 3),
            }
            journal.write("step", facts)

    def _require_learning(self, state: _State) -> None:
        last = state.step == self._batches.steps
        if not state.answer_tokens and (last or state.rows_seen >= _PATIENT_ROWS):
            raise TrainingError(
                f"none of {state.rows_seen} rows fits into {self._recipe.max_length} tokens",
                where=self._folder,
                hint="give a greater max_length, in another folder",
            )

    def _evaluate(self, state: _State, journal: Journal | None, tell: OnProgress) -> None:
        started = time.perf_counter()
        mine = [row for _, row in self._processes.share(self._dev)]
        sums = dev_sums(
            self._composer,
            mine,
            answer_tokens=self._watch.answer_tokens,
            tell=lambda done, of: tell("evaluating", done, of),
        )
        sums = sum(self._processes.gathered(sums), Sums())
        if not sums.tokens:
            raise TrainingError(
                f"none of {sums.questions} development rows fits into "
                f"{self._recipe.max_length} tokens",
                where=self._folder,
                hint="give a greater max_length or fewer answer tokens, in another folder",
            )
        scores = sums.scores(time.perf_counter() - started)
        if journal is not None:
            journal.write("dev", {"step": state.step, **scores.to_dict()})
        best = _scores(state.best)
        state.first = state.first or scores.to_dict()
        if best is None or self._watch.keep == "last" or _better(scores, best):
            state.best, state.best_step = scores.to_dict(), state.step
            state.evaluations_since = 0
        else:
            state.evaluations_since += 1
            state.ended = state.evaluations_since == self._watch.patience
        if state.step:  # a run cut off before its first step begins again
            self._keep(CHECKPOINTS, state)
        if state.best_step == state.step:
            self._keep(BEST, state)

    def _keep(self, name: str, state: _State) -> None:
        if self._processes.main:
            optimizer = self._optimizer if name == CHECKPOINTS else None
            save(self._folder / name, state.step, self._learner, optimizer, asdict(state))
        self._processes.wait()


def _silent(stage: str, done: int, of: int) -> None:
    """What the other processes tell."""


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def _scores(facts: Mapping[str, Any] | None) -> DevScores | None:
    return None if facts is None else DevScores(**facts)


def _better(scores: DevScores, best: DevScores) -> bool:
    """More F1, or as much with less loss."""
    return (scores.f1, -scores.loss) > (best.f1, -best.loss)
