"""CoinRAG with CacheBlend: nuggets' slices, with the tokens that deviate most computed again."""

from __future__ import annotations

from dataclasses import dataclass

from coinkv.errors import InputError
from coinkv.methods.base import Context, Workbench
from coinkv.methods.coinrag import CoinRAG
from coinkv.methods.mending import Blending
from coinkv.model.clock import StageClock
from coinkv.retrieval.two_stage import Retrieval


@dataclass(frozen=True)
class CoinRAGCacheBlend(Blending, CoinRAG):
    """CoinRAG's context with a share `ratio` of its tokens recomputed.

    Paper arXiv 2608.07458, section 2.6: nuggets of different chunks have not seen each other;
    recomputed tokens see everything before them in the context.
    """

    name = "coinrag_cacheblend"

    def __post_init__(self) -> None:
        Blending.__post_init__(self)
        CoinRAG.__post_init__(self)
        if not self.align:
            raise InputError("repair needs aligned positions", hint="leave align at true")

    def compose(
        self, bench: Workbench, evidence: Retrieval, room: int, clock: StageClock
    ) -> Context:
        """Compose as CoinRAG does, then leave the evidence live for the repair."""
        context = CoinRAG.compose(self, bench, evidence, room, clock)
        return self.blended(context, bench, evidence)
