"""What is kept between prompts: runs in a tree, their KV in tiers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coinkv.boost.keys import Ids
from coinkv.boost.new_runs import new_runs
from coinkv.boost.plan import Part, Plan, Reuse, make_plan
from coinkv.boost.runs import Run
from coinkv.boost.tree import RunTree
from coinkv.errors import InputError
from coinkv.kv.block import KVBlock
from coinkv.model.fill import LiveCache
from coinkv.store.stats import TierStats
from coinkv.store.tiers import Tiers

_GRAM = 16
"""A run that shares so many consecutive tokens with a text holds a part of it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CacheStats:
    """What is kept.

    Attributes:
        runs: how many runs.
        tokens: their tokens.
        exact_runs: of the runs, those that can be reused exactly.
        tiers: bytes, budgets, hits and evictions.
    """

    runs: int
    tokens: int
    exact_runs: int
    tiers: TierStats


class ReuseCache:
    """Runs of earlier prompts and their KV. Safe to use from many threads.

    Several processes may share one folder: what one keeps, the others find.

    Args:
        tiers: where KV is kept.
        fingerprint: of the model.
        salt: of all hashes: model, codec and namespace.
    """

    def __init__(self, tiers: Tiers, fingerprint: str, salt: bytes) -> None:
        self._tiers = tiers
        self._fingerprint = fingerprint
        self._salt = salt
        self._owner = salt.hex()
        self._tree = RunTree()
        self._lock = threading.RLock()
        self._closed = False

    def plan(
        self, ids: Ids, cuts: Sequence[int], reuse: Reuse, movable: frozenset[str] | None = None
    ) -> Plan:
        """What of a prompt is kept; see `make_plan`.

        Args:
            ids: int32 `[tokens]`.
            cuts: where chunks begin.
            reuse: `all`, `exact` or `none`.
            movable: keys of the runs that may be moved; None: all.
        """
        with self._lock:
            self._refresh()
            return make_plan(self._tree, ids, cuts, self._salt, reuse=reuse, movable=movable)

    def read(self, part: Part) -> list[KVBlock] | None:
        """KV of a part's stretches, as encoded; None when one is kept no longer.

        The blocks may share the store's memory: copy them at once, never write into them.
        """
        blocks = []
        for stretch in part.stretches:
            read = self._tiers.get(stretch.run.key, [(stretch.start, stretch.end)])
            if read is None:
                with self._lock:
                    self._tree.drop(stretch.run.key)
                return None
            blocks.append(KVBlock.from_token_major(read.kv, read.positions))
        return blocks

    def keep(self, plan: Plan, ids: Ids, cuts: Sequence[int], live: LiveCache) -> int:
        """Keep what a pass has computed; returns the tokens kept.

        Only tokens that had no KV are kept; never a copy of what was reused. Behind moved KV the
        new KV is approximate, and never found as exact. A text that is kept behind `MOST_VARIANTS`
        contexts is not kept behind another, unless only exact reuse is asked for.

        Args:
            plan: what the pass followed.
            ids: int32, the prompt's tokens and those of the answer that stand in `live`.
            cuts: where the chunks of `ids` begin.
            live: KV of `ids` at positions 0 on, in order.
        """
        with self._lock:
            runs = list(new_runs(self._tree, plan, ids, cuts, self._fingerprint, self._salt))
        return sum(self._put(run, live, bounded=plan.reuse == "all") for run in runs)

    def keys(self) -> frozenset[str]:
        """Keys of all runs that are kept now."""
        with self._lock:
            self._refresh()
            return frozenset(run.key for run in self._tree)

    def pin(self, plan: Plan, *, pinned: bool = True) -> int:
        """Keep what a plan would use from being evicted, or no longer; returns its tokens."""
        change = self._tiers.pin if pinned else self._tiers.unpin
        tokens = 0
        for part in plan.parts:
            for stretch in part.stretches:
                change(stretch.run.key)
                tokens += len(stretch)
        return tokens

    def forget(self, ids: Ids | None) -> int:
        """Delete every run that holds a part of a text, or all; returns the runs deleted.

        A part is 16 consecutive tokens, or the whole text where it is shorter. Runs that continue
        such a run go with it: their KV was computed behind the text. Forgetting all removes also
        what nobody can find any more: blocks without a name, and books that were set aside.
        """
        with self._lock:
            self._refresh()
            begins = self._holding(ids) if ids is not None else {run.key: 0 for run in self._tree}
            doomed = begins.keys() | self._tree.behind_any(begins)
            for key in doomed:
                self._tree.drop(key)
                self._tiers.delete(key)
            if ids is None:
                self._tiers.purge()
        return len(doomed)

    def _holding(self, ids: Ids) -> dict[str, int]:
        """The runs that hold a part of a text, also where it goes on from run to run.

        Returns:
            the row where the text begins in each, by key.
        """
        size = min(_GRAM, len(ids))
        wanted, begins = _grams(ids, size), dict[str, int]()
        for run in self._tree:
            row = _found(run.ids, size, wanted)
            if row is not None:
                begins[run.key] = min(row, begins.get(run.key, row))
            before = self._tree.before(run, size - 1)
            led = [each.run.ids[each.start : each.end] for each in before]
            place = _found(np.concatenate([*led, run.ids[: size - 1]]), size, wanted)
            if place is None:
                continue
            begins[run.key] = 0
            for each in before:
                if place < len(each):
                    row = each.start + max(0, place)
                    begins[each.run.key] = min(row, begins.get(each.run.key, row))
                place -= len(each)
        return begins

    def stats(self) -> CacheStats:
        """What is kept."""
        with self._lock:
            self._refresh()
            runs = list(self._tree)
        return CacheStats(
            runs=len(runs),
            tokens=sum(map(len, runs)),
            exact_runs=sum(run.exact for run in runs),
            tiers=self._tiers.stats(),
        )

    def emptied(self) -> ReuseCache:
        """A cache for the same model and namespace with nothing in it; see `Tiers.emptied`."""
        return ReuseCache(self._tiers.emptied(), self._fingerprint, self._salt)

    def close(self) -> None:
        """Write down how often everything was used, and let go of the folder."""
        with self._lock:
            self._closed = True
            self._tiers.close()

    def _refresh(self) -> None:
        if self._closed:
            raise InputError("this engine is closed", hint="make another one")
        added, dropped = self._tiers.changes()
        for key in dropped:
            self._tree.drop(key)
        for key, note in added:
            run = Run.from_note(key, note)
            if run is not None and run.owner == self._owner:
                self._tree.add(run)

    def _put(self, run: Run, live: LiveCache, *, bounded: bool) -> int:
        block = live.view(run.start)[: len(run)].to(live.keys.dtype, "cpu")
        with self._lock:
            if self._closed or run.key in self._tree:
                return 0
            # without a bound, texts in ever new orders would flood the cache with copies
            if bounded and run.chunks and all(map(self._tree.crowded, dict(run.chunks).values())):
                return 0
            try:
                kept = self._tiers.put(
                    run.key, block.token_major(), block.positions, note=run.to_note()
                )
            except InputError as error:  # numbers that the codec cannot hold are no fault of a text
                _log.warning("KV is not kept: %s", error)
                return 0
            self._refresh()
        return len(run) if kept else 0


def _grams(ids: Ids, size: int) -> dict[bytes, int]:
    """All runs of so many consecutive tokens, each with the row where it first begins."""
    if len(ids) < size:
        return {}
    windows = np.lib.stride_tricks.sliding_window_view(ids, size)
    rows = len(windows) - 1
    return {window.tobytes(): rows - row for row, window in enumerate(windows[::-1])}


def _found(ids: Ids, size: int, wanted: Mapping[bytes, int]) -> int | None:
    """The first row where a wanted run of tokens begins."""
    grams = _grams(ids, size)
    return min((grams[gram] for gram in grams.keys() & wanted.keys()), default=None)
