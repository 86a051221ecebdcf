"""The decoding loop: every stream advances by one token a step, and may join or leave at any."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from coinkv.errors import CoinKVError
from coinkv.model.backbone import Backbone
from coinkv.model.rows import Rows
from coinkv.model.turns import Caller, calling
from coinkv.serve.scheduler.job import Job
from coinkv.serve.scheduler.observer import Observer

_LENGTHS = (1024, 4096)
"""Contexts of alike lengths are decoded together: all rows are as long as the longest."""

_log = logging.getLogger(__name__)


class _Streams(Caller):
    streams = True

    @property
    def wanted(self) -> bool:
        return True

    def require_wanted(self) -> None:
        """Somebody always reads; rows that nobody reads leave before a step."""


@dataclass(eq=False)
class _Group:
    """Streams of one backbone that are decoded together: `rows[n]` is a choice of a job."""

    rows: Rows
    who: list[tuple[Job, int]] = field(default_factory=list)

    def rows_of(self, job: Job) -> list[int]:
        """Rows of a job, the last first: the order in which they can be removed."""
        return [row for row in reversed(range(len(self.who))) if self.who[row][0] is job]

    def remove(self, row: int) -> None:
        """Let a row go; the last one takes its number."""
        self.rows.remove(row)
        self.who[row] = self.who[-1]
        self.who.pop()


class DecodingLoop:
    """Decodes in a thread of its own.

    Args:
        on_end: told of every job whose choices have all ended, or that is wanted no longer; its
            cache then holds the KV of its first choice's tokens, too.
        on_failure: told of every job that an unexpected error ends.
        observer: told of tokens.
    """

    def __init__(
        self,
        on_end: Callable[[Job], None],
        on_failure: Callable[[Job, CoinKVError], None],
        observer: Observer,
    ) -> None:
        self._on_end, self._on_failure, self._observer = on_end, on_failure, observer
        self._wake = threading.Condition()
        self._joining: list[Job] = []
        self._closed = False
        self._groups: dict[tuple[Backbone, int], _Group] = {}
        self._thread = threading.Thread(target=self._run, name="coinkv-decoding", daemon=True)
        self._thread.start()

    def join(self, job: Job) -> None:
        """Decode a job's choices from the next step on."""
        with self._wake:
            self._joining.append(job)
            self._wake.notify()

    def close(self) -> None:
        """End after the current step."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._joining or self._groups or self._closed):
                    self._wake.wait()
                if self._closed:
                    return
                joining, self._joining = self._joining, []
            for job in joining:
                self._add(job)
            for key, group in list(self._groups.items()):
                self._step(group)
                if not group.who:
                    del self._groups[key]

    def _add(self, job: Job) -> None:
        begun = job.begun
        if begun is None:
            raise TypeError("a job joins when its prompt is computed")
        backbone = job.backbone
        length = sum(begun.cache.capacity > limit for limit in _LENGTHS)
        group = self._groups.setdefault((backbone, length), _Group(Rows(backbone)))
        try:
            for number in job.going:
                group.rows.add(begun.cache)
                group.who.append((job, number))
        except Exception as error:  # noqa: BLE001 - no memory: this one request fails
            self._fail([job], error)
            for row in group.rows_of(job):
                group.remove(row)

    def _step(self, group: _Group) -> None:
        for job in {job for job, _ in group.who if not job.wanted}:
            self._leave(group, job)
        if not group.who:
            return
        tokens = [job.going[number].token for job, number in group.who]
        try:
            with calling(_Streams()):
                logits = group.rows.step(tokens)
            ended = [
                row
                for row, (job, number) in enumerate(group.who)
                if not job.take(number, logits[row])
            ]
        except Exception as error:  # noqa: BLE001 - other streams go on, whatever a device does
            self._fail({job for job, _ in group.who}, error)
            group.rows, group.who = Rows(group.rows.backbone), []
            return
        for kind, count in Counter(job.order.kind for job, _ in group.who).items():
            self._observer.token(kind, count)
        for row in reversed(ended):
            job = group.who[row][0]
            self._remove(group, row)
            if not job.going:
                self._on_end(job)

    def _leave(self, group: _Group, job: Job) -> None:
        """Let a job go that nobody wants any more."""
        for row in group.rows_of(job):
            self._remove(group, row)
        job.going.clear()
        self._on_end(job)

    def _remove(self, group: _Group, row: int) -> None:
        job, number = group.who[row]
        if number == 0 and job.begun is not None:
            cache = job.begun.cache
            cache.append(group.rows.block(row, cache.length))
        group.remove(row)

    def _fail(self, jobs: list[Job] | set[Job], error: Exception) -> None:
        _log.exception("a decoding step failed", exc_info=error)
        for job in jobs:
            self._on_failure(job, CoinKVError("the model failed while it answered"))
