"""A run: from sets and a recipe to an adapter or a model in a folder that can be gone on with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from coinkv.config import DEFAULT_MODEL, home
from coinkv.errors import InputError
from coinkv.model.backbone import Backbone
from coinkv.model.load import load
from coinkv.model.prompt import unicode_text
from coinkv.rag.options import BuildOptions
from coinkv.train.card import begun_with, card, given_facts
from coinkv.train.composing import Composer
from coinkv.train.evaluation import DevScores
from coinkv.train.folder import ADAPTER, MODEL, RunFolder
from coinkv.train.journal import tensorboard_writer
from coinkv.train.learner import Learner
from coinkv.train.loop import Learned, Loop, OnProgress
from coinkv.train.objectives import Objective, objective_named
from coinkv.train.options import RunRows, TrainingOptions
from coinkv.train.passages import Passages
from coinkv.train.processes import Processes
from coinkv.train.results import write_adapter, write_model
from coinkv.train.showing import Shower


@dataclass(frozen=True)
class TrainingReport:
    """What a run came to.

    Attributes:
        result: folder of the adapter or model.
        learned: steps, scores, time.
        card: what is written beside the result.
        was_finished: the run had come to its end before, and nothing was done.
    """

    result: Path
    learned: Learned
    card: Mapping[str, Any]
    was_finished: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "result": str(self.result),
            "was_finished": self.was_finished,
            **asdict(self.learned),
            "card": dict(self.card),
        }


def train(
    folder: str | Path,
    options: TrainingOptions,
    tell: OnProgress,
    *,
    rows: RunRows | None = None,
) -> TrainingReport:
    """Train, or go on with a run that was cut off, and write what was learned.

    The folder holds `run.json`, `journal.jsonl`, checkpoints, and in the end `adapter/` or `model/`
    and `report.json`. The same call again goes on from the newest checkpoint and comes to the same
    weights as a run that was never cut off; one that is finished is told of again. May be started
    by `accelerate launch` or `torchrun` in several processes, which share the work.

    Args:
        folder: of the run, made if missing.
        options: what is asked for.
        tell: told of every step.
        rows: what `options.read()` gave, where it was read before.

    Raises:
        InputError: an option cannot be used.
        TrainingError: the folder belongs to another run or is in use, or the loss is not finite.
        StorageError: the disk is full or refuses; the newest checkpoint is whole.
    """
    recipe = options.recipe
    objective = objective_named(recipe.objective, recipe.options)
    cache = options.cache or home() / "training"
    _require_folder(Path(folder), cache)
    _require_packages(("accelerate", *(("peft",) if recipe.weights == "lora" else ())))
    rows = options.read() if rows is None else rows
    processes = Processes(options.device)
    place = RunFolder(Path(folder), processes)
    with place.alone():
        base = load(
            options.model or DEFAULT_MODEL,
            device=processes.device,
            dtype=options.dtype or ("float32" if recipe.weights == "all" else None),
        )
        place.begin(begun_with(options, objective, rows, base))
        finished = _finished(place, options)
        if finished is not None:
            return finished
        run = _Run(place, options, objective, rows, base, processes, cache)
        return run.to_the_end(tell)


@dataclass(frozen=True, eq=False)
class _Run:
    """A run that has begun."""

    place: RunFolder
    options: TrainingOptions
    objective: Objective
    rows: RunRows
    base: Backbone
    processes: Processes
    cache: Path

    def to_the_end(self, tell: OnProgress) -> TrainingReport:
        learner = Learner.of(self.base, self.options.recipe, self.objective)
        learned = self._learned(learner, tell)
        name = self.place.path.resolve().name
        facts = card(name, self.options, self.objective, self.rows, self.base, learned)
        adapter = learner.adapter is not None
        result = self.place.path / (ADAPTER if adapter else MODEL)
        files: list[Path] = []
        self.place.by_main(
            lambda: files.extend(
                write_adapter(learner, self.base, result, facts)
                if adapter
                else write_model(learner, result, facts)
            )
        )
        report = TrainingReport(result, learned, facts)
        self.place.keep_report(report.to_dict(), files)
        return report

    def _learned(self, learner: Learner, tell: OnProgress) -> Learned:
        """Go through the loop; the learner has the best weights then."""
        options, recipe, place = self.options, self.options.recipe, self.place
        writers: list[Any] = []
        if options.tensorboard:
            place.by_main(lambda: writers.append(tensorboard_writer(place.path)))
        writer = writers[0] if writers else None
        build = BuildOptions(model=self.base, chunk_tokens=options.chunk_tokens)
        with Passages.open(self.cache, build) as passages:
            composer = Composer(passages, learner, Shower(learner, self.objective, recipe), recipe)
            rows, watch, processes = self.rows, options.watch, self.processes
            loop = Loop(place.path, composer, rows.data, rows.dev, watch, processes, writer)
            return loop.run(tell)


def _require_folder(folder: Path, cache: Path) -> None:
    """Refuse a run's folder that has another use, or a name that no card can tell."""
    real = os.path.realpath(folder)  # unlike `Path.resolve` content with links that go in a circle
    if real == os.path.realpath(cache):
        raise InputError(
            "is the cache of encoded passages, which runs share",
            where=folder,
            hint="train in another folder",
        )
    for path in (str(folder), real):
        unicode_text(path, "the folder's name")


def _require_packages(names: Sequence[str]) -> None:
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            raise InputError(
                f"training needs the package {name}, which cannot be imported",
                hint=f"run: pip install {name}",
            ) from error


def _finished(place: RunFolder, options: TrainingOptions) -> TrainingReport | None:
    """The report of a run that had come to its end.

    None where it has not, or is damaged, or where its card is to say something else.
    """
    kept = place.report()
    if kept is None:
        return None
    try:
        first, best = (
            None if kept[name] is None else DevScores(**kept[name]) for name in ("first", "best")
        )
        rest = {each.name: kept[each.name] for each in fields(Learned)}
        learned = Learned(**{**rest, "first": first, "best": best})
        result = place.path / Path(kept["result"]).name
        facts = dict(kept["card"])
    except (KeyError, TypeError, ValueError):
        return None
    told = {**facts, **given_facts(options)}
    return TrainingReport(result, learned, facts, was_finished=True) if told == facts else None
