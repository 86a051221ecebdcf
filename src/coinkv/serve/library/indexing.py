"""Indexing: the one thread that has changes made by a process, and shows questions the result."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from coinkv.errors import CoinKVError
from coinkv.serve.library.assignment import Outcome
from coinkv.serve.library.contents import generation_of
from coinkv.serve.library.indexer import CancelledError, Indexer
from coinkv.serve.library.jobs import JobBoard
from coinkv.serve.library.shelf import Shelf
from coinkv.serve.library.shelves import Shelves
from coinkv.serve.library.waiting import Waiting, Work
from coinkv.serve.settings import ServeSettings

IDLE_SECONDS = 60.0
"""How long the indexing process waits, model loaded, for another job."""
MOST_OPEN = 32
"""Most indexes kept open that nobody uses."""

_LOOK_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Indexing:
    """Makes what waits, one work at a time.

    Args:
        settings: the model, and the share of the time that indexing may take.
        shelves: the indexes.
        board: told how jobs go.
        busy: whether answers are being computed now.
        on_published: called, from a thread, when questions see something new.
    """

    def __init__(
        self,
        settings: ServeSettings,
        shelves: Shelves,
        board: JobBoard,
        busy: Callable[[], bool],
        on_published: Callable[[], None],
    ) -> None:
        self._shelves, self._board, self._on_published = shelves, board, on_published
        self._wake = threading.Event()
        self.waiting = Waiting(board, self._wake.set)
        self._indexer = Indexer(settings, busy)
        self._dropped: list[Shelf] = []
        self._closing = False
        # a daemon: where nobody calls `close`, the process must be able to end
        self._thread = threading.Thread(target=self._run, name="coinkv-indexing", daemon=True)

    def start(self) -> None:
        """Open the indexes, and go on with what waited when the last server ended."""
        for shelf in self._shelves:
            self.waiting.restore(shelf)
        self._thread.start()

    def close(self) -> None:
        """Stop; what is not made yet is left for the next server."""
        self._closing = True
        self._indexer.kill()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def wake(self) -> None:
        """Something may be possible now that was not before."""
        self._wake.set()

    def drop(self, shelf: Shelf) -> None:
        """Have nothing more made of a dropped index, and delete it when nothing uses it."""
        if self.waiting.drop(shelf):
            self._indexer.kill()
        else:
            shelf.bury()
        self._dropped.append(shelf)
        self._wake.set()

    def _run(self) -> None:
        for shelf in list(self._shelves)[:MOST_OPEN]:
            if shelf.contents.documents and not self._closing:
                shelf.renew()
        last = time.monotonic()
        while not self._closing:
            self._tidy()
            work = self.waiting.take()
            if work is not None:
                self._perform(work)
                last = time.monotonic()
                continue
            if time.monotonic() - last > IDLE_SECONDS:
                self._indexer.end()
            self._wake.wait(_LOOK_SECONDS if self._indexer.running else None)
            self._wake.clear()
        self._indexer.end()

    def _tidy(self) -> None:
        """Open what other processes have published, close what nobody uses, delete what is gone."""
        shelves = list(self._shelves)
        for shelf in shelves:
            if shelf.stale and shelf.generations.settled:
                shelf.renew()
        idle = [s for s in shelves if s.generations.is_open and s.generations.unused]
        idle.sort(key=lambda shelf: shelf.generations.used)
        for shelf in idle[: max(0, len(idle) - MOST_OPEN)]:
            shelf.generations.shut()
        for shelf in list(self._dropped):
            shelf.bury()
            if not shelf.home.exists():
                self._dropped.remove(shelf)

    def _perform(self, work: Work) -> None:
        """Have one work done, and show what came of it before its job counts as done."""
        shelf, job = work.shelf, work.job

        def step(stage: str, done: int, total: int) -> None:
            if job is not None:
                self._board.change(job, state="running", stage=stage, done=done, total=total)

        step("starting", 0, 1)
        try:
            outcome = self._indexer.run(
                work.assignment(), step, lambda: self._closing or shelf.dropped
            )
            self._show(work, outcome)
        except CancelledError:
            if shelf.dropped:
                self.waiting.end(work, state="failed", error="the index was deleted")
            else:
                self.waiting.leave()
        except CoinKVError as error:
            why = f"{error.what}; {error.hint}" if error.hint else error.what
            self._give_up(work, why)
        except Exception as error:  # noqa: BLE001 - the thread must live, whatever one job does
            _log.exception("indexing broke down over a job")
            self._give_up(work, f"indexing broke down ({type(error).__name__})")

    def _show(self, work: Work, outcome: Outcome) -> None:
        shelf = work.shelf
        if work.kind == "purge":
            shelf.count()
            shelf.generations.relabel(shelf.contents.generation)
        elif shelf.contents.generation != outcome.generation:
            shelf.renew()
            self._on_published()
        if work.kind == "remove" and outcome.published:
            # kept in mind before the removal counts as made: what is removed goes from the disk
            self.waiting.purge(shelf, outcome.generation)
        told: dict[str, Any] = {"state": "done", "stage": "done", "documents": outcome.documents}
        if work.job is not None:
            job = self._board.find(work.job)
            told |= {"done": job.total, "skipped": (*job.skipped, *outcome.skipped)}
        self.waiting.end(work, **told)

    def _give_up(self, work: Work, why: str) -> None:
        """A job that failed is over: the index stays as it was, nothing is tried again."""
        shelf = work.shelf
        try:
            if generation_of(shelf.folder) != shelf.contents.generation:
                shelf.renew()  # a part of it had been published
        except CoinKVError as error:
            shelf.fail(error)
        self.waiting.end(work, state="failed", error=why)
