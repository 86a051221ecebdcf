"""Verify: is every part of an index whole? Reads every byte; repairs only when asked to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coinkv.corpus.catalogue import Catalogue
from coinkv.corpus.chunks import content_hash
from coinkv.errors import CoinKVError, CorruptBlockError, IndexNotFoundError, StorageError
from coinkv.rag.index import BLOCKS, CATALOGUE, open_published, vectors_folder
from coinkv.retrieval.index import VectorIndex
from coinkv.store.disk import DiskStore


@dataclass(frozen=True)
class VerifyReport:
    """What was found.

    Attributes:
        problems: one line each; empty when the index is whole.
        blocks: blocks read and checked.
        missing: blocks that are not there (they are recomputed when needed).
        damaged: blocks whose checksums fail (they are recomputed when needed).
        removed: damaged blocks that were removed to be made again (`repair`).
        unneeded: blocks that belong to no chunk (the next build removes them).
    """

    problems: tuple[str, ...]
    blocks: int = 0
    missing: int = 0
    damaged: int = 0
    removed: int = 0
    unneeded: int = 0

    @property
    def clean(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready facts."""
        return {"clean": self.clean, **vars(self), "problems": list(self.problems)}


def verify(
    folder: Path,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    repair: bool = False,
) -> VerifyReport:
    """Check the catalogue, the vectors and every KV block of an index against their checksums.

    Args:
        folder: the index folder.
        on_progress: told of blocks checked and of all.
        repair: remove damaged blocks, so that the next build encodes them again; a question that
            needs one does so too.

    Raises:
        IndexNotFoundError: there is no finished index.
        IndexMismatchError: it has another format version.
    """
    tell = on_progress or (lambda done, total: None)
    damage = _catalogue_damage(folder)
    if damage is not None:
        return VerifyReport((damage,))
    catalogue, settings, generation = open_published(folder)
    with closing(catalogue):
        problems = catalogue.problems()
        try:
            VectorIndex.open(vectors_folder(folder, generation)).verify()
        except CoinKVError as error:
            problems.append(str(error))
        try:
            published = {place.content_hash for place in catalogue.placements()}
            finished = catalogue.hashes()
            problems += _changed(catalogue, finished)
        except StorageError:  # catalogue.problems() has said it
            return VerifyReport(tuple(problems))
    return _with_blocks(
        problems,
        DiskStore(folder / BLOCKS),
        {settings.block_key(content_hash) for content_hash in published},
        {settings.block_key(content_hash) for content_hash in finished},
        tell,
        repair,
    )


def _changed(catalogue: Catalogue, hashes: Sequence[str]) -> list[str]:
    """Chunks whose tokens or text are not those their name was made of."""
    changed = []
    for name in hashes:
        chunk = catalogue.content(name)
        if content_hash(chunk.token_ids.tolist(), chunk.header_tokens, chunk.text) != name:
            changed.append(f"catalogue: chunk {name[:12]} has changed; build into a new folder")
    return changed


def _catalogue_damage(folder: Path) -> str | None:
    """Why a catalogue that is there cannot even be opened; None when it can, or is not there."""
    if (folder / CATALOGUE).is_file():
        try:
            Catalogue.open(folder / CATALOGUE).close()
        except (IndexNotFoundError, StorageError) as error:
            return str(error)
    return None


def _with_blocks(
    problems: list[str],
    store: DiskStore,
    published: set[str],
    finished: set[str],
    tell: Callable[[int, int], None],
    repair: bool,
) -> VerifyReport:
    """Blocks of published chunks must be there; those of an unfinished build may be."""
    stored = set(store.keys())
    missing = sorted(published - stored)
    problems += [f"block {key[:12]} is missing" for key in missing]
    damaged = removed = 0
    checked = sorted(stored & (published | finished))
    for done, key in enumerate(checked):
        tell(done, len(checked))
        try:
            store.verify(key)
        except (CorruptBlockError, StorageError) as error:
            damaged += 1
            problems.append(str(error))
            if repair and isinstance(error, CorruptBlockError):
                removed += store.delete(key)
    unneeded = len(stored) - len(checked)
    return VerifyReport(tuple(problems), len(checked), len(missing), damaged, removed, unneeded)
