"""Publish: make a finished generation of an index the one that readers see, in one step."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from coinkv.corpus.catalogue import Catalogue
from coinkv.corpus.schema import Content, DocumentRow, Placement
from coinkv.errors import IndexMismatchError
from coinkv.rag.index import VECTORS, vectors_folder
from coinkv.rag.settings import IndexSettings, keep_settings
from coinkv.retrieval.index import VectorIndex
from coinkv.store.base import BlockStore

_BATCH = 256


def publish(
    folder: Path,
    catalogue: Catalogue,
    embedder_identity: str,
    settings: IndexSettings,
    store: BlockStore,
    documents: Sequence[DocumentRow],
    placements: Sequence[Placement],
) -> None:
    """Write the vectors of the next generation, switch to it, and drop what nothing needs.

    The contents of all placements must be in the catalogue, embedded by that embedder. The switch
    is one transaction of the catalogue: a crash before it leaves the old generation, a crash after
    it the new one. The generation before stays on disk for readers that have it open.
    """
    generation = catalogue.generation + 1
    hashes = list(dict.fromkeys(placement.content_hash for placement in placements))
    VectorIndex.write(
        vectors_folder(folder, generation),
        _contents(catalogue, hashes, embedder_identity),
        embedder_identity,
    )
    keep_settings(catalogue, generation, settings)
    catalogue.publish(documents, placements, generation)
    for old in (folder / VECTORS).iterdir():
        if old.name not in (str(generation), str(generation - 1)):
            shutil.rmtree(old, ignore_errors=True)
    wanted = {settings.block_key(content_hash) for content_hash in catalogue.hashes()}
    for key in list(store.keys()):
        if key not in wanted:
            store.delete(key)


def _contents(
    catalogue: Catalogue, hashes: Sequence[str], embedder_identity: str
) -> Iterator[Content]:
    for start in range(0, len(hashes), _BATCH):
        batch = catalogue.contents(hashes[start : start + _BATCH])
        for content_hash in hashes[start : start + _BATCH]:
            if batch[content_hash].embedder != embedder_identity:
                raise IndexMismatchError(
                    "a build with another embedder was cut off here",
                    hint="run that build again first",
                )
            yield batch[content_hash]
