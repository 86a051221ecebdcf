"""A small made-up training set, and the parts of a run on a tiny model put together."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coinkv.model.backbone import Backbone
from coinkv.train.composing import Composer
from coinkv.train.data import Source, TrainingData, training_rows
from coinkv.train.journal import read
from coinkv.train.learner import Learner
from coinkv.train.loop import Learned, Loop, Watch
from coinkv.train.objectives import Objective, objective_named
from coinkv.train.passages import Passages
from coinkv.train.processes import Processes
from coinkv.train.recipe import Recipe
from coinkv.train.showing import Shower

NAMES = ["Ada", "Bob", "Cid", "Dov", "Eva", "Fay", "Gus", "Hal"]
TOWNS = ["Rome", "Oslo", "Lima", "Kiev", "Bern", "Cork"]

SMALL = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48}
"""A model smaller than the tiny ones, for tests of many steps."""


def made_up_rows(count: int, passages: int = 3) -> list[dict[str, Any]]:
    """Questions of where somebody lives; the first passage says it, the others speak of others."""
    draw = random.Random(1)
    rows = []
    for number in range(count):
        who = draw.sample(NAMES, passages)
        towns = [draw.choice(TOWNS) for _ in who]
        rows.append(
            {
                "id": f"row-{number}",
                "question": f"Where does {who[0]} live?",
                "answers": [towns[0]],
                "passages": [
                    {
                        "title": name,
                        "text": f"{name} lives in {town}. Birds fly.",
                        "is_supporting": at == 0,
                    }
                    for at, (name, town) in enumerate(zip(who, towns, strict=True))
                ],
            }
        )
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def drawn(path: Path, *, held_out: int = 0, seed: int = 0) -> TrainingData:
    """The rows of one file as training data."""
    return training_rows([Source(str(path))], rows=None, seed=seed, held_out=held_out)


def small_recipe(objective: str = "coinrag", **options: Any) -> Recipe:
    """A recipe for made-up rows."""
    small = {"rank": 4, "k_chunks": 2, "k_nuggets": 3, "max_length": 500, "learning_rate": 1e-2}
    return Recipe(objective=objective, **{"micro_batch": 4, "accumulation": 1, **small, **options})


@dataclass(frozen=True)
class Parts:
    """What a run is put together from."""

    passages: Passages
    recipe: Recipe
    objective: Objective
    learner: Learner
    composer: Composer

    @classmethod
    def of(cls, passages: Passages, recipe: Recipe, backbone: Backbone | None = None) -> Parts:
        backbone = backbone or passages.bench.backbone
        objective = objective_named(recipe.objective, recipe.options)
        learner = Learner.of(backbone, recipe, objective)
        shower = Shower(learner, objective, recipe)
        return cls(
            passages, recipe, objective, learner, Composer(passages, learner, shower, recipe)
        )

    def with_recipe(self, **options: Any) -> Parts:
        """The same learner under another recipe."""
        recipe = replace(self.recipe, **options)
        shower = Shower(self.learner, self.objective, recipe)
        composer = Composer(self.passages, self.learner, shower, recipe)
        return replace(self, recipe=recipe, composer=composer)

    def run(
        self,
        folder: Path,
        data: TrainingData,
        watch: Watch | None = None,
        tell: Any = lambda *_: None,
    ) -> Learned:
        """Run, with the rows held out as development rows."""
        folder.mkdir(parents=True, exist_ok=True)
        processes = Processes(self.learner.view.device)
        loop = Loop(folder, self.composer, data, data.held_out, watch or Watch(), processes)
        return loop.run(tell)


def journal(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's journal without what the clock says."""
    return [{k: v for k, v in line.items() if k != "seconds"} for line in read(folder)]


def losses(folder: Path) -> list[float]:
    """The loss of each step."""
    return [line["loss"] for line in read(folder) if line["kind"] == "step"]


def resumable_recipe(**options: Any) -> Recipe:
    """Two epochs, with all that a run going on has to bring back: noise, dropout, moments."""
    small = {"dropout": 0.2, "raft": 0.3, "epochs": 2, "accumulation": 2, "micro_batch": 2}
    return small_recipe("kvlink", **{**small, "options": {"links": 2}, **options})


def resumable_watch() -> Watch:
    """Evaluations and checkpoints at steps that do not go together."""
    return Watch(checkpoint_every=2, evaluate_every=5, patience=3, answer_tokens=3)
