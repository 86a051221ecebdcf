"""A block in the bytes of a codec, whole, and its rows read out of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from coinkv.errors import InputError
from coinkv.kv.codec import PAGE_TOKENS, Codec
from coinkv.store.base import BlockRead
from coinkv.store.layout import require_block


@dataclass(frozen=True, eq=False)
class EncodedBlock:
    """One block in the bytes of a codec.

    Attributes:
        codec: what `pages` is written in.
        pages: uint8 `[bytes]` on the CPU, the block's pages one behind the other; never written to.
        shape: `(tokens, layers, 2, kv_heads, head_dim)`.
        dtype: of keys and values.
        positions: `[tokens]` int64, never written to.
    """

    codec: Codec
    pages: torch.Tensor
    shape: tuple[int, ...]
    dtype: torch.dtype
    positions: torch.Tensor

    @property
    def bytes(self) -> int:
        """Bytes held: pages and positions."""
        return self.pages.nbytes + self.positions.nbytes

    def rows(self, spans: Sequence[tuple[int, int]] | None) -> BlockRead:
        """Rows as `BlockStore.get` gives them; one span of a raw block is a view of `pages`.

        Raises:
            InputError: a span lies outside the block.
        """
        tokens = self.shape[0]
        spans = [(0, tokens)] if spans is None else spans
        for start, end in spans:
            if not 0 <= start <= end <= tokens:
                raise InputError(f"span [{start}, {end}) lies outside a block of {tokens} tokens")
        parts = [self._decoded(start, end) for start, end in spans if end > start]
        positions = [self.positions[:0], *(self.positions[start:end] for start, end in spans)]
        touched = {page for start, end in spans for page in _pages(start, end)}
        page_bytes = sum(
            self._bytes_before(page + 1) - self._bytes_before(page) for page in touched
        )
        kv = parts[0] if len(parts) == 1 else torch.cat([self._none(), *parts])
        return BlockRead(kv, torch.cat(positions), page_bytes, page_bytes)

    def _decoded(self, start: int, end: int) -> torch.Tensor:
        pages = _pages(start, end)
        first = pages.start * PAGE_TOKENS
        content = self.pages[self._bytes_before(pages.start) : self._bytes_before(pages.stop)]
        page_tokens = [min(PAGE_TOKENS, self.shape[0] - page * PAGE_TOKENS) for page in pages]
        with torch.inference_mode(False):  # else writes into a view would not be counted
            kv = self.codec.decode(content, self.shape[1:], self.dtype, page_tokens)
        return kv[start - first : end - first]

    def _bytes_before(self, page: int) -> int:
        full = page * self.codec.page_bytes(self.shape[1:], self.dtype, PAGE_TOKENS)
        return min(full, self.pages.nbytes)

    def _none(self) -> torch.Tensor:
        return torch.empty((0, *self.shape[1:]), dtype=self.dtype)


def encode_block(kv: torch.Tensor, positions: torch.Tensor, codec: Codec) -> EncodedBlock:
    """A block in a codec's bytes, which are its own.

    Args:
        kv: `[tokens, layers, 2, kv_heads, head_dim]`, float16, bfloat16 or float32.
        positions: `[tokens]` int64.
        codec: to write it in.

    Raises:
        InputError: the tensors are no block, or this codec cannot hold such numbers.
    """
    require_block(kv, positions)
    with torch.inference_mode(False):  # so that the copy counts writes into it
        pages = codec.encode(kv)
        shares = pages.untyped_storage().data_ptr() == kv.untyped_storage().data_ptr()
        return EncodedBlock(
            codec=codec,
            pages=pages.clone() if shares or pages.is_inference() else pages,
            shape=tuple(kv.shape),
            dtype=kv.dtype,
            positions=positions.detach().cpu().clone(),
        )


def _pages(start: int, end: int) -> range:
    """The pages that tokens `[start, end)` touch."""
    return range(start // PAGE_TOKENS, -(-end // PAGE_TOKENS)) if end > start else range(0)
