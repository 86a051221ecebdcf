"""The ledger of a sweep: a results file that grows by whole rows and knows what is done."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from coinkv.errors import InputError, StorageError
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.rows import Row, read_rows

_HINT = "name another file for the results"


@dataclass
class Done:
    """What a ledger holds of one configuration on one half of a set.

    Attributes:
        answers: the last `answers` row but for its questions, None before there is one.
        ids: of the questions of that row.
        rounds: the `timing` rows by number of their round, the last of each number.
    """

    answers: Mapping[str, Any] | None = None
    ids: frozenset[str] = frozenset()
    rounds: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Take in a row; as in reports, a later one replaces an earlier one of the same run."""
        if row.fields["kind"] == "answers":
            self.ids = frozenset(question.text("id") for question in row.objects("per_question"))
            self.answers = {k: v for k, v in row.fields.items() if k != "per_question"}
        else:
            row.numbers("ttft_ms")
            self.rounds[int(row.number("round"))] = row.fields


_Run = tuple[str, str, Configuration, str]


class Ledger:
    """Rows of runs in a JSON Lines file. Several processes may add to one.

    Args:
        path: the file, made when rows are first added; its folder is made, too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._done: Mapping[_Run, Done] = {}

    def require_usable(self) -> None:
        """Make sure, before any work, that rows can be added; makes the file if it is not there.

        Raises:
            InputError: the file holds something else than rows of a sweep.
            StorageError: it cannot be written.
        """
        self._known()
        self.add([])

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows, whole: what a killed process left of a line is cut off first.

        Raises:
            InputError: the file ends in what no sweep has written.
            StorageError: it cannot be written.
        """
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self._path}.lock"), self._path.open("ab+") as file:
                _end_last_line(file, self._path)
                file.write(lines.encode())
        except OSError as error:
            raise StorageError(
                f"the results cannot be written ({error.strerror or error})",
                where=self._path,
                hint="free space, check permissions, then run the same command again",
            ) from error

    def done(self, where: tuple[str, str], configuration: Configuration, fingerprint: str) -> Done:
        """What there is of a configuration, rows of other processes included.

        Args:
            where: set and half.
            configuration: what was run.
            fingerprint: of the backbone.

        Raises:
            InputError: the file holds something else than rows of a sweep.
        """
        return self._known().get((*where, configuration, fingerprint), Done())

    def _known(self) -> Mapping[_Run, Done]:
        """Everything in the file by run; read again only when the file has changed."""
        try:
            found = self._path.stat()
        except OSError:  # not there yet, or no file: adding rows tells
            return {}
        if self._seen != (found.st_size, found.st_mtime_ns):
            rows, _ = read_rows(self._path)
            self._done = _by_run(rows)
            self._seen = (found.st_size, found.st_mtime_ns)
        return self._done


def _by_run(rows: Iterable[Row]) -> dict[_Run, Done]:
    done: dict[_Run, Done] = {}
    for row in rows:
        if "kind" not in row.fields:
            raise InputError("this is no row of a sweep", where=row.where, hint=_HINT)
        if row.fields["kind"] in ("answers", "timing"):
            done.setdefault(_run_of(row), Done()).add(row)
    return done


def _run_of(row: Row) -> _Run:
    try:
        configuration = Configuration.of_row(row.fields)
    except InputError as error:
        raise InputError(error.what, where=row.where) from error
    return row.text("set"), row.text("half"), configuration, row.text("fingerprint")


def _end_last_line(file: IO[bytes], path: Path) -> None:
    """Give the last line its line feed if it is whole, and take it away if a kill cut it off."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 1))
    if file.read(1) in (b"", b"\n"):
        return
    file.seek(0)
    line = file.read().rpartition(b"\n")[2]
    if not line.startswith(b"{"):
        raise InputError("its last line is no row of a sweep", where=path, hint=_HINT)
    try:
        json.loads(line)
    except ValueError:
        file.truncate(size - len(line))
    else:
        file.write(b"\n")
