"""TurboRAG: chunks encoded alone and joined whole, with either of its two kinds of positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from coinkv.methods.base import Context, Method, Workbench, place_behind_prefix, read_chunks
from coinkv.methods.blocks import EncodeAfter, ReadCounts, require_encode_after
from coinkv.methods.options import require_one_of
from coinkv.model.clock import StageClock
from coinkv.retrieval.two_stage import Retrieval

Positions = Literal["reordered", "composite"]


@dataclass(frozen=True)
class TurboRAG(Method):
    """Whole chunks, each encoded without any other text (arXiv 2410.07590).

    Trained for by an adapter (`CoinRAG(adapter=...)`); without one this is its training-free form.

    Args:
        positions: `reordered` moves the chunks to consecutive positions, as TurboRAG's released
            code does; `composite` leaves every chunk where it was encoded, so that all begin at the
            same position, which is the variant that CoinRAG was compared with (arXiv 2608.07458,
            appendix G).
        encode_after: what chunks were encoded behind; None: as the index was built.
    """

    positions: Positions = "reordered"
    encode_after: EncodeAfter | None = "nothing"

    name = "turborag"
    unit = "chunk"

    def __post_init__(self) -> None:
        require_encode_after(self.encode_after)
        require_one_of("positions", self.positions, get_args(Positions))

    def compose(
        self, bench: Workbench, evidence: Retrieval, room: int, clock: StageClock
    ) -> Context:
        """Read every chunk's block whole and join them at these positions."""
        counts = ReadCounts()
        blocks = bench.blocks.encoded_after(self.encode_after)
        placed = read_chunks(blocks, evidence, clock, counts)
        align = self.positions == "reordered"
        return place_behind_prefix(bench, placed, room, clock, counts, align=align)
