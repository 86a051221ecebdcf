"""The crew: the workers of a layout, loaded one after the other and closed together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from coinkv.errors import CoinKVError
from coinkv.evaluate.boost.systems import Conditions, System
from coinkv.evaluate.boost.worker import Worker


class Crew:
    """Systems that are ready to answer; those that cannot any more are dismissed with a reason.

    Args:
        conditions: what they are started with.
        peers: interpreters of the peers' environments.
        patience_seconds: how long one may be silent.

    Attributes:
        workers: by name of the system.
        failed: why others are not among them.
    """

    def __init__(
        self, conditions: Conditions, peers: Mapping[str, Path], patience_seconds: float
    ) -> None:
        self.workers: dict[str, Worker] = {}
        self.failed: dict[str, str] = {}
        self._conditions, self._peers = conditions, peers
        self._patience = patience_seconds

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self.workers.values():
            worker.close(**({} if kind is None else {"seconds_to_leave": 0}))
        self.workers.clear()

    def start(self, systems: Sequence[System], on_start: Callable[[int], None]) -> None:
        """Load systems, one when the one before is idle.

        A system may time itself when it is loaded, and two that load at once would mislead it.
        """
        for number, system in enumerate(systems):
            on_start(number)
            try:
                self.workers[system.name] = Worker(
                    system.name,
                    self._conditions.command(system, self._peers.get(system.peer or "")),
                    self._conditions.environment(system),
                    self._patience,
                )
            except CoinKVError as error:
                self.failed[system.name] = error.what

    def dismiss(self, name: str, why: str) -> None:
        """Close a worker that failed; of this crew it answers nothing any more."""
        self.failed[name] = why
        self.workers.pop(name).close(seconds_to_leave=0)
