"""A share of the time: a process is stopped and continued while answers are being computed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

PERIOD_SECONDS = 0.5
"""While answers are computed, of every so many seconds the process runs its share."""

_LOOK_SECONDS = 0.02
_CAN_STOP = hasattr(signal, "SIGSTOP")


class Share:
    """Lets a child process run freely while nothing else is computed, else for a share of the time.

    An encoder's pass cannot be interrupted from within, so the whole process is stopped: within
    about 20 ms of the first answer, and never for longer than one period at a time. That is also
    the longest that a reader of the index can wait for a lock the process holds: it takes those of
    SQLite's log for moments only, and every period gives it time to leave them. A system without
    SIGSTOP (Windows) leaves it at the process's low priority and single thread.

    Args:
        pid: number of a child process that is not waited for before this is closed.
        busy: whether answers are being computed now; asked many times a second, from a thread.
        share: of each period, more than 0; 1 never stops the process.
    """

    def __init__(self, pid: int, busy: Callable[[], bool], share: float) -> None:
        self._pid, self._busy, self._share = pid, busy, share
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._pace, name="coinkv-share", daemon=True)

    def __enter__(self) -> Self:
        if _CAN_STOP and self._share < 1:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _pace(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            while not self._ended.is_set() and self._busy():
                self._stop((1 - self._share) * PERIOD_SECONDS)
                self._ended.wait(self._share * PERIOD_SECONDS)

    def _stop(self, seconds: float) -> None:
        """Keep the process from running for a while, or until no answer is computed any more."""
        until = time.monotonic() + seconds
        self._signal(signal.SIGSTOP)
        try:
            while self._busy() and (left := until - time.monotonic()) > 0:
                if self._ended.wait(min(_LOOK_SECONDS, left)):
                    break
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, which: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, which)
