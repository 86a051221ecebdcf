"""Uploaded files are read by a process of their own, so that none can harm the server."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any

from coinkv.serve.library.children import module_command, package_path
from coinkv.serve.library.names import document_key
from coinkv.serve.library.parse import NEEDS_TOO_MUCH

_SUFFIX = re.compile(r"(?:\.jsonl)?\.[a-z0-9]{1,12}")
_TOO_LONG = "takes too long to read; split it, or convert it to text"
_TOO_LARGE_INSIDE = "holds more text than an upload may; split it"
_NEEDS_MEMORY = "needs more memory to read than the server allows; split it"
_BROKEN = "cannot be read: its reader broke down over it"
_KILLED_FOR_TIME = [-getattr(signal, name, 0) for name in ("SIGXCPU", "SIGKILL")]


@dataclass(frozen=True)
class ParseLimits:
    """What reading one file may take.

    Attributes:
        seconds: of processor time, and of wall clock.
        memory_bytes: address space of the process.
        file_bytes: largest file.
        text_bytes: most that may come out of it, as JSON.
    """

    seconds: float
    memory_bytes: int
    file_bytes: int
    text_bytes: int


@dataclass(frozen=True)
class ParsedDocument:
    """A document of a file, before it has a key of its own.

    Attributes:
        name: what it is called: the file's name, or what a row of the file says.
        title: one line, perhaps empty.
        text: not empty.
    """

    name: str
    title: str
    text: str


@dataclass(frozen=True)
class Parsed:
    """What became of a file: documents, or the reason why there are none.

    Attributes:
        documents: at least one, or none where there is a reason.
        reason: why the file was skipped.
        text_bytes: what came out of it, as JSON.
    """

    documents: tuple[ParsedDocument, ...]
    reason: str | None = None
    text_bytes: int = 0


def parse_file(name: str, content: IO[bytes], limits: ParseLimits) -> Parsed:
    """Read a file in a process of its own; whatever it holds, this returns within the limits.

    Args:
        name: as the client calls it; its ending tells the format. It is no path on this machine.
        content: a real file, read from its beginning.
        limits: of time, memory and output.
    """
    suffix = _suffix(name)
    if suffix is None:
        return Parsed((), "its name has no ending that tells the format, such as .txt")
    stem = secrets.token_hex(16)
    content.seek(0)
    os.lseek(content.fileno(), 0, os.SEEK_SET)  # the child sees no buffer of ours
    with tempfile.TemporaryDirectory(prefix="coinkv-parse-") as folder:
        process = subprocess.Popen(
            module_command(
                "coinkv.serve.library.parse",
                str(os.getpid()),
                str(limits.memory_bytes),
                str(math.ceil(limits.seconds)),
                str(limits.file_bytes),
                suffix,
                stem,
            ),
            stdin=content,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=_environment(folder),
            close_fds=True,
            start_new_session=True,
        )
        printed, ended = _output(process, limits)
    return _read(printed, ended, name)


def _suffix(name: str) -> str | None:
    """The end of a name that tells the format, in lower case: a short one of letters and digits."""
    plain = PurePosixPath(document_key(name)).name.lower()
    suffixes = PurePosixPath(plain).suffixes
    for count in (2, 1):
        suffix = "".join(suffixes[-count:])
        if suffixes and _SUFFIX.fullmatch(suffix):
            return suffix
    return None


def _environment(folder: str) -> Mapping[str, str]:
    """As little as Python needs: nothing of the server's environment is a parser's business."""
    kept = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
    return {
        **kept,
        "PATH": os.defpath,
        "PYTHONPATH": package_path(),
        "PYTHONUTF8": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": folder,
        "TMPDIR": folder,
        "OMP_NUM_THREADS": "1",
    }


def _output(process: subprocess.Popen[bytes], limits: ParseLimits) -> tuple[bytes, str | None]:
    """What the process printed, and why it was not let go on, if it was not."""
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(limits.seconds, end)
    timer.daemon = True
    timer.start()
    try:
        printed = process.stdout.read(limits.text_bytes + 1) if process.stdout else b""
        if len(printed) > limits.text_bytes:
            process.kill()
            return b"", _TOO_LARGE_INSIDE
        process.wait()
    finally:
        timer.cancel()
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if late.is_set():
        return b"", _TOO_LONG
    return printed, _reason_of(process.returncode)


def _reason_of(code: int) -> str | None:
    """Why a process ended that was not killed from here; None when it ended well."""
    if code == 0:
        return None
    if code == NEEDS_TOO_MUCH:
        return _NEEDS_MEMORY
    return _TOO_LONG if code in _KILLED_FOR_TIME else _BROKEN


def _read(printed: bytes, ended: str | None, name: str) -> Parsed:
    if ended is not None:
        return Parsed((), ended)
    try:
        reply: dict[str, Any] = json.loads(printed)
    except ValueError:  # killed before it had printed all, for memory
        return Parsed((), _NEEDS_MEMORY)
    if "error" in reply:
        return Parsed((), str(reply["error"]))
    return Parsed(tuple(_named(reply["documents"], name)), None, len(printed))


def _named(rows: Sequence[Mapping[str, Any]], name: str) -> Sequence[ParsedDocument]:
    """Rows with what only this side knows: the file's name."""
    stem = PurePosixPath(document_key(name)).stem
    title = " ".join(re.split(r"[\s_]+|(?<=\w)-(?=\w)", stem)).strip() or stem
    return [
        ParsedDocument(
            name=row["key"] if row["key"] is not None else _row_name(name, number, len(rows)),
            title=row["title"] if row["title"] is not None else title,
            text=row["text"],
        )
        for number, row in enumerate(rows, 1)
    ]


def _row_name(name: str, number: int, count: int) -> str:
    return name if count == 1 else f"{name}:{number}"
