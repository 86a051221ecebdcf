"""Jobs: what becomes of an upload or a removal, for clients that ask and for those that watch."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from coinkv.errors import JobNotFoundError
from coinkv.serve.library.assignment import Skipped

JobKind = Literal["add", "remove", "docs"]
JobState = Literal["waiting", "running", "done", "failed"]

_MOST_ENDED = 1000


@dataclass(frozen=True)
class Job:
    """A job as it is now.

    Attributes:
        id: the same before and after a restart of the server, as long as the job has not ended.
        namespace: whom it belongs to.
        index: name of its index.
        kind: documents are added (or replaced), removed, or brought up to date with a folder.
        state: where it stands.
        stage: what is being done.
        done: of that, how many.
        total: of how many.
        documents: keys of the documents concerned.
        error: why it failed.
        created: seconds since 1970.
        finished: the same, when it has ended.
        skipped: files of which nothing was taken.
    """

    id: str
    namespace: str
    index: str
    kind: JobKind
    state: JobState = "waiting"
    stage: str = ""
    done: int = 0
    total: int = 0
    documents: tuple[str, ...] = ()
    error: str | None = None
    created: int = 0
    finished: int | None = None
    skipped: tuple[Skipped, ...] = ()

    @property
    def ended(self) -> bool:
        """Nothing more will happen."""
        return self.state in ("done", "failed")


def new_job_id() -> str:
    """An id that nobody guesses."""
    return f"job_{secrets.token_hex(12)}"


@dataclass(frozen=True, eq=False)
class _Watcher:
    """A client that waits in an event loop for the next change of a job."""

    loop: asyncio.AbstractEventLoop
    changed: asyncio.Event


class JobBoard:
    """All jobs of a server, and whoever watches them. Safe to use from threads.

    The last 1,000 that have ended are remembered; a restart forgets them.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._watchers: dict[str, set[_Watcher]] = {}
        self._lock = threading.Lock()

    def put(self, job: Job) -> Job:
        """A new job."""
        with self._lock:
            self._jobs[job.id] = job
        return job

    def change(self, job_id: str, **changes: Any) -> Job:
        """A job that has become another; those who watch it are told."""
        with self._lock:
            job = replace(self._jobs[job_id], **changes)
            if job.ended and job.finished is None:
                job = replace(job, finished=int(time.time()))
                self._jobs.move_to_end(job_id)
            self._jobs[job_id] = job
            if job.ended:
                self._forget()
            watchers = list(self._watchers.get(job_id, ()))
        for watcher in watchers:
            with suppress(RuntimeError):  # its loop has ended, and the client with it
                watcher.loop.call_soon_threadsafe(watcher.changed.set)
        return job

    def get(self, namespace: str, job_id: str) -> Job:
        """A job of a namespace.

        Raises:
            JobNotFoundError: it has none of this id (any more).
        """
        with self._lock:
            job = self._jobs.get(job_id)
        if job is None or job.namespace != namespace:
            raise JobNotFoundError(f"there is no job {job_id[:80]!r}")
        return job

    def find(self, job_id: str) -> Job:
        """A job that has not been forgotten, whoever it belongs to."""
        with self._lock:
            return self._jobs[job_id]

    def all(self) -> tuple[Job, ...]:
        """The jobs of all namespaces."""
        with self._lock:
            return tuple(self._jobs.values())

    async def watch(self, namespace: str, job_id: str) -> AsyncGenerator[Job, None]:
        """The job as it is now, then whenever it has changed, up to its end.

        Changes that come faster than they are taken are told as one. Whoever stops listening is
        forgotten at once.

        Raises:
            JobNotFoundError: the namespace has no such job.
        """
        watcher = _Watcher(asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._watchers.setdefault(job_id, set()).add(watcher)
        try:
            while True:
                watcher.changed.clear()
                job = self.get(namespace, job_id)
                yield job
                if job.ended:
                    return
                await watcher.changed.wait()
        finally:
            self._leave(job_id, watcher)

    def _leave(self, job_id: str, watcher: _Watcher) -> None:
        with self._lock:
            watchers = self._watchers.get(job_id, set())
            watchers.discard(watcher)
            if not watchers:
                self._watchers.pop(job_id, None)

    def _forget(self) -> None:
        ended = [job.id for job in self._jobs.values() if job.ended]
        for job_id in ended[: max(0, len(ended) - _MOST_ENDED)]:
            del self._jobs[job_id]
