"""Incoming: changes of an index, safe on the disk before anyone is told they will be made."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coinkv.errors import StorageError
from coinkv.store.atomic import publish, sync

ChangeKind = Literal["add", "remove", "purge"]
"""`add` replaces, too; `purge` takes from the disk what a removal has taken from readers."""

_NAME = re.compile(
    r"(?P<number>\d{20})\.(?P<kind>add|remove|purge)\.(?P<job>job_[0-9a-f]{24})\.[0-9a-f]{32}\.jsonl"
)


@dataclass(frozen=True)
class Change:
    """One change, in a file named by its number, kind, job and content.

    Attributes:
        path: the file; JSON rows: `{"id", "title", "text"}` to add, `{"id"}` to remove,
            `{"generation"}` to purge.
        number: later changes have larger ones.
        kind: what is to be done.
        job: id of the job it belongs to; a restarted server goes on with the same id.
    """

    path: Path
    number: int
    kind: ChangeKind
    job: str

    @property
    def created(self) -> int:
        """When it was written, in seconds since 1970; now, where that is not to be had."""
        try:
            return int(self.path.stat().st_mtime)
        except OSError:
            return int(time.time())

    def rows(self) -> list[dict[str, Any]]:
        """The rows.

        Raises:
            StorageError: the file cannot be read.
        """
        try:
            # not splitlines: JSON strings may hold U+2028 and its like
            lines = self.path.read_text("utf-8").split("\n")
            return [json.loads(line) for line in lines if line]
        except (OSError, ValueError) as error:
            raise StorageError(
                f"a document that waits to be indexed cannot be read ({error})",
                hint="upload it again",
            ) from error

    def finish(self) -> None:
        """Take it off the disk: it is made, or given up."""
        with suppress(OSError):  # made again after a restart, to no effect
            self.path.unlink(missing_ok=True)


class Incoming:
    """The changes of one index that wait, in the order in which they came.

    One process writes; a change that `write` returned survives the death of the process and, as
    far as the disk keeps its word, of the machine. One that was not written whole leaves nothing.

    Args:
        folder: made when the first change comes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = max((change.number for change in self.changes()), default=0)

    def changes(self) -> list[Change]:
        """All that wait, oldest first; what a writer that died left half done is cleared away."""
        found = []
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            name = _NAME.fullmatch(path.name)
            if name is not None:
                kind: Any = name["kind"]
                found.append(Change(path, int(name["number"]), kind, name["job"]))
            elif path.name.endswith(".part"):
                with suppress(OSError):
                    path.unlink()
        return sorted(found, key=lambda change: change.number)

    def write(self, kind: ChangeKind, job: str, rows: Iterable[Mapping[str, Any]]) -> Change:
        """Keep a change; on the disk when this returns.

        Raises:
            StorageError: it cannot be written; nothing is left of it.
        """
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        number = self._last + 1
        digest = hashlib.sha256(content).hexdigest()[:32]
        path = self._folder / f"{number:020d}.{kind}.{job}.{digest}.jsonl"
        try:
            publish(path, [memoryview(content)] if content else [], fsync=True)
            sync(self._folder)
        except OSError as error:
            raise StorageError(
                f"the upload cannot be kept ({error.strerror or error})",
                hint="free space on the server's disk, then send it again",
            ) from error
        self._last = number
        return Change(path, number, kind, job)
