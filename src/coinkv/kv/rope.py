"""RoPE as a move: the rotation that takes keys from where they were encoded to elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Layout = Literal["half", "interleaved"]


@dataclass(frozen=True, eq=False)
class Rope:
    """The rotation one model applies to its keys (RoFormer, arXiv 2104.09864).

    Attention scaling (YaRN and kin) multiplies cos and sin in the model; it is in the stored keys
    already, a move is a pure rotation and must not apply it twice.

    Args:
        inv_freq: `[layers, pairs]` float32 angles per position in radians, one row a layer, or
            `[1, pairs]` where all layers rotate alike. A row of zeros is a layer without rotation.
            Only the first `2 * pairs` numbers of a head rotate (partial rotary).
        layout: which numbers form a pair: `half` pairs i with i + pairs, `interleaved` 2i with
            2i + 1.
    """

    inv_freq: torch.Tensor
    layout: Layout

    @property
    def rotary_dim(self) -> int:
        """How many numbers of each head rotate."""
        return 2 * int(self.inv_freq.shape[1])

    def rotated(
        self, keys: torch.Tensor, positions: torch.Tensor, new_positions: torch.Tensor
    ) -> torch.Tensor:
        """Keys encoded at `positions`, turned to `new_positions`; `keys` itself if nothing moves.

        Args:
            keys: `[layers, kv_heads, tokens, head_dim]`, any floating dtype.
            positions: `[tokens]` int64.
            new_positions: `[tokens]` int64.
        """
        if torch.equal(positions, new_positions):
            return keys
        moved = keys.clone(memory_format=torch.contiguous_format)
        self.rotate_in_place(moved, positions, new_positions)
        return moved

    def rotate_in_place(
        self, keys: torch.Tensor, positions: torch.Tensor, new_positions: torch.Tensor
    ) -> None:
        """Turn keys the caller owns, as `rotated` does.

        Angles are the model's own float32 products position x frequency, so that moved keys meet
        the keys the model would have made; their difference, cos and sin are taken in float64.
        Tokens that do not move keep their bits.
        """
        stays = positions == new_positions
        if bool(stays.all()):
            return
        staying = stays.nonzero()[:, 0].to(keys.device)
        kept = keys[:, :, staying] if len(staying) else None
        cos, sin = self._turn(positions, new_positions, keys.device)
        first, second = self._pairs(keys)
        if keys.dtype == torch.float32:
            before = first.clone()
            first.mul_(cos).addcmul_(second, sin, value=-1)
            second.mul_(cos).addcmul_(before, sin)
        else:  # one rounding to 16 bit, at the end
            a, b = first.float(), second.float()
            first.copy_(a * cos - b * sin)
            second.copy_(b * cos + a * sin)
        if kept is not None:
            keys[:, :, staying] = kept

    def _turn(
        self, old: torch.Tensor, new: torch.Tensor, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        freq = self.inv_freq.to("cpu")[:, None, None, :]  # [layers or 1, 1, 1, pairs]
        old_angle, new_angle = (
            (at.to("cpu", torch.float32)[:, None] * freq).double() for at in (old, new)
        )
        angle = new_angle - old_angle  # [layers or 1, 1, tokens, pairs]
        return angle.cos().float().to(device), angle.sin().float().to(device)

    def _pairs(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.layout == "interleaved":
            return keys[..., 0 : self.rotary_dim : 2], keys[..., 1 : self.rotary_dim : 2]
        half = self.rotary_dim // 2
        return keys[..., :half], keys[..., half : self.rotary_dim]
