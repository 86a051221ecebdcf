"""Spans: which token ranges of which chunks the retrieved nuggets stand for, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from coinkv.retrieval.two_stage import Retrieval

Order = Literal["retrieval", "rank", "document"]
Span = tuple[int, int]


@dataclass(frozen=True)
class Run:
    """Disjoint token spans of the chunk of this rank, in document order."""

    chunk: int
    spans: tuple[Span, ...]


def runs(evidence: Retrieval, order: Order, *, join_touching: bool = True) -> list[Run]:
    """The nuggets' token spans in the order in which they stand in the context.

    No token is in two spans: nuggets that overlap are merged, and under `rank` the better nugget
    keeps what two share.

    Args:
        evidence: what was retrieved.
        order: `retrieval` and `document` give one run a chunk, `rank` one a nugget.
        join_touching: merge nuggets that only touch, too.
    """
    if order == "rank":
        return _by_rank(evidence)
    spans: dict[int, list[Span]] = {}
    for nugget in evidence.nuggets:
        spans.setdefault(nugget.chunk, []).append((nugget.start, nugget.end))
    chunks = sorted(spans)
    if order == "document":
        chunks.sort(key=lambda rank: evidence.chunks[rank].row)
    return [
        Run(chunk, tuple(disjoint(spans[chunk], join_touching=join_touching))) for chunk in chunks
    ]


def _by_rank(evidence: Retrieval) -> list[Run]:
    taken: dict[int, list[Span]] = {}
    found = []
    for nugget in evidence.nuggets:
        before = taken.get(nugget.chunk, [])
        left = without((nugget.start, nugget.end), before)
        if left:
            found.append(Run(nugget.chunk, tuple(left)))
            taken[nugget.chunk] = disjoint([*before, *left])
    return found


def disjoint(spans: Iterable[Span], *, join_touching: bool = True) -> list[Span]:
    """Token spans `[start, end)` merged where they overlap or touch, in document order.

    Without `join_touching` two spans of which one begins where the other ends stay two.
    """
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1] + join_touching:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def without(span: Span, taken: Iterable[Span]) -> list[Span]:
    """What is left of a span when disjoint, sorted spans are taken out of it."""
    start, end = span
    left = []
    for taken_start, taken_end in taken:
        if taken_end <= start or taken_start >= end:
            continue
        if taken_start > start:
            left.append((start, taken_start))
        start = taken_end
    if start < end:
        left.append((start, end))
    return left
