"""Text nuggets: full prefill of the selected nuggets' text, nothing reused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from coinkv.methods.base import Context, Method, Piece, Workbench, compute_all
from coinkv.methods.options import require_one_of
from coinkv.methods.spans import Order, runs
from coinkv.model.clock import StageClock
from coinkv.retrieval.two_stage import Retrieval


@dataclass(frozen=True)
class TextNuggets(Method):
    """System prompt, the nuggets of CoinRAG as text, and question, all encoded per question.

    The cheap baseline beside `coinrag`: the same token ids in the same order, so that the two
    differ in KV only. Standard RAG of sentences, in other words.

    Args:
        order: as in `coinrag`.
    """

    order: Order = "retrieval"

    name = "text_nuggets"
    unit = "nugget"

    def __post_init__(self) -> None:
        require_one_of("order", self.order, get_args(Order))

    def compose(
        self, bench: Workbench, evidence: Retrieval, room: int, clock: StageClock
    ) -> Context:
        """Leave every token live: the whole context is computed with the question."""
        pieces = [
            Piece(start, end, run.chunk)
            for run in runs(evidence, self.order)
            for start, end in run.spans
        ]
        return compute_all(bench, pieces, evidence, room, clock)
