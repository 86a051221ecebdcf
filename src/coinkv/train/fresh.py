"""Fresh blocks: KV made by the weights as they are at this moment, and never kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from coinkv.kv.block import KVBlock
from coinkv.methods.base import Workbench
from coinkv.methods.blocks import ChunkBlocks, EncodeAfter, ReadCounts
from coinkv.model.backbone import Backbone
from coinkv.train.passes import PassRow, forward


@dataclass(frozen=True)
class FreshBlocks(ChunkBlocks):
    """The blocks of chunks, each encoded when it is asked for, with gradient where that is on.

    Every method composes with them as with stored ones: slicing, moving and joining carry the
    gradient along. With gradient a chunk is encoded once, however often it is asked for: the graph
    holds it anyway.

    Attributes:
        checkpointing: see `coinkv.train.passes.forward`.
    """

    checkpointing: bool = False
    _made: dict[tuple[str, tuple[int, int] | None, EncodeAfter], KVBlock] = field(
        default_factory=dict
    )

    def rows(
        self,
        content_hash: str,
        spans: Sequence[tuple[int, int]] | None,
        counts: ReadCounts,
        *,
        within: tuple[int, int] | None = None,
    ) -> KVBlock:
        """KV of token spans of a chunk, computed in full precision; see `ChunkBlocks.rows`."""
        block = self._encoded_part(content_hash, within)
        if spans is None:
            return block
        first = within[0] if within else 0
        kept = torch.cat([torch.arange(start - first, end - first) for start, end in spans])
        return KVBlock(block.keys[:, :, kept], block.values[:, :, kept], block.positions[kept])

    def _encoded_part(self, content_hash: str, within: tuple[int, int] | None) -> KVBlock:
        key = content_hash, within, self.encode_after
        if key in self._made:
            return self._made[key]
        token_ids = self.tokens_of(content_hash).token_ids
        first, last = within or (0, len(token_ids))
        before = self.prefix if self.encode_after == "prefix" else self.prefix[:0]
        block = _encoded(self.backbone, before, token_ids[first:last], self.checkpointing)
        if torch.is_grad_enabled():
            self._made[key] = block
        return block


def fresh_bench(bench: Workbench, backbone: Backbone, *, checkpointing: bool) -> Workbench:
    """The same prompt and chunks, all KV made by `backbone` now, the system prompt's included."""
    nothing = KVBlock(*_empty(backbone), torch.arange(0))
    prefix = _encoded(backbone, nothing, bench.prompt.prefix_ids, checkpointing)
    stored = bench.blocks
    blocks = FreshBlocks(
        backbone=backbone,
        prefix=prefix,
        prefix_hash=stored.prefix_hash,
        store=stored.store,
        encode_after=stored.encode_after,
        tokens_of=stored.tokens_of,
        checkpointing=checkpointing,
    )
    return replace(bench, blocks=blocks, backbone=backbone)


def _encoded(
    backbone: Backbone, before: KVBlock, token_ids: Sequence[int], checkpointing: bool
) -> KVBlock:
    positions = torch.arange(len(before), len(before) + len(token_ids))
    row = PassRow(before, tuple(token_ids), positions)
    return forward(backbone, [row], last=0, checkpointing=checkpointing).block(0, positions)


def _empty(backbone: Backbone) -> tuple[torch.Tensor, torch.Tensor]:
    shape = backbone.shape
    empty = torch.empty(
        (shape.layers, shape.kv_heads, 0, shape.head_dim),
        dtype=backbone.dtype,
        device=backbone.device,
    )
    return empty, empty
