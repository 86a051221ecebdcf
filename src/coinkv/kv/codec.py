"""Codecs: the numbers of a KV block as bytes, page by page, so that any page can be read alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, get_args

import torch

from coinkv.errors import InputError
from coinkv.kv.quantised import INT4_VALUES, INT8_VALUES, PageFormat

CodecName = Literal["raw", "int8", "kivi"]
CODECS: tuple[CodecName, ...] = get_args(CodecName)
PAGE_TOKENS = 32
"""Tokens of a page; a block's last page may be shorter."""

RowShape = Sequence[int]
"""`(layers, 2, kv_heads, head_dim)`: what the KV of one token looks like."""

_PAGES_AT_ONCE = 4
"""Pages quantised in one go: their float32 numbers stay in the processor's cache."""


class Codec(ABC):
    """One way to write KV as bytes. Stateless; safe from any thread.

    Pages are independent of each other: bytes and numbers of a page are the same whatever stands
    before and behind it.
    """

    name: CodecName

    @abstractmethod
    def encode(self, kv: torch.Tensor) -> torch.Tensor:
        """The pages of a block, one behind the other.

        Args:
            kv: `[tokens, layers, 2, kv_heads, head_dim]`, float16, bfloat16 or float32, one token
                at least.

        Returns:
            uint8 `[bytes]` on the CPU; it may share memory with `kv`.

        Raises:
            InputError: this codec cannot hold such numbers.
        """

    @abstractmethod
    def page_bytes(self, shape: RowShape, dtype: torch.dtype, tokens: int) -> int:
        """Bytes of a page of so many tokens, each `shape` in `dtype`."""

    @abstractmethod
    def decode(
        self,
        pages: torch.Tensor,
        shape: RowShape,
        dtype: torch.dtype,
        page_tokens: Sequence[int],
    ) -> torch.Tensor:
        """The numbers of pages, which need not have been neighbours.

        Args:
            pages: uint8 `[bytes]` on the CPU, contiguous: the pages one behind the other.
            shape: `(layers, 2, kv_heads, head_dim)`.
            dtype: of the block.
            page_tokens: how many tokens each page has.

        Returns:
            `[tokens, layers, 2, kv_heads, head_dim]` in `dtype`; it may share memory with `pages`.
        """

    def block_bytes(self, shape: RowShape, dtype: torch.dtype, tokens: int) -> int:
        """Bytes of all pages of a block."""
        full, rest = divmod(tokens, PAGE_TOKENS)
        last = self.page_bytes(shape, dtype, rest) if rest else 0
        return full * self.page_bytes(shape, dtype, PAGE_TOKENS) + last


@dataclass(frozen=True)
class Raw(Codec):
    """The model's own numbers, bit for bit, whatever they are (NaN and infinities included)."""

    name: CodecName = "raw"

    def encode(self, kv: torch.Tensor) -> torch.Tensor:
        """The memory of `kv`, copied only where it is not contiguous; see `Codec.encode`."""
        return kv.detach().cpu().contiguous().reshape(-1).view(torch.uint8)

    def page_bytes(self, shape: RowShape, dtype: torch.dtype, tokens: int) -> int:
        """See `Codec.page_bytes`."""
        layers, two, kv_heads, head_dim = shape
        return tokens * layers * two * kv_heads * head_dim * dtype.itemsize

    def decode(
        self,
        pages: torch.Tensor,
        shape: RowShape,
        dtype: torch.dtype,
        page_tokens: Sequence[int],
    ) -> torch.Tensor:
        """A view of `pages`; see `Codec.decode`."""
        return pages.view(dtype).view(sum(page_tokens), *shape)


@dataclass(frozen=True)
class Quantised(Codec):
    """Keys per channel and values per token as integers; `PageFormat` says how exact they are."""

    name: CodecName
    pages: PageFormat

    def encode(self, kv: torch.Tensor) -> torch.Tensor:
        """See `Codec.encode`.

        Raises:
            InputError: a number is NaN or infinite.
        """
        kv = kv.detach().cpu()
        full = len(kv) // PAGE_TOKENS * PAGE_TOKENS
        step = _PAGES_AT_ONCE * PAGE_TOKENS
        pages = [
            self._encoded(kv[at : min(at + step, full)].reshape(-1, PAGE_TOKENS, *kv.shape[1:]))
            for at in range(0, full, step)
        ]
        if full < len(kv):
            pages.append(self._encoded(kv[None, full:]))
        return torch.cat(pages)

    def page_bytes(self, shape: RowShape, dtype: torch.dtype, tokens: int) -> int:
        """See `Codec.page_bytes`; the dtype does not matter."""
        return self.pages.page_bytes(shape, tokens)

    def decode(
        self,
        pages: torch.Tensor,
        shape: RowShape,
        dtype: torch.dtype,
        page_tokens: Sequence[int],
    ) -> torch.Tensor:
        """See `Codec.decode`."""
        kv = torch.empty((sum(page_tokens), *shape), dtype=dtype)
        row = at = 0
        for tokens, count in _runs(page_tokens):
            length = self.page_bytes(shape, dtype, tokens)
            for start in range(0, count, _PAGES_AT_ONCE):
                several = min(_PAGES_AT_ONCE, count - start)
                rows = kv[row : row + several * tokens].view(several, tokens, *shape)
                self.pages.restore(pages[at : at + several * length].view(several, length), rows)
                row, at = row + several * tokens, at + several * length
        return kv

    def _encoded(self, kv: torch.Tensor) -> torch.Tensor:
        content = self.pages.encoded(kv)
        if content is None:
            raise InputError(
                f"the codec {self.name} cannot hold NaN or infinite numbers",
                hint="use the codec raw",
            )
        return content.flatten()


def _runs(page_tokens: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of pages of equal length: tokens of a page, and how many such pages."""
    for tokens, run in groupby(page_tokens):
        yield tokens, sum(1 for _ in run)


_CODECS: dict[str, Codec] = {
    "raw": Raw(),
    "int8": Quantised("int8", PageFormat(INT8_VALUES)),
    "kivi": Quantised("kivi", PageFormat(INT4_VALUES)),
}


def codec_named(name: str) -> Codec:
    """The codec of this name.

    Raises:
        InputError: there is none.
    """
    if name not in _CODECS:
        raise InputError(f"no codec is called {name!r}", hint=f"use one of {', '.join(CODECS)}")
    return _CODECS[name]
