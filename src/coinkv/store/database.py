"""A SQLite file that threads share, and that may be replaced or damaged while it is open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coinkv.errors import StorageError
from coinkv.store.opening import errors_of, is_damage, is_fixed, opened


class Database:
    """One connection to a cache's file, see `opened`; used by one thread at a time.

    A file that another process replaced or removed is noticed at the next transaction, one that
    turns out damaged is begun anew for the next call. A child process opens its own.

    Args:
        path: of the file; its folder is made when missing.
        schema: statements that make the tables and set `user_version`.
        version: the `user_version` they set.

    Attributes:
        lock: held during transactions; hold it to have two of them follow each other.
        openings: how often the file was opened.
        fixed: its folder cannot be written: it is read as it is, and writing is refused.

    Raises:
        StorageError: the file cannot be made or opened.
    """

    def __init__(self, path: Path, schema: str, version: int) -> None:
        self.path = path
        self.openings = 0
        self.lock = threading.RLock()
        self._schema, self._version = schema, version
        self._open()

    @contextmanager
    def transaction(self) -> Iterator[bool]:
        """One transaction that writes; every other process's is finished before it, or waits.

        A nested one is part of the outer one. Gives whether it is the outer one.

        Raises:
            StorageError: the database refuses; nothing of the transaction is kept.
        """
        with self.lock:
            if self._connection.in_transaction:
                yield False
                return
            if _inode(self.path) != self._inode:
                self._reopen()
            with self._errors():
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield True
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise

    def rows(self, statement: str, *values: object) -> list[Any]:
        """The rows that a statement gives.

        Raises:
            StorageError: the database refuses.
        """
        with self.lock, self._errors():
            return self._connection.execute(statement, values).fetchall()

    def close(self) -> None:
        """Let go of the file; nothing may be called afterwards."""
        with self.lock:
            self._connection.close()

    def _open(self) -> None:
        self.fixed = is_fixed(self.path)
        self._connection = opened(self.path, self._schema, self._version)
        self._inode = _inode(self.path)
        self.openings += 1

    def _reopen(self) -> None:
        self._connection.close()
        self._inode = -1  # should opening fail, the next transaction tries again
        self._open()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with errors_of(self.path):
                yield
        except StorageError as error:
            if is_damage(error.__cause__):
                self._reopen()
            raise


def _inode(path: Path) -> int:
    """Which file a path names now; 0 for none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0
