"""The books of a disk tier: one row a block in SQLite, exact across processes and crashes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coinkv.store.database import Database
from coinkv.store.eviction import Standing
from coinkv.store.layout import checksum
from coinkv.store.opening import problem_of

SCHEMA_VERSION = 1

# the checks on types let SQLite's own check at opening find rows that no code here could read
_SCHEMA = f"""
BEGIN;
CREATE TABLE blocks (
    serial INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE CHECK (typeof(key) = 'text'),
    bytes INTEGER NOT NULL CHECK (typeof(bytes) = 'integer' AND bytes >= 0),
    importance REAL NOT NULL CHECK (typeof(importance) = 'real'),
    last_used REAL NOT NULL CHECK (typeof(last_used) = 'real'),
    hits INTEGER NOT NULL CHECK (typeof(hits) = 'integer' AND hits >= 0),
    pinned INTEGER NOT NULL CHECK (pinned IN (0, 1)),
    note BLOB CHECK (typeof(note) IN ('blob', 'null')),
    seal TEXT
);
CREATE INDEX blocks_bytes ON blocks (bytes);
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""


@dataclass(frozen=True)
class NotedBlock:
    """A row whose block its writer finished.

    Attributes:
        serial: ascending in the order of commits; a block that comes again gets a new one.
        key: the block's.
        note: what the caller left with it.
    """

    serial: int
    key: str
    note: bytes


