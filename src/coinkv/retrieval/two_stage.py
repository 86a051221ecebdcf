"""Two-stage retrieval: the chunks nearest to a question, then the nearest nuggets among them; and
the one-stage retrieval it is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coinkv.errors import InputError
from coinkv.retrieval.index import VectorIndex


@dataclass(frozen=True)
class RetrievedChunk:
    """A chunk and its similarity to the question."""

    row: int
    content_hash: str
    score: float


@dataclass(frozen=True)
class RetrievedNugget:
    """A nugget of the chunk with this rank in the list.

    Attributes:
        chunk: the chunk's rank.
        start: first token in the chunk's token ids.
        end: one past the last token.
        score: similarity to the question.
        text_start: first character in the chunk's text.
        text_end: one past the last character.
    """

    chunk: int
    start: int
    end: int
    score: float
    text_start: int
    text_end: int


@dataclass(frozen=True)
class Retrieval:
    """What a question retrieves: chunks and nuggets, best first."""

    chunks: tuple[RetrievedChunk, ...]
    nuggets: tuple[RetrievedNugget, ...]


def retrieve(
    index: VectorIndex, query: NDArray[np.float32], *, k_chunks: int, k_nuggets: int
) -> Retrieval:
    """The top `k_chunks` chunks, then the top `k_nuggets` nuggets of those chunks only.

    Paper arXiv 2608.07458, section 2.3. Ties go to the better chunk, then to the earlier nugget.

    Args:
        index: vectors of chunks and nuggets.
        query: float32 `[dim]`, unit length.
        k_chunks: how many chunks.
        k_nuggets: how many nuggets; fewer come back when the chunks hold fewer.

    Raises:
        InputError: k below 1, or more chunks than the index holds.
    """
    if not 1 <= k_chunks <= index.chunks:
        raise InputError(f"k_chunks is {k_chunks}, the index holds {index.chunks} chunks")
    if k_nuggets < 1:
        raise InputError(f"k_nuggets is {k_nuggets}", hint="use 1 or more")
    rows, scores = index.search(query, k_chunks)
    chunks = tuple(
        RetrievedChunk(int(row), index.content_hash(int(row)), float(score))
        for row, score in zip(rows, scores, strict=True)
    )
    found = []
    for rank, row in enumerate(rows):
        spans, vectors = index.nuggets_of(int(row))
        similarity = vectors @ query
        found += [
            RetrievedNugget(rank, start, end, float(score), text_start, text_end)
            for (text_start, text_end, start, end), score in zip(
                spans.tolist(), similarity, strict=True
            )
        ]
    found.sort(key=lambda nugget: (-nugget.score, nugget.chunk, nugget.start))
    return Retrieval(chunks, tuple(found[:k_nuggets]))


def retrieve_nuggets(
    index: VectorIndex, query: NDArray[np.float32], *, k_nuggets: int
) -> Retrieval:
    """The top `k_nuggets` nuggets of the whole index, in one stage.

    The ablation of paper arXiv 2608.07458, section 4.3. The chunks are those the nuggets lie in,
    each in the place and with the score of its best nugget.

    Args:
        index: vectors of nuggets.
        query: float32 `[dim]`, unit length.
        k_nuggets: how many nuggets.

    Raises:
        InputError: k below 1.
    """
    if k_nuggets < 1:
        raise InputError(f"k_nuggets is {k_nuggets}", hint="use 1 or more")
    ranks: dict[int, int] = {}
    chunks: list[RetrievedChunk] = []
    nuggets = []
    for row, number, score in index.search_nuggets(query, k_nuggets):
        if row not in ranks:
            ranks[row] = len(chunks)
            chunks.append(RetrievedChunk(row, index.content_hash(row), score))
        text_start, text_end, start, end = index.nuggets_of(row)[0][number].tolist()
        nuggets.append(RetrievedNugget(ranks[row], start, end, score, text_start, text_end))
    return Retrieval(tuple(chunks), tuple(nuggets))
