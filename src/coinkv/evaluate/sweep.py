"""Sweep: many configurations over many sets, run by run into a ledger, resumable at every run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from coinkv.errors import IndexNotFoundError, InputError
from coinkv.evaluate.configuration import DEFAULT_INDEX, Configuration
from coinkv.evaluate.dataset import EvalRow, EvalSet, Half, half, require_answers, write_passages
from coinkv.evaluate.ledger import Ledger
from coinkv.evaluate.run import Asking, run
from coinkv.evaluate.timing import timing_round
from coinkv.model.backbone import Backbone
from coinkv.rag.build import BuildOptions, build
from coinkv.rag.index import Index, open_published

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
        Configurations whose k is above what an index holds are left out and named.

        Returns:
            JSON-ready facts: `answered` and `timed` rows added, `kept` runs that were there, and
            `left_out`, why a configuration could not be run.

        Raises:
            InputError: a set without answers or passages, or an unknown method or option.
        """
        tell = on_progress or (lambda stage, done, total: None)
        chosen = [(each, self._rows(each)) for each in sets]
        if len({each.name for each in sets}) < len(sets):
            raise InputError("two sets have the same name", hint="rename a file")
        report = _Report()
        backbone: Backbone | None = None
        for eval_set, rows in chosen:
            index = self._index(eval_set, backbone, tell)
            with closing(index.catalogue):
                backbone = index.backbone
                mine = list(self._runnable(index, eval_set, plan[eval_set.name], report))
                self._answer(index, eval_set, rows, mine, report, tell)
                self._time(index, eval_set, rows, mine, report, tell)
        return report.facts()

    def _rows(self, eval_set: EvalSet) -> Sequence[EvalRow]:
        require_answers(eval_set)
        return half(eval_set, self.half).rows[: self.limit]

    def _index(self, eval_set: EvalSet, backbone: Backbone | None, tell: OnProgress) -> Index:
        """The set's index, built from its passages where it is not there yet."""
        folder = self.folder / eval_set.name / self.index
        options = replace(self.build, model=backbone or self.build.model)
        try:
            open_published(folder)[0].close()
        except IndexNotFoundError:
            passages = self.folder / eval_set.name / "passages.jsonl"
            write_passages(eval_set, passages)
            build(passages, folder, options, tell)
        return Index.open(folder, model=options.model, device=options.device)

    def _runnable(
        self,
        index: Index,
        eval_set: EvalSet,
        configurations: Sequence[Configuration],
        report: _Report,
    ) -> Iterator[Configuration]:
        for each in configurations:
            try:
                self.asking.asker(index, each)
            except InputError as error:
                report.left_out.append(f"{eval_set.name}, {each.method} {each.label}: {error}")
            else:
                yield each

    def _answer(
        self,
        index: Index,
        eval_set: EvalSet,
        rows: Sequence[EvalRow],
        configurations: Sequence[Configuration],
        report: _Report,
        tell: OnProgress,
    ) -> None:
        where, wanted = (eval_set.name, self.half), {row.id for row in rows}
        total = len(configurations) * len(rows)
        for number, each in enumerate(configurations):
            if self.ledger.answered(where, each, index.backbone.fingerprint) == wanted:
                report.kept += 1
                continue
            facts = run(
                index,
                rows,
                each,
                self.asking,
                _step(tell, f"{eval_set.name}: answering", number * len(rows), total),
            )
            self.ledger.add([{"set": eval_set.name, "half": self.half, **facts}])
            report.answered += 1

    def _time(
        self,
        index: Index,
        eval_set: EvalSet,
        rows: Sequence[EvalRow],
        configurations: Sequence[Configuration],
        report: _Report,
        tell: OnProgress,
    ) -> None:
        """Rounds over all configurations that still want timed queries."""
        where, fingerprint = (eval_set.name, self.half), index.backbone.fingerprint
        questions = [row.question for row in rows]
        askers = {each: self.asking.asker(index, each) for each in configurations}
        times = {each: self.ledger.timed(where, each, fingerprint) for each in askers}
        number = min(map(len, times.values()), default=0)
        while wanting := {c: a for c, a in askers.items() if self._wants_more(times[c])}:
            timed = sum(map(len, times[next(iter(wanting))]))
            found = timing_round(
                wanting,
                questions,
                number,
                self.asking.seed,
                _step(tell, f"{eval_set.name}: timing", timed, self.timed_queries),
            )
            self.ledger.add([{"set": eval_set.name, "half": self.half, **row} for row in found])
            for each, row in zip(wanting, found, strict=True):
                times[each].append(row["ttft_ms"])
            number += 1
            report.timed += len(found)

    def _wants_more(self, rounds: Sequence[Sequence[float]]) -> bool:
        times = [milliseconds for of_round in rounds for milliseconds in of_round]
        wanted = self.timed_queries
        if times and statistics.median(times) > SLOW_MS:
            wanted = min(wanted, self.slow_queries)
        return len(times) < wanted


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
