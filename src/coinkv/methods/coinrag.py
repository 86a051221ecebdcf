"""CoinRAG: the nuggets' slices of cached chunk KV, moved into place."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch

from coinkv.kv.block import KVBlock, concat
from coinkv.methods.base import Context, Method, Piece, Placed, Workbench, place_behind_prefix
from coinkv.methods.blocks import ChunkBlocks, EncodeAfter, ReadCounts, require_encode_after
from coinkv.methods.options import require_one_of
from coinkv.methods.spans import Order, Run, disjoint, runs
from coinkv.model.clock import StageClock
from coinkv.retrieval.two_stage import Retrieval

Title = Literal["encoded", "shown", "none"]
Encoding = Literal["chunk", "isolated"]


@dataclass(frozen=True)
class CoinRAG(Method):
    """Slices of the chunks' KV at the retrieved nuggets, packed at consecutive positions.

    Paper arXiv 2608.07458, sections 2.3 and 2.4. Overlapping nuggets are merged, so that no token
    stands in the context twice. The options are the paper's ablations (section 4.3) and what it
    leaves open.

    Args:
        stages: 2 retrieves chunks, then nuggets of them; 1 retrieves nuggets of the whole index.
        encoding: a nugget's KV is cut from its `chunk`, or was made from the nugget alone
            (`isolated`; only nuggets that overlap are encoded as one).
        align: move the slices to consecutive positions; otherwise they stay where they stood in
            their chunk.
        order: `retrieval` is chunks as retrieved with nuggets in document order, `rank` nuggets by
            score, `document` chunks as they stand in the index.
        title: the chunk's title header is `encoded` with it and left out of the context, or `shown`
            there before the chunk's nuggets, or not even encoded (`none`).
        encode_after: what chunks were encoded behind; None: as the index was built.
    """

    stages: Literal[1, 2] = 2
    encoding: Encoding = "chunk"
    align: bool = True
    order: Order = "retrieval"
    title: Title = "encoded"
    encode_after: EncodeAfter | None = None

    name = "coinrag"
    unit = "nugget"

    def __post_init__(self) -> None:
        require_encode_after(self.encode_after)
        for option, allowed in (
            ("stages", (1, 2)),
            ("encoding", get_args(Encoding)),
            ("order", get_args(Order)),
            ("title", get_args(Title)),
        ):
            require_one_of(option, getattr(self, option), allowed)

    @property
    def one_stage(self) -> bool:
        """Whether nuggets are retrieved from the whole index."""
        return self.stages == 1

    def compose(
        self, bench: Workbench, evidence: Retrieval, room: int, clock: StageClock
    ) -> Context:
        """Read the nuggets' rows of each chunk and place them behind the prefix."""
        counts = ReadCounts()
        placed = self.slices(bench, evidence, clock, counts)
        return place_behind_prefix(bench, placed, room, clock, counts, align=self.align)

    def slices(
        self, bench: Workbench, evidence: Retrieval, clock: StageClock, counts: ReadCounts
    ) -> list[Placed]:
        """The nuggets' KV, chunk by chunk in the order of the context; takes the lap `read`."""
        blocks = bench.blocks.encoded_after(self.encode_after)
        chosen = runs(evidence, self.order, join_touching=self.encoding == "chunk")
        placed = []
        for at, run in enumerate(chosen):
            first = all(earlier.chunk != run.chunk for earlier in chosen[:at])
            content_hash = evidence.chunks[run.chunk].content_hash
            placed.append(self._placed(blocks, content_hash, run, first, counts))
        clock.lap("read")
        return placed

    def _placed(
        self, blocks: ChunkBlocks, content_hash: str, run: Run, first: bool, counts: ReadCounts
    ) -> Placed:
        spans = list(run.spans)
        within = None
        tokens = None if self.title == "encoded" else blocks.tokens_of(content_hash)
        if tokens is not None and tokens.header_tokens:
            header = tokens.header_tokens
            if self.title == "none":
                within = (header, len(tokens.token_ids))
            elif first:
                spans = disjoint([(0, header), *spans], join_touching=self.encoding == "chunk")
        if self.encoding == "isolated":
            alone = [blocks.rows(content_hash, None, counts, within=span) for span in spans]
            block = _joined(alone)
        else:
            block = blocks.rows(content_hash, spans, counts, within=within)
        return Placed(tuple(Piece(start, end, run.chunk) for start, end in spans), block)


def _joined(alone: list[KVBlock]) -> KVBlock:
    widest = torch.float32 if any(b.keys.dtype == torch.float32 for b in alone) else None
    return concat([block.to(widest or block.keys.dtype, "cpu") for block in alone])


OPTIONS = tuple(field.name for field in fields(CoinRAG))
"""Names of the options: what an ablation of CoinRAG changes."""
