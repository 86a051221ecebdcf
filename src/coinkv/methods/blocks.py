"""Blocks of chunks: read from the store, or recomputed from tokens when missing or damaged."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from coinkv.errors import CorruptBlockError, StorageError
from coinkv.kv.block import KVBlock
from coinkv.model.backbone import Backbone
from coinkv.model.fill import LiveCache, fill
from coinkv.store.base import BlockStore

EncodeAfter = Literal["prefix", "nothing"]
_log = logging.getLogger(__name__)


@dataclass
class ReadCounts:
    """What reading cost: bytes from the store, and blocks that had to be recomputed."""

    bytes_read: int = 0
    page_bytes: int = 0
    missing: int = 0
    damaged: int = 0


@dataclass(frozen=True)
class ChunkBlocks:
    """The KV blocks of an index's chunks, for one backbone and one prompt.

    Attributes:
        backbone: the model that encodes.
        prefix: KV of the system prompt at positions 0 on (`C_p`).
        store: where blocks are kept.
        encode_after: chunks are encoded behind the `prefix`, or behind `nothing` (as in the paper).
        key_of: the store key of a chunk's block by the chunk's content hash.
        token_ids_of: token ids of a chunk by its content hash.
    """

    backbone: Backbone
    prefix: KVBlock
    store: BlockStore
    encode_after: EncodeAfter
    key_of: Callable[[str], str]
    token_ids_of: Callable[[str], Sequence[int]]

    def encode(self, token_ids: Sequence[int]) -> KVBlock:
        """A chunk's KV in the dtype it is stored in: 16 bit, or float32 where 16 bit overflow.

        One forward pass over the chunk's tokens (paper arXiv 2608.07458, section 2.1), behind the
        cached prefix where `encode_after` says so.
        """
        before = self.prefix if self.encode_after == "prefix" else self.prefix[:0]
        total = len(before) + len(token_ids)
        cache = LiveCache.for_backbone(self.backbone, total)
        cache.append(before)
        live = torch.arange(len(before), total)
        fill(self.backbone, cache, token_ids, live, logits="none")
        return _stored(cache.view(len(before)))

    def write(self, content_hash: str, block: KVBlock) -> int:
        """Keep a chunk's block; returns the bytes written (0 when it is kept already)."""
        return self.store.put(self.key_of(content_hash), block.token_major(), block.positions)

    def rows(
        self, content_hash: str, spans: Sequence[tuple[int, int]] | None, counts: ReadCounts
    ) -> KVBlock:
        """KV of token spans of a chunk (None: all of it), as stored, positions as encoded.

        Args:
            content_hash: the chunk.
            spans: disjoint `[start, end)` token ranges in the chunk's token ids.
            counts: what the reading cost is added here.
        """
        key = self.key_of(content_hash)
        try:
            read = self.store.get(key, spans)
        except CorruptBlockError as error:
            counts.damaged += 1
            _log.warning("recomputing a damaged block: %s", error)
            self._forget(key)
        else:
            if read is not None:
                counts.bytes_read += read.bytes_read
                counts.page_bytes += read.page_bytes
                return KVBlock.from_token_major(read.kv, read.positions)
            counts.missing += 1
        block = self._restored(content_hash)
        if spans is None:
            return block
        rows = torch.cat([torch.arange(start, end) for start, end in spans])
        return KVBlock(block.keys[:, :, rows], block.values[:, :, rows], block.positions[rows])

    def _forget(self, key: str) -> None:
        try:
            self.store.delete(key)
        except StorageError as error:  # on a read-only disk it is recomputed each time
            _log.warning("a damaged block could not be removed: %s", error)

    def _restored(self, content_hash: str) -> KVBlock:
        block = self.encode(self.token_ids_of(content_hash))
        try:
            self.write(content_hash, block)
        except StorageError as error:  # the answer does not depend on keeping it
            _log.warning("a recomputed block could not be kept: %s", error)
        return block


def _stored(block: KVBlock) -> KVBlock:
    """The block on the CPU in 16 bit (float32 is halved), or unchanged where float16 overflows."""
    if block.keys.dtype != torch.float32:
        return block.to(block.keys.dtype, "cpu")
    half = block.to(torch.float16, "cpu")
    # one infinity makes a float32 sum infinite: cheaper than a look at every number
    sums = [half.keys.sum(dtype=torch.float32), half.values.sum(dtype=torch.float32)]
    return half if all(map(math.isfinite, sums)) else block.to(torch.float32, "cpu")
