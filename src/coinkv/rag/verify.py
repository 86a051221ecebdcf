"""Verify: is every part of an index whole? Reads every byte, changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coinkv.errors import CoinKVError, CorruptBlockError
from coinkv.rag.index import BLOCKS, open_catalogue, open_vectors
from coinkv.store.disk import DiskStore


@dataclass(frozen=True)
class VerifyReport:
    """What was found.

    Attributes:
        problems: one line each; empty when the index is whole.
        blocks: blocks read and checked.
        missing: blocks that are not there (they are recomputed when needed).
        damaged: blocks whose checksums fail (they are recomputed when needed).
        unneeded: blocks that belong to no chunk (the next build removes them).
    """

    problems: tuple[str, ...]
    blocks: int
    missing: int
    damaged: int
    unneeded: int

    @property
    def clean(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready facts."""
        return {"clean": self.clean, **vars(self), "problems": list(self.problems)}


def verify(folder: Path, on_progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Check the catalogue, the vectors and every KV block of an index against their checksums.

    Raises:
        IndexNotFoundError: there is no finished index.
    """
    catalogue, settings = open_catalogue(folder)
    problems: list[str] = []
    try:
        problems += catalogue.problems()
        vectors = open_vectors(folder, catalogue)
        vectors.verify()
    except CoinKVError as error:
        problems.append(str(error))
    store = DiskStore(folder / BLOCKS)
    wanted = {settings.block_key(content_hash) for content_hash in catalogue.hashes()}
    stored = set(store.keys())
    missing = sorted(wanted - stored)
    problems += [f"block {key[:12]} is missing" for key in missing]
    damaged = 0
    checked = sorted(wanted & stored)
    for done, key in enumerate(checked):
        if on_progress is not None:
            on_progress(done, len(checked))
        try:
            store.verify(key)
        except CorruptBlockError as error:
            damaged += 1
            problems.append(str(error))
    catalogue.close()
    return VerifyReport(tuple(problems), len(checked), len(missing), damaged, len(stored - wanted))
