"""A lap clock: every moment between start and stop belongs to exactly one named stage."""

from __future__ import annotations

import time
from collections.abc import Callable


class StageClock:
    """Seconds per stage of one question; the stages add up to the wall clock by construction.

    Args:
        synchronize: called before each reading, so that queued device work counts where it was
            caused (paper arXiv 2608.07458, appendix E, "Latency Measurement").
    """

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self.stages_seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Everything since the last lap was `stage`."""
        self._synchronize()
        now = time.perf_counter()
        self.stages_seconds[stage] = self.stages_seconds.get(stage, 0.0) + now - self._last
        self._last = now

    @property
    def total_seconds(self) -> float:
        """From the start to the last lap."""
        return sum(self.stages_seconds.values())
