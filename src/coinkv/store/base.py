"""What a store tier is: four verbs over immutable KV blocks, and how a block is named."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from coinkv.errors import InputError

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, eq=False)
class BlockRead:
    """Rows of one block.

    Attributes:
        kv: `[tokens, layers, 2, kv_heads, head_dim]` in the block's dtype, the spans' rows in the
            order asked; contiguous. The reader's own to change, but for a tier in memory, which
            may give a view of what it keeps: copy before changing it.
        positions: `[tokens]` int64, the positions the rows were encoded at.
        bytes_read: bytes really read from the tier, the header included when it was read.
        page_bytes: bytes of the distinct pages that the spans touch.
    """

    kv: torch.Tensor
    positions: torch.Tensor
    bytes_read: int
    page_bytes: int


class BlockStore(ABC):
    """A tier that keeps immutable KV blocks by key.

    The four verbs are `get`, `put`, `delete` and `keys`. All may be called from any thread.
    A key that is not 64 lower-case hex digits is an `InputError` in every one of them.
    """

    @abstractmethod
    def get(self, key: str, spans: Sequence[tuple[int, int]] | None = None) -> BlockRead | None:
        """Rows of a block; None when the block is not here.

        Args:
            key: 64 lower-case hex digits.
            spans: `[start, end)` token ranges in any order; they may touch, overlap, repeat and be
                empty. None asks for the whole block.

        Raises:
            InputError: a span lies outside the block.
            CorruptBlockError: what was read is damaged; the caller recomputes the block.
            StorageError: the tier could not be read.
        """

    @abstractmethod
    def put(self, key: str, kv: torch.Tensor, positions: torch.Tensor) -> int:
        """Keep a block; returns the bytes written, 0 when a block of this key is here already.

        Args:
            key: 64 lower-case hex digits.
            kv: `[tokens, layers, 2, kv_heads, head_dim]`, float16, bfloat16 or float32; kept as
                exactly as the tier's codec keeps numbers (`raw`: bit for bit, whatever they are).
            positions: `[tokens]` int64.

        Raises:
            InputError: the tensors have other shapes or dtypes, or numbers that the codec cannot
                hold.
            StorageError: no space, no permission; nothing half-written is left.
        """

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Forget a block; whether it was here.

        Raises:
            StorageError: the tier refuses.
        """

    @abstractmethod
    def keys(self) -> Iterator[str]:
        """The keys of all blocks here, whole or damaged, in order.

        Raises:
            StorageError: the tier cannot be listed.
        """

    @abstractmethod
    def size_bytes(self, key: str) -> int:
        """Bytes that a block takes in this tier, 0 when it is not here.

        Raises:
            StorageError: the tier refuses.
        """

    def total_bytes(self) -> int:
        """Bytes that all blocks take in this tier.

        Raises:
            StorageError: the tier refuses.
        """
        return sum(self.size_bytes(key) for key in self.keys())

    def verify(self, key: str) -> bool:
        """Read a block whole and check all of it; whether it is here.

        Raises:
            CorruptBlockError: any part of it is damaged.
            StorageError: the tier could not be read.
        """
        return self.get(key) is not None

    def sweep(self) -> int:
        """Remove what writers that died left behind; returns how many leftovers went."""
        return 0


def block_key(fingerprint: str, content_hash: str, prefix_hash: str | None) -> str:
    """The name of a block: sha256 over model, content and what it was encoded behind.

    Equal on every machine and in every process; different whenever a part differs.

    Args:
        fingerprint: of the backbone (weights, tokenizer, dtype, RoPE).
        content_hash: of the chunk's tokens.
        prefix_hash: of the tokens it was encoded behind, None when it was encoded alone.

    Returns:
        64 lower-case hex digits.
    """
    # JSON, since gluing the parts together would let ("ab", "c") and ("a", "bc") share a name.
    parts = json.dumps([fingerprint, content_hash, prefix_hash])
    return hashlib.sha256(parts.encode()).hexdigest()


def is_key(text: str) -> bool:
    """Whether a text is 64 lower-case hex digits."""
    return _KEY.fullmatch(text) is not None


def require_key(key: str) -> None:
    """Refuse what is no key, so that no path built from a key leaves its folder.

    Raises:
        InputError: it is not 64 lower-case hex digits.
    """
    if not isinstance(key, str) or not is_key(key):
        raise InputError(f"{key!r} is no block key", hint="a key is 64 lower-case hex digits")
