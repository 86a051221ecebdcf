"""The record: rows of answers by what they depend on, kept in a file that a run goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coinkv.errors import InputError
from coinkv.evaluate.boost.worker import Worker
from coinkv.evaluate.ledger import Ledger
from coinkv.evaluate.rows import read_rows

Rows = list[dict[str, Any]]
_MEASURES = ("ttft_ms", "total_ms", "f1", "prompt_tokens", "loaded_bytes", "peak_bytes")


class Record:
    """Rows by key; a key is a digest of all that a system's rows of one sitting depend on.

    Args:
        path: a JSON Lines file that is read, made if missing, and added to; None keeps rows in
            memory only.

    Raises:
        InputError: the file holds something else.
        StorageError: it cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._ledger = None if path is None else Ledger(path)
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._rows: dict[str, dict[int, dict[str, Any]]] = {}
        if path is not None and path.exists():
            self._read(path)
        if self._ledger is not None:
            self._ledger.add([])  # that it cannot be written is to be known before any work

    def of(self, key: str) -> Rows:
        """The rows of a key, none where nothing was recorded."""
        return list(self._rows.get(key, {}).values())

    def add(
        self,
        key: str,
        layout: str,
        sitting: str,
        worker: Worker,
        rows: Sequence[dict[str, Any]],
    ) -> None:
        """Record what a system answered in one whole sitting.

        Raises:
            StorageError: the file cannot be written.
        """
        made = [
            {
                "kind": "boost",
                "key": key,
                "layout": layout,
                "sitting": sitting,
                "system": worker.name,
                **row,
                "loaded_bytes": worker.loaded_bytes,
                "versions": dict(worker.versions),
                "started": self._started,
            }
            for row in rows
        ]
        self._rows[key] = {row["number"]: row for row in made}
        if self._ledger is not None:
            self._ledger.add(made)

    def _read(self, path: Path) -> None:
        for row in read_rows(path)[0]:
            if row.fields.get("kind") != "boost":
                raise InputError(
                    "this is no answer of coinkv bench boost",
                    where=row.where,
                    hint="name another file for the answers",
                )
            for measure in _MEASURES:
                row.number(measure)
            rows = self._rows.setdefault(row.text("key"), {})
            rows[int(row.number("number"))] = dict(row.fields)
