"""The process that reads one uploaded file: bytes in, documents as JSON out, under hard limits.

Run as `python -m coinkv.serve.library.parse`; it imports no more than a parser needs.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from coinkv.corpus.documents import read_documents
from coinkv.errors import DocumentError
from coinkv.serve.library.children import die_with_parent

NEEDS_TOO_MUCH = 3
"""Exit code: the memory, or the depth of the stack, was not enough."""

_NICE = 5


def limit(memory_bytes: int, cpu_seconds: int, file_bytes: int) -> None:
    """Bound what this process may take, where the system can (not on Windows)."""
    try:
        import resource
    except ImportError:
        return
    for kind, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    os.nice(_NICE)


def parsed(suffix: str, stem: str) -> dict[str, Any]:
    """What standard input holds: `documents`, or the `error` that says why there are none.

    A document's key is None where the file has none of its own, its title None where the file's
    name would be the title: that name is known to the parent only.

    Args:
        suffix: tells the format (`.pdf`).
        stem: a name that no document bears, for the file in the current folder.
    """
    path = Path(f"{stem}{suffix}")
    with path.open("xb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    try:
        documents = read_documents(path)
    except DocumentError as error:
        what = error.what.replace(path.name, "it")
        return {"error": what if error.hint is None else f"{what}; {error.hint}"}
    rows = [
        {
            "key": None if stem in document.key else document.key,
            "title": None if document.title == stem else document.title,
            "text": document.text,
        }
        for document in documents
    ]
    return {"documents": rows}


def main() -> None:
    """Limits, suffix and stem are arguments; what is printed is one JSON object."""
    parent, memory_bytes, cpu_seconds, file_bytes = (int(number) for number in sys.argv[1:5])
    suffix, stem = sys.argv[5:7]
    die_with_parent(parent)
    limit(memory_bytes, cpu_seconds, file_bytes)
    # a parser that prints must not spoil the reply
    reply = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        found = parsed(suffix, stem)
        reply.write(json.dumps(found))
        reply.flush()
    except (MemoryError, RecursionError):
        os._exit(NEEDS_TOO_MUCH)  # no memory to say it in words
    os._exit(0)  # what a parser registered to run at exit is not wanted


if __name__ == "__main__":
    main()
