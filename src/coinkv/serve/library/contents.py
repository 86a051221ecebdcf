"""What an index holds, read from its catalogue without a model and without ever writing to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from coinkv.corpus.catalogue import Catalogue
from coinkv.corpus.schema import DOCUMENTS, PLACEMENTS, DocumentRow
from coinkv.corpus.sqlite import sqlite_engine
from coinkv.errors import InputError
from coinkv.rag.index import BLOCKS, CATALOGUE, open_published
from coinkv.store.disk import DiskStore


@dataclass(frozen=True)
class Contents:
    """Totals over the published generation; all zero where nothing is published.

    Attributes:
        generation: its number.
        documents: documents.
        chunks: distinct chunks.
        nuggets: nuggets of all chunks.
        tokens: tokens of the distinct chunks.
        kv_bytes: bytes of the KV blocks on the disk.
    """

    generation: int = 0
    documents: int = 0
    chunks: int = 0
    nuggets: int = 0
    tokens: int = 0
    kv_bytes: int = 0


@dataclass(frozen=True)
class DocumentFacts:
    """A document without its text.

    Attributes:
        key: its key.
        title: its title, perhaps empty.
        characters: length of its text.
        chunks: chunks that stand in it.
    """

    key: str
    title: str
    characters: int
    chunks: int


def contents_of(folder: Path) -> Contents:
    """What is published in an index folder.

    Raises:
        IndexMismatchError: it has another format version.
        IndexNotFoundError, StorageError: it is damaged or cannot be read.
    """
    if generation_of(folder) == 0:
        return Contents()
    catalogue, _, generation = open_published(folder)
    with catalogue:
        totals = catalogue.stats()
    return Contents(
        generation=generation,
        documents=totals.documents,
        chunks=totals.chunks,
        nuggets=totals.exact + totals.fuzzy,
        tokens=totals.tokens,
        kv_bytes=DiskStore(folder / BLOCKS).total_bytes(),
    )


def list_documents(folder: Path, after: str, limit: int) -> list[DocumentFacts]:
    """Published documents by key, from the first key behind `after`, at most `limit`.

    The texts stay where they are: a list of a large index costs as little as one of a small one.
    """
    if not is_begun(folder):
        return []
    chunks = (
        select(func.count()).where(PLACEMENTS.c.document_key == DOCUMENTS.c.key).scalar_subquery()
    )
    query = (
        select(DOCUMENTS.c.key, DOCUMENTS.c.title, func.length(DOCUMENTS.c.text), chunks)
        .where(DOCUMENTS.c.key > after)
        .order_by(DOCUMENTS.c.key)
        .limit(limit)
    )
    engine = sqlite_engine(folder / CATALOGUE)
    try:
        with engine.connect() as connection:
            return [DocumentFacts(*row) for row in connection.execute(query)]
    finally:
        engine.dispose()


def document_of(folder: Path, key: str) -> DocumentRow | None:
    """A published document with its text; None when there is none of this key."""
    if not is_begun(folder):
        return None
    with Catalogue.open(folder / CATALOGUE) as catalogue:
        try:
            return catalogue.document(key)
        except InputError:
            return None


def generation_of(folder: Path) -> int:
    """The published generation, 0 when there is none."""
    if not is_begun(folder):
        return 0
    with Catalogue.open(folder / CATALOGUE) as catalogue:
        return catalogue.generation


def is_begun(folder: Path) -> bool:
    """Whether a build has made its catalogue; to open an empty file would be to write to it."""
    path = folder / CATALOGUE
    return path.is_file() and path.stat().st_size > 0
