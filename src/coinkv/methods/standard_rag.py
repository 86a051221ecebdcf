"""Standard RAG: full prefill of the retrieved chunks' text, nothing reused."""

from __future__ import annotations

from dataclasses import dataclass

from coinkv.methods.base import Context, Method, Workbench
from coinkv.methods.clock import StageClock
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
        """Leave every token pending: the whole context is computed with the question."""
        pending = list(bench.prompt.prefix_ids)
        for chunk in evidence.chunks:
            pending += bench.blocks.token_ids_of(chunk.content_hash)
        clock.lap("read")
        cache = bench.context(len(pending), room)
        clock.lap("compose")
        return Context(cache, tuple(pending))
