"""Opening a cache's SQLite file: one that cannot be used is set aside, never an error."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from filelock import FileLock, Timeout

from coinkv.errors import StorageError

BUSY_TIMEOUT_SECONDS = 10.0
"""How long one process waits for another's transaction, which takes milliseconds."""
ASIDE = ".aside"
"""What the name of a file that was set aside ends in; the one before it is replaced."""

_DAMAGED = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
_HINTS = {
    sqlite3.SQLITE_FULL: "free space on that disk",
    sqlite3.SQLITE_BUSY: "another process keeps it busy: wait for it, or end it",
    sqlite3.SQLITE_READONLY: "make that folder writable, or choose another",
    sqlite3.SQLITE_CANTOPEN: "make that folder writable, or choose another",
}
_log = logging.getLogger(__name__)


def opened(path: Path, schema: str, version: int) -> sqlite3.Connection:
    """A connection (WAL, no implicit transactions) to a database of that version.

    A file that is no database, fails SQLite's own check or has another version is set aside, with
    a warning, and an empty one takes its place. In a folder that cannot be written the file is read
    as one that never changes. Processes that open it at the same moment take turns.

    Args:
        path: of the file; its folder is made when missing.
        schema: statements that make the tables and set `user_version`.
        version: the `user_version` they set, 1 or more.

    Raises:
        StorageError: no space, no permission, or another process holds it for long.
    """
    if is_fixed(path):
        return _fixed(path)
    with errors_of(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock"), timeout=BUSY_TIMEOUT_SECONDS):
            problem = _problem(path, schema, version)
            if problem is not None:
                _set_aside(path)
                line = " ".join(problem.split())
                _log.warning("%s: %s; it is set aside and begun anew", path, line)
            connection = _connected(path)
            if _version(connection) == 0:
                connection.executescript(schema)
            return connection


def problem_of(path: Path, schema: str, version: int) -> str | None:
    """What makes a file unusable, so that opening would set it aside; None for a good one.

    Raises:
        StorageError: it cannot be read.
    """
    with errors_of(path):
        return _problem(path, schema, version)


def is_fixed(path: Path) -> bool:
    """Whether a file is there whose folder cannot be written."""
    return path.is_file() and not os.access(path.parent, os.W_OK)


def is_damage(error: BaseException | None) -> bool:
    """Whether SQLite says that the file is damaged, or no database."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    # text in the file that is no UTF-8 may come up wherever SQLite quotes it
    return (code & 0xFF) in _DAMAGED or isinstance(error, UnicodeDecodeError)


@contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Turn what SQLite or the operating system says into an error that says what to do."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        hint = _HINTS.get(code, "check that disk and the permissions there")
        raise StorageError(f"the books cannot be used ({error})", where=path, hint=hint) from error
    except Timeout as error:
        hint = "wait for the process that opens it, or end it"
        raise StorageError("the lock is held", where=error.lock_file, hint=hint) from error
    except OSError as error:
        hint = "check that disk, its free space and the permissions there"
        raise StorageError(error.strerror or str(error), where=path, hint=hint) from error


def _fixed(path: Path) -> sqlite3.Connection:
    with errors_of(path):
        log = path.with_name(f"{path.name}-wal")
        # changes that are still in the log cannot be put in place, and without them it may be torn
        if log.exists() and log.stat().st_size:
            raise sqlite3.OperationalError("its folder is read-only and its log is not empty")
        url = f"file:{quote(str(path))}?mode=ro&immutable=1"
        return sqlite3.connect(url, uri=True, isolation_level=None, check_same_thread=False)


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # a power cut may cost the last rows, never the file; a killed process costs nothing
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _problem(path: Path, schema: str, version: int) -> str | None:
    """What makes the file unusable; None for a good one and for none at all."""
    try:
        with closing(_connected(path)) as connection:
            found, tables = _version(connection), _tables(connection)
            if found == 0 and not tables:
                return None
            if found != version:
                return f"it has version {found}, not {version}"
            with closing(sqlite3.connect(":memory:")) as wanted:
                wanted.executescript(schema)
                if tables != _tables(wanted):
                    return "its tables are others"
            said = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            return None if said == "ok" else f"it is damaged ({said})"
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if is_damage(error):
            return f"it is damaged ({error})"
        raise


def _tables(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _set_aside(path: Path) -> None:
    """Rename the file, and remove its log, which would be played into the new one."""
    path.replace(path.with_name(f"{path.name}{ASIDE}"))
    for end in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(f"{path.name}{end}").unlink()
