"""Block-Attention: blocks encoded from position 0, moved into place; the last block sees all."""

from __future__ import annotations

from dataclasses import dataclass

from coinkv.methods.base import Context, Method, Workbench, place_behind_prefix, read_chunks
from coinkv.methods.blocks import ReadCounts
from coinkv.model.clock import StageClock
from coinkv.retrieval.two_stage import Retrieval


@dataclass(frozen=True)
class BlockAttention(Method):
    """Every chunk is a block that sees itself only; the question is the last block and sees all.

    arXiv 2409.15355. The system prompt is a block like any other, so chunks are encoded alone, from
    position 0, and their keys move to where they stand. Trained for by an adapter
    (`CoinRAG(adapter=...)`); without one its context is that of `turborag` with reordered positions
    (arXiv 2608.07458, section 3.1, calls the two essentially identical in design).
    """

    name = "block_attention"
    unit = "chunk"

    def compose(
        self, bench: Workbench, evidence: Retrieval, room: int, clock: StageClock
    ) -> Context:
        """Read every block whole and place them behind the prefix."""
        counts = ReadCounts()
        blocks = bench.blocks.encoded_after("nothing")
        placed = read_chunks(blocks, evidence, clock, counts)
        return place_behind_prefix(bench, placed, room, clock, counts)
