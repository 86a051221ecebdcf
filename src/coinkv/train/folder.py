"""The folder of a run: one process group at a time, one run for good, and what it came to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from coinkv.errors import CoinKVError, StorageError, TrainingError
from coinkv.store.atomic import publish
from coinkv.train.checkpoint import BEST, CHECKPOINTS, unwritable_hint
from coinkv.train.journal import JOURNAL
from coinkv.train.processes import Processes
from coinkv.train.sealed import sealed, unsealed

RUN, REPORT = "run.json", "report.json"
"""What a run was begun with, and what it came to."""
ADAPTER, MODEL = "adapter", "model"
"""Folders of what was learned."""
_LOCK = "run.lock"
_MOST_NAMED = 4


class RunFolder:
    """A run's folder, kept by the main process of those that share the run.

    What the main process finds wrong is raised in all of them.

    Args:
        path: the folder.
        processes: all that share the run.
    """

    def __init__(self, path: Path, processes: Processes) -> None:
        self.path, self._processes = path, processes

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One run at a time in a folder, made if missing; a killed one leaves no lock behind.

        Raises:
            TrainingError: another process trains here.
            StorageError: the folder cannot be written.
        """
        lock = FileLock(self.path / _LOCK)
        self.by_main(lambda: self._take(lock))
        try:
            yield
        finally:
            lock.release()

    def _take(self, lock: FileLock) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout as error:
            raise TrainingError(
                "another process trains here",
                where=self.path,
                hint="wait for it, or name another folder",
            ) from error
        except OSError as error:
            raise StorageError(
                f"cannot write here: {error.strerror or error}",
                where=self.path,
                hint="name a folder you may write to",
            ) from error

    def begin(self, begun: Mapping[str, Any]) -> None:
        """Begin a run, or make sure that it is the one the folder holds.

        A run that has kept nothing yet gives way to another.

        Args:
            begun: JSON-ready, all that decides what the run learns.

        Raises:
            TrainingError: the folder holds another run, or what is of none.
            StorageError: it cannot be written.
        """
        self.by_main(lambda: self._begin(json.loads(json.dumps(begun))))

    def _begin(self, begun: dict[str, Any]) -> None:
        path = self.path / RUN
        if not path.exists():
            self._require_unused()
        elif self._holds(ADAPTER, MODEL) or any((self.path / CHECKPOINTS).glob("*")):
            other = list(_differences(_read(path), begun))
            if other:
                raise TrainingError(
                    f"this folder holds another run: {', '.join(other[:_MOST_NAMED])}"
                    + (", ..." if len(other) > _MOST_NAMED else ""),
                    where=path,
                    hint="give the options it was begun with, or train in another folder",
                )
            return
        self._write(RUN, lambda: json.dumps(begun, indent=2) + "\n")

    def _require_unused(self) -> None:
        found = self._holds(ADAPTER, MODEL, CHECKPOINTS, BEST, JOURNAL, REPORT)
        if found:
            raise TrainingError(
                f"holds {', '.join(found)}, but no {RUN}: it is no run's folder",
                where=self.path,
                hint="train in a new folder",
            )

    def _holds(self, *names: str) -> list[str]:
        return [name for name in names if (self.path / name).exists()]

    def report(self) -> dict[str, Any] | None:
        """What `keep_report` kept, in each process.

        None while the run is not finished, and where its result or the report is gone or damaged.
        """
        found = None
        if self._processes.main:
            try:
                text = (self.path / REPORT).read_text(encoding="utf-8")
                found = unsealed(text, self.path)
            except (OSError, ValueError):  # the run goes on, at its end
                found = None
        return self._processes.gathered(found)[0]

    def keep_report(self, facts: Mapping[str, Any], result: Sequence[Path]) -> None:
        """Keep what the run came to: it is finished then.

        Args:
            facts: JSON-ready.
            result: the files of what was learned, in this folder.

        Raises:
            StorageError: it cannot be written.
        """
        names = [path.relative_to(self.path).as_posix() for path in result]
        self.by_main(lambda: self._write(REPORT, lambda: sealed(facts, self.path, names)))

    def by_main(self, act: Callable[[], object]) -> None:
        """Have the main process do something while the others wait; all raise what it raises."""
        problem: CoinKVError | None = None
        if self._processes.main:
            try:
                act()
            except CoinKVError as error:
                problem = error
        first = self._processes.gathered(problem)[0]
        if first is not None:
            raise first

    def _write(self, name: str, text: Callable[[], str]) -> None:
        path = self.path / name
        try:
            publish(path, [memoryview(text().encode())], fsync=False)
        except OSError as error:
            raise StorageError(
                f"cannot be written ({error.strerror or error})",
                where=path,
                hint=unwritable_hint(error),
            ) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TrainingError(
            f"cannot be read ({getattr(error, 'strerror', None) or error})"[:160],
            where=path,
            hint="train in another folder",
        ) from error
    if not isinstance(facts, dict):
        raise TrainingError("is no JSON object", where=path, hint="train in another folder")
    return facts


def _differences(kept: Mapping[str, Any], begun: Mapping[str, Any]) -> Iterator[str]:
    """What is not the same in two runs, for people; nested objects by their fields."""
    for name, now in begun.items():
        before = kept.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _differences(before, now)
        elif before != now:
            short = all(isinstance(value, bool | int | float | None) for value in (before, now))
            yield f"{name} was {before} and is {now}" if short else f"{name} differs"
