"""What a run is asked for, and the rows that its sets give: to learn from, and to be scored on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from coinkv.config import CHUNK_TOKENS
from coinkv.errors import InputError
from coinkv.evaluate.dataset import Half, half, read_set, require_answers
from coinkv.model.prompt import unicode_text
from coinkv.train.data import Source, TrainingData, TrainingRow, require_distinct, training_rows
from coinkv.train.loop import Watch
from coinkv.train.recipe import Recipe


@dataclass(frozen=True)
class DevSet:
    """Development questions from a set of their own.

    Attributes:
        name: as `coinkv.evaluate.dataset.read_set` takes it.
        half: which half of it.
        limit: the first so many; None: all.
    """

    name: str
    half: Half = "dev"
    limit: int | None = None

    def rows(self) -> tuple[TrainingRow, ...]:
        """Its questions.

        Raises:
            InputError: no such set, or a question without answers or passages.
        """
        chosen = half(read_set(self.name), self.half)
        require_answers(chosen)
        for row in chosen.rows:
            if not row.passages:
                raise InputError(
                    "this development question has no passages to find its answer in",
                    where=row.where or f"{chosen.name}, {row.id}",
                    hint='give "passages": [...]',
                )
        return tuple(TrainingRow(chosen.name, row) for row in chosen.rows[: self.limit])


@dataclass(frozen=True)
class RunRows:
    """The rows of a run.

    Attributes:
        data: what is learned from, with what was left out and why.
        dev: what evaluations ask: the development sets' questions, else the rows held out.
    """

    data: TrainingData
    dev: tuple[TrainingRow, ...]


@dataclass(frozen=True)
class TrainingOptions:
    """What a run is asked for.

    Attributes:
        sources: sets to train on.
        recipe: how to learn.
        watch: when to check, keep and end.
        rows: how many rows an epoch has; None: see `coinkv.train.data.training_rows`.
        against: evaluation sets whose questions and gold passages must not be learned; those of
            `dev` need not be named.
        held_out: rows kept for the development scores where `dev` names no set.
        dev: sets of development questions.
        cache: folder of chunks, nuggets, vectors and KV, shared by runs; None: in coinkv's home.
        chunk_tokens: most tokens of a chunk.
        model: the base: hub name, folder, or the embedded default.
        device: where to compute.
        dtype: what the base computes in.
        name: of the adapter or model in its card; None: the folder's.
        licence: of what is made, for its card.
        attribution: for its card: whose data it was made from, and under what licence.
        tensorboard: write TensorBoard files, too.

    Raises:
        InputError: there is no such device, or options that do not go together.
    """

    sources: Sequence[Source]
    recipe: Recipe = field(default_factory=Recipe)
    watch: Watch = field(default_factory=Watch)
    rows: int | None = None
    against: Sequence[str] = ()
    held_out: int = 0
    dev: Sequence[DevSet] = ()
    cache: Path | None = None
    chunk_tokens: int = CHUNK_TOKENS
    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    name: str | None = None
    licence: str | None = None
    attribution: Sequence[str] = ()
    tensorboard: bool = False

    def __post_init__(self) -> None:
        if self.dev and self.held_out:
            raise InputError(
                "rows are held out for development, and a development set is named",
                hint="give one of them",
            )
        for name in ("evaluate_every", "patience"):
            if getattr(self.watch, name) is not None and not (self.dev or self.held_out):
                raise InputError(
                    f"{name} is given, but there is nothing to evaluate on",
                    hint="name a development set, or hold rows out",
                )
        if self.watch.patience is not None and self.watch.evaluate_every is None:
            raise InputError(
                "patience counts evaluations, and there is only one, at the end",
                hint="give evaluate_every, too",
            )
        for name in ("name", "licence", "model"):
            unicode_text(getattr(self, name) or "", f"the option {name}")
        unicode_text("".join(self.attribution), "the option attribution")
        try:
            torch.device(self.device or "cpu")
        except RuntimeError as error:
            raise InputError(
                "there is no such device", where=self.device, hint="use cpu, cuda or mps"
            ) from error

    def read(self) -> RunRows:
        """The rows, read and drawn.

        Raises:
            InputError: a set cannot be read, or nothing in it can be trained on or asked.
        """
        sets = [each.rows() for each in self.dev]
        require_distinct([rows[0].set_name for rows in sets if rows], "development sets")
        dev = tuple(row for rows in sets for row in rows)
        data = training_rows(
            self.sources,
            rows=self.rows,
            seed=self.recipe.seed,
            against=tuple(dict.fromkeys((*self.against, *(each.name for each in self.dev)))),
            held_out=self.held_out,
        )
        return RunRows(data, dev or data.held_out)
