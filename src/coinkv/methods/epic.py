"""EPIC: whole cached chunks, the first tokens of each computed again."""

from __future__ import annotations

from dataclasses import dataclass

from coinkv.errors import InputError
from coinkv.methods.base import Context, Method, Workbench, place_behind_prefix, read_chunks
from coinkv.methods.blocks import EncodeAfter, ReadCounts, require_encode_after
from coinkv.methods.mending import recomputing
from coinkv.model.clock import StageClock
from coinkv.repair.head import heads
from coinkv.retrieval.two_stage import Retrieval


@dataclass(frozen=True)
class EPIC(Method):
    """Standard CAG's context with the head of every chunk recomputed (LegoLink, arXiv 2410.15332).

    The choice is static, so there is no probe.

    Args:
        tokens: how many of each chunk's first tokens are recomputed.
        encode_after: what chunks were encoded behind; None: as the index was built.
    """

    tokens: int = 16
    encode_after: EncodeAfter | None = None

    name = "epic"
    unit = "chunk"

    def __post_init__(self) -> None:
        require_encode_after(self.encode_after)
        if self.tokens < 0:
            raise InputError(f"tokens is {self.tokens}", hint="use 0 or more")

    def compose(
        self, bench: Workbench, evidence: Retrieval, room: int, clock: StageClock
    ) -> Context:
        """Place every chunk's block, then leave its head live."""
        counts = ReadCounts()
        blocks = bench.blocks.encoded_after(self.encode_after)
        placed = read_chunks(blocks, evidence, clock, counts)
        context = place_behind_prefix(bench, placed, room, clock, counts)
        chosen = heads([len(part.block) for part in placed], self.tokens)
        return recomputing(context, bench, evidence, chosen)
