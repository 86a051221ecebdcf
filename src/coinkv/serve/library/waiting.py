"""What waits to be made of the indexes: kept on disk, merged by index, fair between namespaces."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from coinkv.errors import BusyError, CoinKVError, IndexNotFoundError
from coinkv.serve.library.assignment import Assignment, AssignmentKind, Skipped
from coinkv.serve.library.fair_queue import FairQueue
from coinkv.serve.library.incoming import Change
from coinkv.serve.library.jobs import Job, JobBoard, new_job_id
from coinkv.serve.library.shelf import Shelf

MOST_WAITING = 256
"""Most jobs that wait; who comes then is asked to come again."""

_RETRY_SECONDS = 30.0
_DROPPED = "the index was deleted"


@dataclass(eq=False)
class Work:
    """Something to be made of an index.

    Attributes:
        shelf: the index.
        kind: what is to be made.
        job: id of the job; None for what no client has asked for.
        changes: what is to be changed, oldest first.
    """

    shelf: Shelf
    kind: AssignmentKind
    job: str | None
    changes: list[Change] = field(default_factory=list)

    def assignment(self) -> Assignment:
        """The same as the indexing process is told of it."""
        shelf = self.shelf
        changes = tuple(str(change.path) for change in self.changes)
        docs = shelf.record.docs if self.kind == "docs" else None
        return Assignment(self.kind, str(shelf.folder), str(shelf.home), changes, docs)


class Waiting:
    """The queue of a server's works, and the jobs that clients see of them. Safe in threads.

    A change joins the last work of its index if that waits and is of the same kind; the works of an
    index are made in order, those of several namespaces in turn.

    Args:
        board: told of every job.
        on_new: called when there is more to do.
    """

    def __init__(self, board: JobBoard, on_new: Callable[[], None]) -> None:
        self._board, self._on_new = board, on_new
        self._queue: FairQueue[Work] = FairQueue()
        self._running: Work | None = None
        self._lock = threading.Lock()

    def restore(self, shelf: Shelf) -> None:
        """Queue what waited in an index when the last server ended, under the same job ids."""
        for change in shelf.incoming.changes():
            try:
                keys = tuple(str(row["id"]) for row in change.rows() if "id" in row)
            except CoinKVError:
                keys = ()  # its job will say what is wrong
            with self._lock:
                self._put(shelf, change, keys)

    def follow(self, shelf: Shelf) -> Job:
        """Queue that an index be brought up to date with the folder it follows."""
        with self._lock:
            return self._queued(Work(shelf, "docs", new_job_id()))

    def submit(
        self,
        shelf: Shelf,
        kind: Literal["add", "remove"],
        rows: Sequence[Mapping[str, Any]],
        skipped: Sequence[Skipped] = (),
    ) -> Job:
        """Keep a change for good, and queue it.

        Raises:
            BusyError: too much waits already.
            IndexNotFoundError: the index has just been dropped.
            StorageError: the change cannot be kept.
        """
        keys = tuple(str(row["id"]) for row in rows)
        with self._lock:  # between choosing a work and joining it, that must not start
            if shelf.dropped:
                raise IndexNotFoundError(_DROPPED, where=shelf.record.name)
            last = self._last(shelf)
            joins = last is not None and last.kind == kind and last.job is not None
            if not joins and len(self._queue) >= MOST_WAITING:
                raise BusyError(
                    "too many uploads wait to be indexed", retry_after_seconds=_RETRY_SECONDS
                )
            job_id = last.job if joins and last is not None and last.job else new_job_id()
            self._put(shelf, shelf.incoming.write(kind, job_id, rows), keys)
            job = self._board.find(job_id)
            return self._board.change(job_id, skipped=(*job.skipped, *skipped))

    def purge(self, shelf: Shelf, generation: int) -> None:
        """Queue that what a generation has taken from readers goes from the disk, too.

        Raises:
            StorageError: that cannot be kept in mind.
        """
        with self._lock:
            change = shelf.incoming.write("purge", new_job_id(), [{"generation": generation}])
            self._put(shelf, change, ())

    def take(self) -> Work | None:
        """The next work; it counts as running until `end`.

        Nothing is published on an index while an answer uses a generation before the newest: the
        disk keeps only two.
        """
        with self._lock:
            self._running = self._queue.take(lambda work: work.shelf.generations.settled)
            return self._running

    def end(self, work: Work, **changes: Any) -> None:
        """A work was made or given up: its changes go from the disk, its job becomes `changes`."""
        for change in work.changes:
            change.finish()
        with self._lock:
            self._running = None
            self._ended(work, changes)

    def leave(self) -> None:
        """The running work is left for the next server."""
        with self._lock:
            self._running = None

    def drop(self, shelf: Shelf) -> bool:
        """Forget what waits for a dropped index; whether something of it is running."""
        with self._lock:
            for work in self._queue.remove(lambda work: work.shelf is shelf):
                self._ended(work, {"state": "failed", "error": _DROPPED})
            return self._running is not None and self._running.shelf is shelf

    def _ended(self, work: Work, changes: Mapping[str, Any]) -> None:
        if work.job is None:
            return
        shelf = work.shelf
        shelf.jobs = tuple(job for job in shelf.jobs if job != work.job)
        shelf.last_job = work.job
        self._board.change(work.job, **changes)

    def _put(self, shelf: Shelf, change: Change, keys: tuple[str, ...]) -> None:
        """Queue a change, behind the others of its job if that waits; the lock is held."""
        if change.kind == "purge":
            self._queue.put(shelf.record.namespace, Work(shelf, "purge", None, [change]))
            self._on_new()
            return
        last = self._last(shelf)
        if last is None or last.job != change.job:
            self._queued(Work(shelf, change.kind, change.job, [change]), keys)
            return
        last.changes.append(change)
        job = self._board.find(change.job)
        self._board.change(job.id, documents=tuple(dict.fromkeys((*job.documents, *keys))))

    def _queued(self, work: Work, keys: tuple[str, ...] = ()) -> Job:
        shelf, record = work.shelf, work.shelf.record
        kind: Any = work.kind
        job = Job(
            id=work.job or new_job_id(),
            namespace=record.namespace,
            index=record.name,
            kind=kind,
            documents=keys,
            created=work.changes[0].created if work.changes else int(time.time()),
        )
        self._board.put(job)
        shelf.jobs = (*shelf.jobs, job.id)
        self._queue.put(record.namespace, work)
        self._on_new()
        return job

    def _last(self, shelf: Shelf) -> Work | None:
        """The last work of an index that waits."""
        waiting = [work for work in self._queue if work.shelf is shelf]
        return waiting[-1] if waiting else None
