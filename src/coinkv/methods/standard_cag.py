"""Standard CAG: the retrieved chunks' whole cached KV, moved into place."""

from __future__ import annotations

from dataclasses import dataclass

from coinkv.methods.base import Context, Method, Workbench, place_behind_prefix
from coinkv.methods.blocks import ReadCounts
from coinkv.methods.clock import StageClock
from coinkv.retrieval.two_stage import Retrieval


@dataclass(frozen=True)
class StandardCAG(Method):
    """Whole chunks, encoded offline, moved and joined in retrieval order.

    Paper arXiv 2608.07458, section 3.1.
    """

    name = "standard_cag"
    unit = "chunk"

    def compose(
        self, bench: Workbench, evidence: Retrieval, room: int, clock: StageClock
    ) -> Context:
        """Read every chunk's block whole and place them behind the prefix."""
        counts = ReadCounts()
        blocks = [bench.blocks.rows(chunk.content_hash, None, counts) for chunk in evidence.chunks]
        clock.lap("read")
        return place_behind_prefix(bench, blocks, room, clock, counts)
