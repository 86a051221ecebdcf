"""The catalogue's tables, and a row of each as the rest of coinkv sees it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Column, Integer, LargeBinary, MetaData, String, Table, Text

METADATA = MetaData()
DOCUMENTS = Table(
    "documents",
    METADATA,
    Column("key", Text, primary_key=True),
    Column("title", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("content_hash", String(64), nullable=False),
)
CONTENTS = Table(
    "contents",
    METADATA,
    Column("content_hash", String(64), primary_key=True),
    Column("title", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("header_tokens", Integer, nullable=False),
    Column("token_ids", LargeBinary, nullable=False),
    Column("nuggets", LargeBinary, nullable=False),
    Column("exact", Integer, nullable=False),
    Column("fuzzy", Integer, nullable=False),
    Column("abandoned", Integer, nullable=False),
    Column("covered_tokens", Integer, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("extractor", Text, nullable=False),
    Column("embedder", Text, nullable=False),
    Column("chunk_vector", LargeBinary, nullable=False),
    Column("nugget_vectors", LargeBinary, nullable=False),
    Column("last_generation", Integer, nullable=False),
)
PLACEMENTS = Table(
    "placements",
    METADATA,
    Column("document_key", Text, primary_key=True),
    Column("ordinal", Integer, primary_key=True),
    Column("content_hash", String(64), nullable=False, index=True),
    Column("start", Integer, nullable=False),
    Column("end", Integer, nullable=False),
)
PLACEMENTS_BEFORE = Table(
    "placements_before",
    METADATA,
    *(Column(column.name, column.type, primary_key=column.primary_key) for column in PLACEMENTS.c),
)
STATE = Table(
    "state",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
ARRAYS = {"token_ids": "<i4", "nuggets": "<i4", "chunk_vector": "<f4", "nugget_vectors": "<f4"}
NOT_IN_CONTENT = ("tokens", "last_generation")
PLACE_ORDER = (PLACEMENTS.c.document_key, PLACEMENTS.c.ordinal)


@dataclass(frozen=True)
class DocumentRow:
    """A published document; `content_hash` is 64 hex digits over what its chunks depend on."""

    key: str
    title: str
    text: str
    content_hash: str


@dataclass(frozen=True)
class Placement:
    """Where a chunk stands: characters `[start, end)` of a document, as its `ordinal`-th chunk."""

    document_key: str
    ordinal: int
    content_hash: str
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Content:
    """A finished chunk: text, tokens, nuggets and vectors, wherever it stands.

    Attributes:
        content_hash: 64 hex digits over all that the chunk's KV depends on.
        title: title of the document, without the header's line break.
        text: the chunk's text, without the title header.
        header_tokens: tokens of the title header, at the front of `token_ids`.
        token_ids: `[tokens]` int32, title header included.
        nuggets: `[n, 5]` int32: character start and end in `text`, token start and end in
            `token_ids`, kind (0 exact, 1 fuzzy).
        exact: candidates matched verbatim (paper arXiv 2608.07458, section 2.2).
        fuzzy: candidates matched by similarity.
        abandoned: candidates that matched nothing.
        covered_tokens: tokens that lie in at least one nugget.
        extractor: identity of the extractor.
        embedder: identity of the embedder.
        chunk_vector: `[dimension]` float32.
        nugget_vectors: `[n, dimension]` float32, a row a nugget.
    """

    content_hash: str
    title: str
    text: str
    header_tokens: int
    token_ids: NDArray[np.int32]
    nuggets: NDArray[np.int32]
    exact: int
    fuzzy: int
    abandoned: int
    covered_tokens: int
    extractor: str
    embedder: str
    chunk_vector: NDArray[np.float32]
    nugget_vectors: NDArray[np.float32]


@dataclass(frozen=True)
class CatalogueStats:
    """Totals over the published generation.

    Attributes:
        documents: documents.
        chunks: distinct chunks.
        tokens: tokens of the distinct chunks, title headers included.
        exact: nuggets matched verbatim.
        fuzzy: nuggets matched by similarity.
        abandoned: candidates that matched nothing.
        coverage: share of the chunks' tokens, title headers left out, that lie in a nugget.
    """

    documents: int
    chunks: int
    tokens: int
    exact: int
    fuzzy: int
    abandoned: int
    coverage: float
