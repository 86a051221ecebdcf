"""A KV block: keys and values of a run of tokens in all layers, and where they were encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from coinkv.errors import InputError

if TYPE_CHECKING:
    from coinkv.kv.rope import Rope


@dataclass(frozen=True)
class KVShape:
    """What the KV of one model looks like, whatever the number of tokens."""

    layers: int
    kv_heads: int
    head_dim: int

    @property
    def values_per_token(self) -> int:
        """Numbers stored for one token: keys and values, all layers and KV heads."""
        return self.layers * 2 * self.kv_heads * self.head_dim


@dataclass(frozen=True, eq=False)
class KVBlock:
    """Keys and values of a run of tokens, as encoded (keys rotated at `positions`).

    Every operation is pure: it returns a new block and never writes into this one. A slice shares
    memory with the block it was cut from.

    Args:
        keys: `[layers, kv_heads, tokens, head_dim]`, rotated by RoPE at `positions`.
        values: the same shape and dtype as `keys`.
        positions: `[tokens]` int64, the position each token was encoded at.

    Raises:
        InputError: the shapes or dtypes do not belong together.
    """

    keys: torch.Tensor
    values: torch.Tensor
    positions: torch.Tensor

    def __post_init__(self) -> None:
        if self.keys.ndim != 4 or self.keys.shape != self.values.shape:
            raise InputError(
                f"keys {tuple(self.keys.shape)} and values {tuple(self.values.shape)} are not both "
                "[layers, kv_heads, tokens, head_dim]"
            )
        if self.keys.dtype != self.values.dtype:
            raise InputError(f"keys are {self.keys.dtype}, values are {self.values.dtype}")
        if self.positions.dtype != torch.int64 or self.positions.shape != self.keys.shape[2:3]:
            raise InputError(
                f"positions must be int64 [{self.keys.shape[2]}], not {self.positions.dtype} "
                f"{list(self.positions.shape)}"
            )

    def __len__(self) -> int:
        return int(self.keys.shape[2])

    def __getitem__(self, tokens: slice) -> KVBlock:
        """The block of the tokens `[start:end]` (step 1), sharing this block's memory."""
        return KVBlock(self.keys[:, :, tokens], self.values[:, :, tokens], self.positions[tokens])

    @property
    def shape(self) -> KVShape:
        """Layers, KV heads and head size."""
        layers, kv_heads, _, head_dim = self.keys.shape
        return KVShape(layers, kv_heads, head_dim)

    def moved_to(self, positions: torch.Tensor, rope: Rope) -> KVBlock:
        """This block as if its tokens had been encoded at `positions`.

        One rotation of the keys by `positions - self.positions`; values do not depend on position.
        A move by 0 is the identity, bit for bit (paper arXiv 2608.07458, section 2.4; the offset
        is new minus old position, not the start position printed there).

        Args:
            positions: `[tokens]` int64 new positions.
            rope: the rotation the model applies.
        """
        if positions.shape != self.positions.shape:
            raise InputError(f"{len(self)} tokens cannot move to {len(positions)} positions")
        positions = positions.to(self.positions)
        return KVBlock(rope.rotated(self.keys, self.positions, positions), self.values, positions)

    def to(self, dtype: torch.dtype, device: torch.device | str) -> KVBlock:
        """This block in another dtype and on another device (positions stay int64, on the CPU)."""
        return KVBlock(
            self.keys.to(device=device, dtype=dtype),
            self.values.to(device=device, dtype=dtype),
            self.positions,
        )

    def token_major(self) -> torch.Tensor:
        """Keys and values as `[tokens, layers, 2, kv_heads, head_dim]`, the layout of the store."""
        return torch.stack((self.keys, self.values)).permute(3, 1, 0, 2, 4).contiguous()

    @staticmethod
    def from_token_major(kv: torch.Tensor, positions: torch.Tensor) -> KVBlock:
        """The block whose `token_major()` is `kv` `[tokens, layers, 2, kv_heads, head_dim]`."""
        if kv.ndim != 5 or kv.shape[2] != 2:
            raise InputError(f"{list(kv.shape)} is not [tokens, layers, 2, kv_heads, head_dim]")
        keys, values = kv.permute(2, 1, 3, 0, 4).unbind(0)
        return KVBlock(keys, values, positions)


def concat(blocks: Sequence[KVBlock]) -> KVBlock:
    """Blocks of one model joined in the given order, each keeping its positions.

    Raises:
        InputError: no block given, or blocks of different shape or dtype.
    """
    if not blocks:
        raise InputError("cannot join an empty list of KV blocks")
    first = blocks[0]
    if len({(block.shape, block.keys.dtype) for block in blocks}) > 1:
        raise InputError("cannot join KV blocks of different models or dtypes")
    if len(blocks) == 1:
        return first
    return KVBlock(
        torch.cat([block.keys for block in blocks], dim=2),
        torch.cat([block.values for block in blocks], dim=2),
        torch.cat([block.positions for block in blocks]),
    )