class Usage:
    """The SQLite file in which the processes that share a folder keep its books.

    A row is entered after its block's file is there, and struck out before the file goes; what a
    crash leaves between the two, `reconcile` puts right. Threads may share it; a child process
    opens its own.

    Args:
        path: of the file; its folder is made when missing.

    Raises:
        StorageError: the file cannot be made or opened.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path, _SCHEMA, SCHEMA_VERSION)
        self._used: dict[str, tuple[int, float]] = {}
        self._counting = threading.Lock()  # a hit must not wait for another process's transaction

    @staticmethod
    def problem(path: Path) -> str | None:
        """What makes such a file unusable; None for a good one. Nothing is changed.

        Raises:
            StorageError: the file cannot be read.
        """
        return problem_of(path, _SCHEMA, SCHEMA_VERSION)

    @property
    def openings(self) -> int:
        """How often the file was opened: again whenever it was replaced or damaged."""
        return self._database.openings

    @property
    def fixed(self) -> bool:
        """Whether its folder cannot be written, so that it is only read."""
        return self._database.fixed

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction; every other process's is finished before it, or waits.

        Hits gathered so far are written with it. A nested one is part of the outer one.

        Raises:
            StorageError: the database refuses; nothing of the transaction is kept.
        """
        with self._database.lock:
            with self._database.transaction() as begins:
                written = self._write_hits() if begins else {}
                yield
            self._forget_hits(written)

    def add(self, key: str, standing: Standing, note: bytes | None) -> None:
        """Enter a block whose file is there.

        A row that is there keeps its standing, note and serial, only its bytes are corrected; but
        a row without a note is replaced.

        Args:
            key: the block's.
            standing: its bytes are the file's.
            note: None for a file found without a row: nobody knows any more what it is good for.
        """
        seal = None if note is None else _seal(key, note)
        with self.writing():
            self._database.rows("DELETE FROM blocks WHERE key = ? AND note IS NULL", key)
            self._database.rows(
                "INSERT INTO blocks (key, bytes, importance, last_used, hits, pinned, note, seal) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET bytes = excluded.bytes",
                *(key, standing.bytes, standing.importance, standing.last_used),
                *(standing.hits, standing.pinned, note, seal),
            )

    def remove(self, keys: Iterable[str]) -> None:
        """Strike blocks out; keys without a row are passed over."""
        with self.writing():
            for key in keys:
                self._database.rows("DELETE FROM blocks WHERE key = ?", key)

    def used(self, key: str, when: float) -> None:
        """Count a hit, in memory until the next transaction; `when` in seconds since the epoch."""
        with self._counting:
            hits, before = self._used.get(key, (0, when))
            self._used[key] = hits + 1, max(before, when)

    def pin(self, key: str, pinned: bool) -> bool:
        """Have a block stay, or no longer; whether it has a row."""
        with self.writing():
            self._database.rows("UPDATE blocks SET pinned = ? WHERE key = ?", pinned, key)
            return self.standing(key) is not None

    def standing(self, key: str) -> Standing | None:
        """How a block stands; hits that are not written yet do not count."""
        return self._standings("WHERE key = ?", key).get(key)

    def standings(self) -> dict[str, Standing]:
        """How all blocks stand, by key, in order."""
        return self._standings("ORDER BY key")

    def without_note(self, seconds: float) -> list[str]:
        """Keys of the blocks that have had no note for so long."""
        statement = "SELECT key FROM blocks WHERE note IS NULL AND last_used <= ? ORDER BY key"
        return [key for (key,) in self._database.rows(statement, time.time() - seconds)]

    def noted_after(self, serial: int) -> list[NotedBlock]:
        """The blocks with a note and a greater serial, in order; all of them after 0.

        A row whose key or note is damaged is left out.
        """
        rows = self._database.rows(
            "SELECT serial, key, note, seal FROM blocks "
            "WHERE serial > ? AND note IS NOT NULL ORDER BY serial",
            serial,
        )
        return [
            NotedBlock(serial, key, note)
            for serial, key, note, seal in rows
            if seal == _seal(key, note)
        ]

    def note(self, key: str) -> bytes | None:
        """What the caller left with a block; None where that is lost, or the block is not here."""
        rows = self._database.rows("SELECT note, seal FROM blocks WHERE key = ?", key)
        note, seal = rows[0] if rows else (None, None)
        return note if note is not None and seal == _seal(key, note) else None

    def count(self) -> int:
        """How many blocks there are."""
        return int(self._database.rows("SELECT count(*) FROM blocks")[0][0])

    def total_bytes(self) -> int:
        """Bytes of all blocks."""
        return int(self._database.rows("SELECT coalesce(sum(bytes), 0) FROM blocks")[0][0])

    def others(self) -> int:
        """A number that changes when another connection commits; costs microseconds."""
        return int(self._database.rows("PRAGMA data_version")[0][0])

    def flush(self) -> None:
        """Write the hits gathered so far.

        Raises:
            StorageError: the database refuses; they wait for the next transaction.
        """
        if self._used:
            with self.writing():
                pass

    def close(self) -> None:
        """Flush and close; nothing may be called afterwards.

        Raises:
            StorageError: the hits could not be written; it is closed all the same.
        """
        try:
            self.flush()
        finally:
            self._database.close()

    def _standings(self, which: str, *values: object) -> dict[str, Standing]:
        columns = "key, bytes, importance, last_used, hits, pinned"
        return {
            key: Standing(size, importance, last_used, hits, bool(pinned))
            for key, size, importance, last_used, hits, pinned in self._database.rows(
                f"SELECT {columns} FROM blocks {which}", *values
            )
        }

    def _write_hits(self) -> dict[str, tuple[int, float]]:
        with self._counting:
            used = dict(self._used)
        for key, (hits, when) in used.items():
            self._database.rows(
                "UPDATE blocks SET hits = hits + ?, last_used = max(last_used, ?) WHERE key = ?",
                *(hits, when, key),
            )
        return used

    def _forget_hits(self, written: dict[str, tuple[int, float]]) -> None:
        """Leave only what was counted while the transaction ran."""
        with self._counting:
            for key, (hits, _) in written.items():
                since, when = self._used.pop(key)
                if since > hits:
                    self._used[key] = since - hits, when


def _seal(key: str, note: bytes) -> str:
    """SQLite has no checksums of its own, and a note decides what a block is used for."""
    return checksum(key.encode() + note)
