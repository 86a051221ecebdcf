"""Pages of quantised KV on KIVI's axes: keys per channel, values per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from coinkv.kv.grid import Grid, Groups, packed, unpacked

_KEYS = Grid(
    largest=255,
    first_offset=-608,
    offset_step=64,
    offset_codes=16,
    steps_per_octave=1,
    step_codes=16,
)
INT8_VALUES = Grid(
    largest=255,
    first_offset=-2168,
    offset_step=16,
    offset_codes=256,
    steps_per_octave=16,
    step_codes=256,
)
INT4_VALUES = Grid(
    largest=15,
    first_offset=-24,
    offset_step=0.125,
    offset_codes=256,
    steps_per_octave=16,
    step_codes=256,
)


@dataclass(frozen=True)
class PageFormat:
    """Keys as 8-bit integers per channel, values as 8 or 4-bit integers per token.

    A *channel* is one of the `head_dim` numbers of one KV head in one layer. The keys of a channel
    in the tokens of a page are a group: key channels differ in size, and an outlier among them
    disturbs no other. The values of a token in one KV head and layer are a group: an outlier
    token disturbs no other (arXiv 2402.02750, section 3). Groups that share a top (see `Grid`) are
    the channels of a KV head in the keys, and the tokens of a page and KV head in the values.

    How far a number can be from the one encoded, in terms of its group's R = max - min and
    M = largest magnitude; rounding to the block's dtype comes on top:

    - keys: `max(R / 191, M / 607)`;
    - values of `int8`: `max(R / 457, M / 4150)`;
    - values of `kivi`: `max(R / 28.4, M / 43.8)`;
    - never less than 2**-15 of the bound of another group under the same top, nor than 2**-126.

    A group of zeros is exact.

    A page of t tokens is a row of sections, each uint8 or int8 in C order:

    | section | shape |
    |---|---|
    | tops of the keys, tops of the values (int8) | `[layers, kv_heads]` each |
    | codes of the keys' steps (low four bits) and offsets | `[layers, kv_heads, head_dim]` |
    | codes of the values' steps | `[t, layers, kv_heads]` |
    | codes of the values' offsets | `[t, layers, kv_heads]` |
    | keys | `[t, layers, kv_heads, head_dim]` |
    | values, in `kivi` `packed` over all of a token | `[t, layers, kv_heads, head_dim]` |
    """

    values: Grid

    def page_bytes(self, shape: Sequence[int], tokens: int) -> int:
        """Bytes of a page of so many tokens, each `(layers, 2, kv_heads, head_dim)`."""
        return sum(self._sections(shape, tokens))

    def encoded(self, kv: torch.Tensor) -> torch.Tensor | None:
        """Pages of equal length; None when a number is NaN or infinite.

        Args:
            kv: `[pages, tokens, layers, 2, kv_heads, head_dim]`.

        Returns:
            uint8 `[pages, bytes]`.
        """
        keys = _KEYS.quantise(kv[:, :, :, 0].float(), along=1, under=4)
        values = self.values.quantise(kv[:, :, :, 1].float(), along=4, under=1)
        if keys is None or values is None:
            return None
        numbers = values.numbers.flatten(2)
        sections = (
            keys.tops.view(torch.uint8),
            values.tops.view(torch.uint8),
            keys.steps | keys.offsets << 4,
            values.steps,
            values.offsets,
            keys.numbers,
            packed(numbers) if self._packs else numbers,
        )
        return torch.cat([section.flatten(1) for section in sections], dim=1)

    def restore(self, pages: torch.Tensor, kv: torch.Tensor) -> None:
        """Write the numbers of pages of equal length where they belong.

        Args:
            pages: uint8 `[pages, bytes]`.
            kv: `[pages, tokens, layers, 2, kv_heads, head_dim]`, written to.
        """
        numbers = torch.empty(kv[:, :, :, 0].shape)
        largest = torch.finfo(kv.dtype).max
        keys, values = self._groups(pages, kv.shape)
        for half, grid, groups in ((0, _KEYS, keys), (1, self.values, values)):
            # half a step beyond the dtype's largest number would be infinite
            kv[:, :, :, half] = grid.restore(groups, numbers).clamp_(-largest, largest)

    def _sections(self, shape: Sequence[int], tokens: int) -> list[int]:
        """Bytes of each section of a page."""
        layers, _, kv_heads, head_dim = shape
        heads = layers * kv_heads
        channels = heads * head_dim
        packed_values = -(-channels // 2) if self._packs else channels
        per_token = [tokens * each for each in (heads, heads, channels, packed_values)]
        return [heads, heads, channels, *per_token]

    @property
    def _packs(self) -> bool:
        return self.values.largest <= 15

    def _groups(self, pages: torch.Tensor, shape: Sequence[int]) -> tuple[Groups, Groups]:
        """Keys and values of pages `[pages, bytes]` of such a shape."""
        count, tokens, layers, _, kv_heads, head_dim = shape
        heads, channels = (count, 1, layers, kv_heads, 1), (count, 1, layers, kv_heads, head_dim)
        per_token, every = (count, tokens, layers, kv_heads, 1), (count, tokens, *channels[2:])
        sections = torch.split(pages, self._sections(shape[2:], tokens), dim=1)
        key_tops, value_tops, codes, steps, offsets, keys, values = sections
        codes = codes.view(channels)
        if self._packs:
            values = unpacked(values.view(count, tokens, -1), layers * kv_heads * head_dim)
        return (
            Groups(
                numbers=keys.view(every),
                steps=codes & 15,
                offsets=codes >> 4,
                tops=key_tops.view(torch.int8).view(heads),
            ),
            Groups(
                numbers=values.view(every),
                steps=steps.view(per_token),
                offsets=offsets.view(per_token),
                tops=value_tops.view(torch.int8).view(heads),
            ),
        )
