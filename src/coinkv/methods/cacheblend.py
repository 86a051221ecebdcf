"""CacheBlend: whole cached chunks, with the tokens that deviate most computed again."""

from __future__ import annotations

from dataclasses import dataclass

from coinkv.methods.base import Context, Method, Workbench, place_behind_prefix, read_chunks
from coinkv.methods.blocks import EncodeAfter, ReadCounts, require_encode_after
from coinkv.methods.mending import Blending
from coinkv.model.clock import StageClock
from coinkv.retrieval.two_stage import Retrieval


@dataclass(frozen=True)
class CacheBlend(Blending, Method):
    """Standard CAG's context with a share `ratio` of its tokens recomputed (arXiv 2405.16444).

    Up to the check layer all evidence is computed, behind it only the picks, each seeing exactly
    the positions before it; probe, picks and question are one forward pass.

    Args:
        encode_after: what chunks were encoded behind; None: as the index was built.
    """

    encode_after: EncodeAfter | None = None

    name = "cacheblend"
    unit = "chunk"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_encode_after(self.encode_after)

    def compose(
        self, bench: Workbench, evidence: Retrieval, room: int, clock: StageClock
    ) -> Context:
        """Place every chunk's block, then leave its tokens live for the repair."""
        counts = ReadCounts()
        blocks = bench.blocks.encoded_after(self.encode_after)
        placed = read_chunks(blocks, evidence, clock, counts)
        context = place_behind_prefix(bench, placed, room, clock, counts)
        return self.blended(context, bench, evidence)
