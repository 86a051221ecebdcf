"""Files that appear whole or not at all, and what writers that died leave behind."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from coinkv.store.layout import checksum

STALE_SECONDS = 3600
"""Age from which a temporary file is taken for a dead writer's, whoever wrote it."""

_PART = re.compile(r".+\.(?P<host>[0-9a-f]{16})-(?P<pid>\d+)-[0-9a-f]{32}\.part")


def publish(path: Path, pieces: Sequence[memoryview], *, fsync: bool) -> None:
    """Write a file beside `path` and rename it to `path`; an older file there is replaced.

    Args:
        path: of the file; its folder is made when missing.
        pieces: the content, bytes one after another.
        fsync: have the disk confirm content and name before returning.

    Raises:
        OSError: it could not be written; `path` is as it was and the temporary file is gone.
    """
    _make_folder(path.parent, fsync=fsync)
    part = path.with_name(f"{path.stem}.{_host()}-{os.getpid()}-{uuid.uuid4().hex}.part")
    try:
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            for piece in pieces:
                _write_all(file, piece)
            if fsync:
                os.fsync(file)
        finally:
            os.close(file)
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    if fsync:
        sync(path.parent)


def is_leftover(path: Path) -> bool:
    """Whether a file is `publish`'s temporary one and its writer is dead.

    The writer counts as dead when no process of its number runs on its machine, or when the file
    has not been written to for `STALE_SECONDS`.

    Raises:
        FileNotFoundError: the file is gone, its writer has finished.
    """
    name = _PART.fullmatch(path.name)
    if name is None:
        return False
    if time.time() - path.stat().st_mtime > STALE_SECONDS:
        return True
    return name["host"] == _host() and not _is_running(int(name["pid"]))


def _make_folder(folder: Path, *, fsync: bool) -> None:
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    if fsync:
        for made in missing:
            sync(made.parent)


def _write_all(file: int, content: memoryview) -> None:
    """Write a buffer; one call may take less than was given."""
    while content:
        content = content[os.write(file, content) :]


def sync(path: Path) -> None:
    """Have the disk confirm a file's content, or the names in a folder.

    Raises:
        OSError: it could not.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _host() -> str:
    """This machine's mark in temporary names: process numbers mean nothing on another one."""
    return checksum(os.uname().nodename.encode())


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
