"""Going on where a disk refuses: the refusal is counted and logged, and something else returned."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from coinkv.errors import StorageError

QUIET_SECONDS = 60.0
REST_SECONDS = 60.0
_LONG_SECONDS = 2.0
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Refusals:
    """Reads and writes that a disk refused; logged as a warning once in `QUIET_SECONDS`.

    A refusal that took long (books that another process holds) is not waited for again: for
    `REST_SECONDS` everything is refused at once.

    Attributes:
        reads: how many reads were refused.
        writes: how many writes.
    """

    def __init__(self) -> None:
        self.reads = 0
        self.writes = 0
        self._said: dict[str, float] = {}
        self._rests_until = 0.0
        self._lock = threading.Lock()

    def read(self, work: Callable[[], _T], instead: _T) -> _T:
        """What `work` returns, or `instead` where it raises a `StorageError`."""
        return self._tried("read", work, instead)

    def write(self, work: Callable[[], _T], instead: _T) -> _T:
        """The same for work that writes."""
        return self._tried("write", work, instead)

    def _tried(self, kind: str, work: Callable[[], _T], instead: _T) -> _T:
        began = time.monotonic()
        if began < self._rests_until:
            self._refused(kind)
            return instead
        try:
            return work()
        except StorageError as error:
            now = time.monotonic()
            if now - began > _LONG_SECONDS:
                self._rests_until = now + REST_SECONDS
            said = self._refused(kind, now)
            _log.log(
                logging.DEBUG if said else logging.WARNING,
                "the disk tier is passed over: %s",
                error,
            )
            return instead

    def _refused(self, kind: str, now: float | None = None) -> bool:
        """Count a refusal; whether one of its kind was logged lately."""
        with self._lock:
            self.reads += kind == "read"
            self.writes += kind == "write"
            if now is None:
                return True
            lately = now - self._said.get(kind, -QUIET_SECONDS) < QUIET_SECONDS
            if not lately:
                self._said[kind] = now
            return lately
