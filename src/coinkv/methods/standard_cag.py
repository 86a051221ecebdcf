"""Standard CAG: the retrieved chunks' whole cached KV, moved into place."""

from __future__ import annotations

from dataclasses import dataclass

from coinkv.methods.base import Context, Method, Workbench, place_behind_prefix, read_chunks
from coinkv.methods.blocks import EncodeAfter, ReadCounts, require_encode_after
from coinkv.model.clock import StageClock
from coinkv.retrieval.two_stage import Retrieval


@dataclass(frozen=True)
class StandardCAG(Method):
    """Whole chunks, encoded offline, moved and joined in retrieval order.

    Paper arXiv 2608.07458, section 3.1.

    Args:
        encode_after: what chunks were encoded behind; None: as the index was built.
    """

    encode_after: EncodeAfter | None = None

    name = "standard_cag"
    unit = "chunk"

    def __post_init__(self) -> None:
        require_encode_after(self.encode_after)

    def compose(
        self, bench: Workbench, evidence: Retrieval, room: int, clock: StageClock
    ) -> Context:
        """Read every chunk's block whole and place them behind the prefix."""
        counts = ReadCounts()
        blocks = bench.blocks.encoded_after(self.encode_after)
        placed = read_chunks(blocks, evidence, clock, counts)
        return place_behind_prefix(bench, placed, room, clock, counts)
