"""The memory tier: blocks in a codec's bytes, read as views where the codec allows it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import torch

from coinkv.errors import CorruptBlockError
from coinkv.kv.codec import CodecName, codec_named
from coinkv.store.base import BlockRead, BlockStore, require_key
from coinkv.store.encoded import EncodedBlock, encode_block


class MemoryStore(BlockStore):
    """Blocks in this process's memory, in a codec's bytes (`raw`: as they are).

    What `get` returns must not be written into: it may be a view of the block, since copying
    would cost more than anything else here, and it stays whole when the block is deleted. A write
    by any operation of torch is noticed at the next `get`, which refuses the block.

    Args:
        codec: that blocks are kept in.

    Raises:
        InputError: there is no such codec.
    """

    def __init__(self, codec: CodecName = "raw") -> None:
        self._codec = codec_named(codec)
        self._blocks: dict[str, tuple[EncodedBlock, int]] = {}
        self._total_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: str, spans: Sequence[tuple[int, int]] | None = None) -> BlockRead | None:
        """Rows of a block, not to be written into; see `BlockStore.get`.

        Raises:
            CorruptBlockError: somebody wrote into what an earlier `get` returned.
        """
        require_key(key)
        found = self._blocks.get(key)
        if found is None:
            return None
        block, version = found
        if block.pages._version != version:
            raise CorruptBlockError(
                "the block was written into",
                where=f"block {key} in memory",
                hint="copy what get() returns before changing it",
            )
        return block.rows(spans)

    def put(self, key: str, kv: torch.Tensor, positions: torch.Tensor) -> int:
        """Keep a copy of a block in the store's codec; see `BlockStore.put`."""
        require_key(key)
        return self.hold(key, self.encoded(kv, positions))

    def encoded(self, kv: torch.Tensor, positions: torch.Tensor) -> EncodedBlock:
        """A block in the store's codec, to be given to `hold`; see `encode_block`."""
        return encode_block(kv, positions, self._codec)

    def hold(self, key: str, block: EncodedBlock) -> int:
        """Keep a block that is encoded already, in any codec; see `BlockStore.put`."""
        require_key(key)
        with self._lock:
            if key in self._blocks:
                return 0
            self._blocks[key] = block, block.pages._version
            self._total_bytes += block.bytes
        return block.bytes

    def delete(self, key: str) -> bool:
        """Forget a block; whether it was here. Reads of it that were returned stay whole."""
        require_key(key)
        with self._lock:
            found = self._blocks.pop(key, None)
            self._total_bytes -= found[0].bytes if found else 0
        return found is not None

    def keys(self) -> Iterator[str]:
        """The keys of all blocks here, in order."""
        return iter(sorted(self._blocks))

    def size_bytes(self, key: str) -> int:
        """Bytes of a block's pages and positions, 0 when it is not here."""
        require_key(key)
        found = self._blocks.get(key)
        return found[0].bytes if found else 0

    def total_bytes(self) -> int:
        """Bytes of all blocks."""
        return self._total_bytes
