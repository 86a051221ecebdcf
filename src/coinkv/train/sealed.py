"""Sealed facts: JSON that holds its own digest and those of files, so that damage shows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import xxhash

_FILES, _SEAL = "files", "seal"


def sealed(facts: Mapping[str, Any], folder: Path, names: Iterable[str]) -> str:
    """Facts as JSON, with sizes and digests (xxh3, 128 bits) of files and of the facts themselves.

    Args:
        facts: JSON-ready, with texts as keys.
        folder: where the files lie.
        names: of the files, as paths in the folder.

    Raises:
        OSError: a file cannot be read.
    """
    kept = {**facts, _FILES: _digests(folder, names)}
    return json.dumps({**kept, _SEAL: _seal(kept)}, indent=2) + "\n"


def unsealed(text: str, folder: Path) -> dict[str, Any]:
    """The facts that were sealed.

    Args:
        text: what `sealed` made.
        folder: where the files lie now.

    Raises:
        ValueError: the text, or a file that it tells of, is not what was sealed.
        OSError: a file cannot be read.
    """
    try:
        kept = json.loads(text)
        seal = kept.pop(_SEAL)
        whole = seal == _seal(kept)
        files = kept.pop(_FILES)
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("it is not what was written") from error
    if not whole:
        raise ValueError("it is not what was written")
    now = _digests(folder, files)
    changed = [name for name in files if now.get(name) != files[name]]
    if changed:
        raise ValueError(f"{changed[0]} is not what was written")
    return dict(kept)


def _digests(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Size and digest of each file; what is no file has none."""
    found = {}
    for name in sorted(names):
        path = folder / name
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
            found[name] = {"bytes": path.stat().st_size, "xxh3": digest}
    return found


def _seal(facts: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(facts, sort_keys=True).encode())
