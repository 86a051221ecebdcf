"""Sweep: many configurations over many sets, run by run into a ledger, resumable at every run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from coinkv.errors import InputError
from coinkv.evaluate.configuration import DEFAULT_INDEX, Configuration
from coinkv.evaluate.dataset import EvalRow, EvalSet, Half, half, require_answers
from coinkv.evaluate.indexes import folder_name, index_of
from coinkv.evaluate.ledger import Ledger
from coinkv.evaluate.provenance import made_with
from coinkv.evaluate.run import Asking, run
from coinkv.evaluate.timing import timing_round
from coinkv.methods.registry import method_named
from coinkv.model.adapter import read_card
from coinkv.model.backbone import Backbone
from coinkv.rag.build import BuildOptions
from coinkv.rag.index import Index

SLOW_MS = 500.0
"""Methods whose median TTFT is above this are timed on fewer queries."""

OnProgress = Callable[[str, int, int], None]
Plan = Mapping[str, Sequence[Configuration]]
"""The configurations of each set, by the set's name."""


@dataclass(frozen=True)
class Sweep:
    """What is run, on what, and how often.

    Attributes:
        folder: holds an index a set and label: `<folder>/<set>/<label>`.
        ledger: takes the rows.
        half: which half of the sets.
        limit: only the first so many questions of a half.
        timed_queries: queries timed of each configuration, apart from the answers; 0 for none.
        slow_queries: the same for configurations whose median TTFT is above `SLOW_MS`.
        index: label of the index that is used or built.
        build: how an index is built that is not there yet.
        asking: how questions are asked.
    """

    folder: Path
    ledger: Ledger
    half: Half = "dev"
    limit: int | None = None
    timed_queries: int = 0
    slow_queries: int = 200
    index: str = DEFAULT_INDEX
    build: BuildOptions = field(default_factory=BuildOptions)
    asking: Asking = field(default_factory=Asking)

    def __post_init__(self) -> None:
        for name, least in (("timed_queries", 0), ("slow_queries", 0), ("limit", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}", hint=f"use {least} or more")
        if Path(self.index).name != self.index or self.index in ("", ".", ".."):
            raise InputError(f"{self.index!r} is no label of an index", hint="use a plain word")

    def run(
        self, sets: Sequence[EvalSet], plan: Plan, on_progress: OnProgress | None = None
    ) -> dict[str, Any]:
        """Run what the ledger does not hold yet.

        Every finished run is a row at once; a sweep that is killed goes on behind its last row.
        Configurations that cannot be asked on a set (k is above what its index holds, a context is
        too long for the model) are left out and named.

        Returns:
            JSON-ready facts: `answered` and `timed` rows added, `kept` runs that were there, and
            `left_out`, why a configuration could not be run.

        Raises:
            InputError: found before anything is written: sets of one name or without answers, a
                plan that does not go with the sets or with this sweep, an unknown method or
                option, an adapter that is not there, a ledger of something else. Found at a set:
                it has no passages, its index is of others, the adapter does not fit.
            StorageError: the ledger cannot be written.
        """
        tell = on_progress or (lambda stage, done, total: None)
        chosen = [(each, self._rows(each)) for each in sets]
        self._require_sound(sets, plan)
        self.ledger.require_usable()
        report = _Report()
        backbone: Backbone | None = None
        for eval_set, rows in chosen:
            place = self.folder / folder_name(eval_set.name)
            index = index_of(eval_set, place, self.index, self.build, backbone, tell)
            with closing(index.catalogue):
                backbone = index.backbone
                on_set = _OnSet(self, index, eval_set.name, rows, report, tell)
                on_set.time(on_set.answer(plan[eval_set.name]))
        return report.facts()

    def _rows(self, eval_set: EvalSet) -> Sequence[EvalRow]:
        chosen = half(eval_set, self.half)
        require_answers(chosen)
        return chosen.rows[: self.limit]

    def _require_sound(self, sets: Sequence[EvalSet], plan: Plan) -> None:
        if len({folder_name(each.name) for each in sets}) < len(sets):
            raise InputError("two sets have the same name", hint="rename a file")
        if self.asking.adapter is not None:
            read_card(self.asking.adapter)
        labels = (self.index, self.asking.adapter_name)
        for eval_set in sets:
            if eval_set.name not in plan:
                raise InputError("the plan says nothing of this set", where=eval_set.name)
            for each in plan[eval_set.name]:
                method_named(each.method, dict(each.options))
                if (each.index, each.adapter) != labels:
                    raise InputError(
                        f"{each.method} {each.label} is of another index or adapter than the sweep",
                        hint="sweep each index and adapter apart",
                    )


@dataclass(frozen=True)
class _OnSet:
    """A sweep at work on one set."""

    sweep: Sweep
    index: Index
    name: str
    rows: Sequence[EvalRow]
    report: _Report
    tell: OnProgress

    def answer(self, configurations: Sequence[Configuration]) -> list[Configuration]:
        """Run what has no answers yet; returns the configurations that have them now."""
        made = self._made_with() | {"answer_tokens": self.sweep.asking.answer_tokens}
        wanted, total = {row.id for row in self.rows}, len(configurations) * len(self.rows)
        answered = []
        for number, each in enumerate(configurations):
            done = self._ledger.done(self._where, each, self._fingerprint)
            if done.answers and done.ids == wanted and _is_same(done.answers, made):
                self.report.kept += 1
            else:
                step = _step(self.tell, f"{self.name}: answering", number * len(self.rows), total)
                try:
                    facts = run(self.index, self.rows, each, self.sweep.asking, step)
                except InputError as error:
                    self.report.left_out.append(f"{self.name}, {each.method} {each.label}: {error}")
                    continue
                self._add([facts])
                self.report.answered += 1
            answered.append(each)
        return answered

    def time(self, configurations: Sequence[Configuration]) -> None:
        """Rounds over all configurations that still want timed queries."""
        if not self.sweep.timed_queries:
            return
        questions = [row.question for row in self.rows]
        made = self._made_with()
        times: dict[Configuration, dict[int, list[float]]] = {}
        for each in configurations:
            done = self._ledger.done(self._where, each, self._fingerprint)
            times[each] = {
                number: row["ttft_ms"]
                for number, row in done.rounds.items()
                if len(row["ttft_ms"]) == len(questions) and _is_same(row, made)
            }
        queries = len(questions) * math.ceil(self.sweep.timed_queries / len(questions))
        askers = {each: self.sweep.asking.asker(self.index, each) for each in configurations}
        while wanting := {c: a for c, a in askers.items() if self._wants_more(times[c])}:
            # a number that none of them has had: in a report a round replaces one of its number
            number = max((n for each in wanting for n in times[each]), default=-1) + 1
            timed = sum(map(len, times[next(iter(wanting))].values()))
            step = _step(self.tell, f"{self.name}: timing", timed, queries)
            found = timing_round(wanting, questions, number, self.sweep.asking.seed, step)
            self._add(found)
            for each, row in zip(wanting, found, strict=True):
                times[each][number] = row["ttft_ms"]
            self.report.timed += len(found)

    @property
    def _ledger(self) -> Ledger:
        return self.sweep.ledger

    @property
    def _where(self) -> tuple[str, str]:
        return self.name, self.sweep.half

    @property
    def _fingerprint(self) -> str:
        return self.index.backbone.fingerprint

    def _made_with(self) -> dict[str, Any]:
        asking = self.sweep.asking
        return {
            **made_with(self.index, asking.bench(self.index)),
            "answer_lead": asking.answer_lead,
        }

    def _add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._ledger.add([{"set": self.name, "half": self.sweep.half, **row} for row in rows])

    def _wants_more(self, rounds: Mapping[int, Sequence[float]]) -> bool:
        times = [milliseconds for of_round in rounds.values() for milliseconds in of_round]
        wanted = self.sweep.timed_queries
        if times and statistics.median(times) > SLOW_MS:
            wanted = min(wanted, self.sweep.slow_queries)
        return len(times) < wanted


def _is_same(row: Mapping[str, Any], made: Mapping[str, Any]) -> bool:
    """Whether a row was made with the same."""
    return all(row.get(name) == value for name, value in made.items())


def _step(tell: OnProgress, stage: str, before: int, total: int) -> Callable[[int, int], None]:
    def step(done: int, _: int) -> None:
        tell(stage, before + done, total)

    return step


@dataclass
class _Report:
    answered: int = 0
    timed: int = 0
    kept: int = 0
    left_out: list[str] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        return {**vars(self), "threads": torch.get_num_threads()}
