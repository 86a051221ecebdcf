"""Standard RAG: full prefill of the retrieved chunks' text, nothing reused."""

from __future__ import annotations

from dataclasses import dataclass

from coinkv.methods.base import Context, Method, Piece, Workbench, compute_all
from coinkv.model.clock import StageClock
from coinkv.retrieval.two_stage import Retrieval


@dataclass(frozen=True)
class StandardRAG(Method):
    """System prompt, whole chunks in retrieval order and question, all encoded per question.

    The baseline (a) of paper arXiv 2608.07458, figure 1. It reads the same token ids as
    `standard_cag`, so that the two differ in KV only.
    """

    name = "standard_rag"
    unit = "chunk"

    def compose(
        self, bench: Workbench, evidence: Retrieval, room: int, clock: StageClock
    ) -> Context:
        """Leave every token live: the whole context is computed with the question."""
        lengths = [len(bench.blocks.tokens_of(c.content_hash).token_ids) for c in evidence.chunks]
        pieces = [Piece(0, length, rank) for rank, length in enumerate(lengths)]
        return compute_all(bench, pieces, evidence, room, clock)
