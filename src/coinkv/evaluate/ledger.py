"""The ledger of a sweep: a results file that grows by whole rows and knows what is done."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from coinkv.errors import StorageError
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.rows import read_rows


class Ledger:
    """Rows of runs in a JSON Lines file. Several processes may add to one.

    Args:
        path: the file, made when the first row is added; its folder is made, too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows, whole: what a killed process left of a line is cut off first.

        Raises:
            StorageError: the file cannot be written.
        """
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self._path}.lock"), self._path.open("ab+") as file:
                file.truncate(_whole_lines(file))
                file.write(lines.encode())
        except OSError as error:
            raise StorageError(
                f"the results cannot be written ({error.strerror or error})",
                where=self._path,
                hint="free space, check permissions, then run the same command again",
            ) from error

    def answered(
        self, where: tuple[str, str], configuration: Configuration, fingerprint: str
    ) -> set[str] | None:
        """Ids of the questions that a configuration has answered; None where it has not been run.

        Args:
            where: set and half.
            configuration: what was run.
            fingerprint: of the backbone.
        """
        found = None
        for row in self._rows("answers", where, configuration, fingerprint):
            found = {question["id"] for question in row["per_question"]}
        return found

    def timed(
        self, where: tuple[str, str], configuration: Configuration, fingerprint: str
    ) -> list[list[float]]:
        """Milliseconds of the timing rounds of a configuration, a list a round."""
        rows = self._rows("timing", where, configuration, fingerprint)
        return [row["ttft_ms"] for row in rows]

    def _rows(
        self,
        kind: str,
        where: tuple[str, str],
        configuration: Configuration,
        fingerprint: str,
    ) -> list[Mapping[str, Any]]:
        if not self._path.exists():
            return []
        rows, _ = read_rows(self._path)
        return [
            row.fields
            for row in rows
            if row.fields.get("kind") == kind
            and (row.fields.get("set"), row.fields.get("half")) == where
            and row.fields.get("fingerprint") == fingerprint
            and Configuration.of_row(row.fields) == configuration
        ]


def _whole_lines(file: Any) -> int:
    """Bytes of a file up to the end of its last whole line."""
    file.seek(0)
    size = 0
    for line in file:
        if line.endswith(b"\n"):
            size += len(line)
    return size
