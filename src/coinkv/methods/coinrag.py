"""CoinRAG: the nuggets' slices of cached chunk KV, moved into place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coinkv.methods.base import Context, Method, Workbench, place_behind_prefix
from coinkv.methods.blocks import ReadCounts
from coinkv.methods.clock import StageClock
from coinkv.retrieval.two_stage import Retrieval


@dataclass(frozen=True)
class CoinRAG(Method):
    """Slices of the chunks' KV at the retrieved nuggets, packed at consecutive positions.

    Paper arXiv 2608.07458, sections 2.3 and 2.4. Chunks stand in retrieval order, the nuggets of a
    chunk in document order; overlapping nuggets are merged, so that no token stands in the context
    twice.
    """

    name = "coinrag"
    unit = "nugget"

    def compose(
        self, bench: Workbench, evidence: Retrieval, room: int, clock: StageClock
    ) -> Context:
        """Read the nuggets' rows of each chunk and place them behind the prefix."""
        counts, blocks = ReadCounts(), []
        for rank, chunk in enumerate(evidence.chunks):
            spans = disjoint((n.start, n.end) for n in evidence.nuggets if n.chunk == rank)
            if spans:
                blocks.append(bench.blocks.rows(chunk.content_hash, spans, counts))
        clock.lap("read")
        return place_behind_prefix(bench, blocks, room, clock, counts)


def disjoint(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Token spans `[start, end)` merged where they touch or overlap, in document order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
