"""Evidence and citations as annotations, in the shape of OpenAI's URL citations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from coinkv.rag.answer import Evidence
from coinkv.rag.citations import Citation


def annotations_of(
    index: str,
    evidence: Sequence[Evidence],
    citations: Sequence[Citation] = (),
    *,
    first: int = 0,
) -> list[dict[str, Any]]:
    """One annotation for each piece of evidence, and one more for each further range it supports.

    Args:
        index: name of the index.
        evidence: the pieces.
        citations: what they support; a piece that supports nothing gets the range 0, 0.
        first: number of the first annotation. OpenAI's client joins the lists of a stream by these
            numbers, so a list that replaces another goes on counting.
    """
    ranges: list[list[tuple[int, int]]] = [[] for _ in evidence]
    for cited in citations:
        ranges[cited.evidence].append((cited.start, cited.end))
    firsts = [(piece, found[0] if found else (0, 0)) for piece, found in enumerate(ranges)]
    more = [(piece, each) for piece, found in enumerate(ranges) for each in found[1:]]
    return [
        {"index": first + number, **_annotation(index, evidence[piece], supported)}
        for number, (piece, supported) in enumerate([*firsts, *more])
    ]


def _annotation(index: str, piece: Evidence, supported: tuple[int, int]) -> dict[str, Any]:
    place = f"/v1/indexes/{quote(index)}/documents/{quote(piece.document)}"
    return {
        "type": "url_citation",
        "url_citation": {
            "url": f"{place}#char={piece.start},{piece.end}",
            "title": piece.title,
            "start_index": supported[0],
            "end_index": supported[1],
        },
        "document": piece.document,
        "title": piece.title,
        "chunk": piece.chunk,
        "start": piece.start,
        "end": piece.end,
        "quote": piece.text,
        "score": piece.score,
        "chunk_start": piece.chunk_start,
        "chunk_end": piece.chunk_end,
    }
