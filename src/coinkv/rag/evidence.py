"""Evidence: the places in documents that the retrieved chunks and nuggets stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from coinkv.corpus.catalogue import Catalogue
from coinkv.corpus.schema import Content, Placement
from coinkv.methods.base import Piece
from coinkv.rag.answer import Evidence
from coinkv.retrieval.two_stage import Retrieval


def evidence_of(
    catalogue: Catalogue, retrieval: Retrieval, unit: Literal["chunk", "nugget"]
) -> tuple[Evidence, ...]:
    """What stood in the context, best first: whole chunks, or nuggets.

    A chunk that stands in several documents is shown in the first of them.
    """
    hashes = [chunk.content_hash for chunk in retrieval.chunks]
    contents = catalogue.contents(hashes)
    places = {content_hash: catalogue.placements_of(content_hash)[0] for content_hash in hashes}
    if unit == "chunk":
        return tuple(
            _evidence(
                contents[chunk.content_hash],
                places[chunk.content_hash],
                (0, len(contents[chunk.content_hash].text)),
                chunk.score,
            )
            for chunk in retrieval.chunks
        )
    found = []
    for nugget in retrieval.nuggets:
        content_hash = hashes[nugget.chunk]
        characters = nugget.text_start, nugget.text_end
        found.append(
            _evidence(contents[content_hash], places[content_hash], characters, nugget.score)
        )
    return tuple(found)


def in_context(
    retrieval: Retrieval, pieces: Sequence[Piece], unit: Literal["chunk", "nugget"]
) -> Retrieval:
    """What was retrieved without the chunks or nuggets that a method left out of the context.

    Nuggets go on referring to their chunks by rank, so no chunk is left out for their sake.
    """
    if unit == "chunk":
        held = {piece.chunk for piece in pieces}
        chunks = tuple(chunk for n, chunk in enumerate(retrieval.chunks) if n in held)
        return replace(retrieval, chunks=chunks)
    nuggets = tuple(
        nugget
        for nugget in retrieval.nuggets
        if any(
            piece.chunk == nugget.chunk
            and max(piece.start, nugget.start) < min(piece.end, nugget.end)
            for piece in pieces
        )
    )
    return replace(retrieval, nuggets=nuggets)


def _evidence(
    content: Content, place: Placement, characters: tuple[int, int], score: float
) -> Evidence:
    start, end = characters
    return Evidence(
        document=place.document_key,
        title=content.title,
        chunk=place.ordinal,
        start=place.start + start,
        end=place.start + end,
        text=content.text[start:end],
        score=score,
        chunk_start=place.start,
        chunk_end=place.end,
    )
