"""Blocks of chunks: read from the store, or recomputed from tokens when missing or damaged."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from coinkv.errors import CorruptBlockError, InputError, StorageError
from coinkv.kv.block import KVBlock
from coinkv.model.backbone import Backbone
from coinkv.model.fill import LiveCache, fill
from coinkv.model.threads import one_thread
from coinkv.store.base import BlockStore, block_key

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
class ChunkTokens:
    """A chunk's tokens; the first `header_tokens` of them are its title header."""

    token_ids: Sequence[int]
    header_tokens: int


@dataclass(frozen=True)
class ChunkBlocks:
    """The KV blocks of an index's chunks, for one backbone and one prompt.

    Attributes:
        backbone: the model that encodes.
        prefix: KV of the system prompt at positions 0 on (`C_p`).
        prefix_hash: digest of the system prompt's tokens.
        store: where blocks are kept.
        encode_after: chunks are encoded behind the `prefix`, or behind `nothing` (as in the paper).
        tokens_of: tokens of a chunk by its content hash.
    """

    backbone: Backbone
    prefix: KVBlock
    prefix_hash: str
    store: BlockStore
    encode_after: EncodeAfter
    tokens_of: Callable[[str], ChunkTokens]

    def encoded_after(self, encode_after: EncodeAfter | None) -> ChunkBlocks:
        """The same chunks encoded behind something else; None: as the index was built.

        Such blocks are made when they are first asked for, and kept beside the others.
        """
        return self if encode_after is None else replace(self, encode_after=encode_after)

    def key_of(self, content: str) -> str:
        """The store key of a block: model, content and what it was encoded behind."""
        behind = self.prefix_hash if self.encode_after == "prefix" else None
        return block_key(self.backbone.fingerprint, content, behind)

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

    def write(self, content: str, block: KVBlock) -> int:
        """Keep a block; returns the bytes written (0 when it is kept already)."""
        return self.store.put(self.key_of(content), block.token_major(), block.positions)

    def rows(
        self,
        content_hash: str,
        spans: Sequence[tuple[int, int]] | None,
        counts: ReadCounts,
        *,
        within: tuple[int, int] | None = None,
    ) -> KVBlock:
        """KV of token spans of a chunk (None: all of it), as stored, positions as encoded.

        Args:
            content_hash: the chunk.
            spans: disjoint `[start, end)` token ranges in the chunk's token ids.
            counts: what the reading cost is added here.
            within: the part `[start, end)` of the chunk that was encoded, without the rest; spans
                lie in it and still count from the chunk's first token.
        """
        first, last = within or (0, 0)
        content = f"{content_hash}[{first}:{last}]" if within else content_hash
        if spans is not None:
            spans = [(start - first, end - first) for start, end in spans]
        key = self.key_of(content)
        try:
            with one_thread():  # decoding takes milliseconds
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
        token_ids = self.tokens_of(content_hash).token_ids
        block = self._restored(content, token_ids[first:last] if within else token_ids)
        if spans is None:
            return block
        rows = torch.cat([torch.arange(start, end) for start, end in spans])
        return KVBlock(block.keys[:, :, rows], block.values[:, :, rows], block.positions[rows])

    def _forget(self, key: str) -> None:
        try:
            self.store.delete(key)
        except StorageError as error:  # on a read-only disk it is recomputed each time
            _log.warning("a damaged block could not be removed: %s", error)

    def _restored(self, content: str, token_ids: Sequence[int]) -> KVBlock:
        block = self.encode(token_ids)
        try:
            self.write(content, block)
            kept = self.store.get(self.key_of(content))
        except (StorageError, CorruptBlockError) as error:
            _log.warning("a recomputed block could not be kept: %s", error)
            return block
        # as the store's codec gives it back: an answer does not depend on which blocks were lost
        return block if kept is None else KVBlock.from_token_major(kept.kv, kept.positions)


def require_encode_after(encode_after: str | None) -> None:
    """Refuse what chunks cannot be encoded behind.

    Raises:
        InputError: it is neither `prefix` nor `nothing`.
    """
    if encode_after is not None and encode_after not in get_args(EncodeAfter):
        raise InputError(f"encode_after is {encode_after!r}", hint="use 'prefix' or 'nothing'")


def _stored(block: KVBlock) -> KVBlock:
    """The block on the CPU in 16 bit (float32 is halved), or unchanged where float16 overflows."""
    if block.keys.dtype != torch.float32:
        return block.to(block.keys.dtype, "cpu")
    half = block.to(torch.float16, "cpu")
    # one infinity makes a float32 sum infinite: cheaper than a look at every number
    sums = [half.keys.sum(dtype=torch.float32), half.values.sum(dtype=torch.float32)]
    return half if all(map(math.isfinite, sums)) else block.to(torch.float32, "cpu")
