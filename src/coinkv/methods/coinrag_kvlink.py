"""CoinRAG with KVLink: nuggets' slices, with link tokens behind those of each chunk."""

from __future__ import annotations

from dataclasses import dataclass

from coinkv.errors import InputError
from coinkv.methods.base import Context, Workbench
from coinkv.methods.blocks import ReadCounts
from coinkv.methods.coinrag import CoinRAG
from coinkv.methods.links import Linking
from coinkv.model.clock import StageClock
from coinkv.retrieval.two_stage import Retrieval


@dataclass(frozen=True)
class CoinRAGKVLink(Linking, CoinRAG):
    """CoinRAG's context with link tokens, which see all nuggets before them (appendix H).

    Paper arXiv 2608.07458, section 2.6 and appendix H, where the results are mixed.
    """

    name = "coinrag_kvlink"

    def __post_init__(self) -> None:
        Linking.__post_init__(self)
        CoinRAG.__post_init__(self)
        if not self.align:
            raise InputError("link tokens need aligned positions", hint="leave align at true")

    def compose(
        self, bench: Workbench, evidence: Retrieval, room: int, clock: StageClock
    ) -> Context:
        """Slice as CoinRAG does and leave link tokens live behind each chunk's nuggets."""
        counts = ReadCounts()
        placed = self.slices(bench, evidence, clock, counts)
        return self.linked(bench, placed, room, clock, counts)
