"""Going on where a disk refuses: the refusal is counted and logged, and something else returned."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from coinkv.errors import StorageError

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Refusals:
    """Reads and writes that a disk refused. The first of several in a row is logged as a warning.

    Attributes:
        reads: how many reads were refused.
        writes: how many writes.
    """

    def __init__(self) -> None:
        self.reads = 0
        self.writes = 0
        self._failing: set[str] = set()
        self._lock = threading.Lock()

    def read(self, work: Callable[[], _T], instead: _T) -> _T:
        """What `work` returns, or `instead` where it raises a `StorageError`."""
        return self._tried("read", work, instead)

    def write(self, work: Callable[[], _T], instead: _T) -> _T:
        """The same for work that writes."""
        return self._tried("write", work, instead)

    def _tried(self, kind: str, work: Callable[[], _T], instead: _T) -> _T:
        try:
            done = work()
        except StorageError as error:
            with self._lock:
                self.reads += kind == "read"
                self.writes += kind == "write"
                level = logging.DEBUG if kind in self._failing else logging.WARNING
                self._failing.add(kind)
            _log.log(level, "the disk tier is passed over: %s", error)
            return instead
        self._failing.discard(kind)
        return done
