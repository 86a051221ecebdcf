"""KVLink: chunks encoded alone, tied together by link tokens that are computed live."""

from __future__ import annotations

from dataclasses import dataclass

from coinkv.methods.base import Context, Method, Workbench, read_chunks
from coinkv.methods.blocks import ReadCounts
from coinkv.methods.links import Linking
from coinkv.model.clock import StageClock
from coinkv.retrieval.two_stage import Retrieval


@dataclass(frozen=True)
class KVLink(Linking, Method):
    """Whole chunks with link tokens behind each (arXiv 2502.16002).

    A chunk sees itself only, not even the system prompt; link tokens and question see all that
    stands before them. Link tokens are computed in one pass with the question. Meant for trained
    embeddings and an adapter (`CoinRAG(adapter=...)`).
    """

    name = "kvlink"
    unit = "chunk"

    def compose(
        self, bench: Workbench, evidence: Retrieval, room: int, clock: StageClock
    ) -> Context:
        """Read every chunk's block whole and leave link tokens live behind each."""
        counts = ReadCounts()
        placed = read_chunks(bench.blocks.encoded_after("nothing"), evidence, clock, counts)
        return self.linked(bench, placed, room, clock, counts)
