"""Replies kept on disk, one file each, so that nobody pays for one twice."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from coinkv.corpus.extract.replies import Reply, json_list
from coinkv.errors import StorageError

_CUT_OFF = "nuggets_before_the_cut"


def kept_reply(path: Path) -> Reply | None:
    """The reply kept in a file; None where there is none, or it is damaged.

    Raises:
        StorageError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    except OSError as error:
        raise StorageError(f"cannot be read ({error.strerror})", where=path) from error
    candidates = json_list(text)
    whole = not text.startswith("{")
    return None if candidates is None else Reply(tuple(candidates), whole, mended=False)


def keep(path: Path, reply: Reply) -> None:
    """Keep a reply; the file appears whole or not at all, whoever else writes it.

    Raises:
        StorageError: it cannot be written.
    """
    candidates = list(reply.candidates)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(candidates if reply.whole else {_CUT_OFF: candidates}, file)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(
            f"cannot be written ({error.strerror})", where=path, hint="free space or choose another"
        ) from error
