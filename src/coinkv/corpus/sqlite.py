"""All that is SQLite's own in the catalogue; another database brings its own engine."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event

from coinkv.errors import CoinKVError, StorageError

BUSY_TIMEOUT_SECONDS = 30.0
"""How long a writer waits for another writer."""
WRITES = "coinkv_writes"
"""Execution option of a connection that is going to write."""
REBUILD = "restore it from a copy, or build the index again into a new folder"
"""What to do about a damaged catalogue."""


def translation(error: Exception, where: Path, damaged: type[CoinKVError]) -> CoinKVError:
    """The error to show for one the database raised."""
    cause = getattr(error, "orig", None) or error
    said = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    primary = (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF
    if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR):
        return damaged(f"the catalogue is damaged ({said})", where=where, hint=REBUILD)
    hint = _HINTS.get(primary, "check that disk and the permissions, then run the command again")
    return StorageError(f"the catalogue cannot be used ({said})", where=where, hint=hint)


_HINTS = {
    sqlite3.SQLITE_FULL: "free space on that disk, then run the command again",
    sqlite3.SQLITE_BUSY: "another process writes to it: wait for it, then run the command again",
}


def sqlite_engine(path: Path) -> Engine:
    """Connections to a database file: readers beside one writer, commits on the disk.

    In a folder that cannot be written, the file is read as one that never changes.
    """
    fixed = _is_fixed(path)
    fixed_url = f"sqlite:///file:{quote(str(path))}?mode=ro&immutable=1&uri=true"
    url = fixed_url if fixed else URL.create("sqlite", database=str(path))
    engine = create_engine(url, max_overflow=-1)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # transactions begin below, not where the driver guesses
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_SECONDS * 1000)}")
        if not fixed:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # a chunk costs far more than a sync

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _is_fixed(path: Path) -> bool:
    """Whether a database can be read in a folder that cannot be written: nothing is left to log."""
    log = path.with_name(f"{path.name}-wal")
    logged = log.exists() and log.stat().st_size > 0
    return path.is_file() and not logged and not os.access(path.parent, os.W_OK)


def structure_problems(connection: Connection) -> list[str]:
    """What the database itself finds wrong in its file."""
    lines = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    return [f"catalogue: {line}" for line in lines if line != "ok"]
