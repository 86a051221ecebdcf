"""Evidence: the places in documents that the retrieved chunks and nuggets stand for."""

from __future__ import annotations

from typing import Literal

from coinkv.corpus.catalogue import Catalogue
from coinkv.corpus.schema import Content, Placement
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
