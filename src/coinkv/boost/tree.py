"""The tree of runs: which kept tokens continue which, found by what stands before or by content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from coinkv.boost.keys import Ids
from coinkv.boost.runs import Run

MOST_VARIANTS = 4
"""Most places a chunk's content is found at: one kept copy each, with another left context."""


@dataclass(frozen=True)
class Place:
    """A row of a run."""

    run: Run
    row: int


@dataclass(frozen=True)
class Stretch:
    """Rows `[start, end)` of one run."""

    run: Run
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


class RunTree:
    """All runs that are kept, in memory. Not safe for use from two threads at once.

    Runs form trees: a run's children are encoded behind its last token, or behind an earlier one
    where two prompts part. Reuse walks along them in both directions, token by token, so it does
    not end where chunks do.
    """

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._behind: dict[str, dict[str, Run]] = {}
        self._continued: dict[tuple[str, int], dict[str, Run]] = {}
        self._content: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    def __contains__(self, key: object) -> bool:
        return key in self._runs

    def add(self, run: Run) -> None:
        """Take a run in."""
        if run.key in self._runs:
            return
        self._runs[run.key] = run
        if run.exact:
            self._behind.setdefault(run.before, {})[run.key] = run
        if run.parent is not None:
            at = run.parent, run.parent_tokens
            self._continued.setdefault(at, {})[run.key] = run
        for row, content in run.chunks:
            self._content.setdefault(content, {}).setdefault(run.key, row)

    def behind_any(self, begins: Mapping[str, int]) -> set[str]:
        """Keys of all runs that were encoded behind a text.

        Args:
            begins: the row where the text begins, by the keys of the runs that hold it.
        """
        children: dict[str, list[Run]] = {}
        for run in self._runs.values():
            children.setdefault(run.parent or "", []).append(run)
        found: set[str] = set()
        left = dict(begins)
        while left:
            parent, row = left.popitem()
            for run in children.get(parent, ()):
                if run.parent_tokens > row and run.key not in found:
                    found.add(run.key)
                    left[run.key] = -1  # all of it stands behind the text
        return found

    def drop(self, key: str) -> None:
        """Forget a run."""
        run = self._runs.pop(key, None)
        if run is None:
            return
        _forget(self._behind, run.before, key)
        _forget(self._continued, (run.parent or "", run.parent_tokens), key)
        for _, content in run.chunks:
            _forget(self._content, content, key)

    def variants(self, content: str) -> list[Place]:
        """Where a chunk of this content is kept: at most `MOST_VARIANTS` places."""
        places = islice(self._content.get(content, {}).items(), MOST_VARIANTS)
        return [Place(self._runs[key], row) for key, row in places]

    def crowded(self, content: str) -> bool:
        """Whether another copy of this content would be one too many."""
        return len(self._content.get(content, {})) >= MOST_VARIANTS

    def before(self, run: Run, tokens: int) -> list[Stretch]:
        """The last so many tokens that a run was encoded behind, as far as they are kept."""
        way: list[Stretch] = []
        row, parent = run.parent_tokens, self._runs.get(run.parent or "")
        while parent is not None and tokens > 0:
            length = min(row, tokens)
            way.append(Stretch(parent, row - length, row))
            tokens -= length
            row, parent = parent.parent_tokens, self._runs.get(parent.parent or "")
        return way[::-1]

    def behind(self, before: str, ids: Ids) -> Stretch | None:
        """The run behind these very tokens that goes on longest with `ids`; exact by its digest.

        Args:
            before: digest of what the tokens stand behind.
            ids: int32, the tokens wanted.
        """
        return _longest(self._behind.get(before, {}), ids)

    def along(self, place: Place, ids: Ids) -> list[Stretch]:
        """The longest way from a row on, along its run and what continues it.

        Args:
            place: where to begin.
            ids: int32, the tokens wanted.
        """
        way: list[Stretch] = []
        run, row = place.run, place.row
        step: Stretch | None = Stretch(run, row, row + _equal(run.ids[row:], ids))
        while step is not None and len(step):
            way.append(step)
            ids = ids[len(step) :]
            step = _longest(self._continued.get((step.run.key, step.end), {}), ids)
        return way

    def backward(self, place: Place, ids: Ids) -> list[Stretch]:
        """The longest way back from a row, along its run and what it continues; in reading order.

        Args:
            place: the row that the way ends before.
            ids: int32, the tokens that stand before it.
        """
        way: list[Stretch] = []
        run: Run | None = place.run
        row = place.row
        while run is not None and len(ids):
            length = _equal(run.ids[:row][::-1], ids[::-1])
            if length:
                way.append(Stretch(run, row - length, row))
            if length < row:
                break
            ids = ids[: len(ids) - length]
            row = run.parent_tokens
            run = self._runs.get(run.parent or "")
        return way[::-1]


def _longest(runs: dict[str, Run], ids: Ids) -> Stretch | None:
    equal = {key: _equal(run.ids, ids) for key, run in runs.items()}
    best = max(equal, key=lambda key: (equal[key], key), default="")
    return Stretch(runs[best], 0, equal[best]) if equal.get(best) else None


def _equal(first: Ids, second: Ids) -> int:
    """How many tokens two runs have in common from their beginning on."""
    count = min(len(first), len(second))
    differ = np.flatnonzero(first[:count] != second[:count])
    return int(differ[0]) if len(differ) else count


def _forget(index: dict[Any, dict[str, Any]], name: Any, key: str) -> None:
    held = index.get(name, {})
    held.pop(key, None)
    if not held:
        index.pop(name, None)
