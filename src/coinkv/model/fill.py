"""Fill: the one live computation. Tokens at given positions are computed in one forward pass, each
seeing exactly the positions before it, and their KV is written in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from coinkv.errors import InputError
from coinkv.kv.block import KVBlock, KVShape
from coinkv.kv.rope import Rope
from coinkv.model.backbone import Backbone


class LiveCache:
    """KV under construction: a buffer with room for `capacity` tokens, each slot with its position.

    Blocks are copied in, so stored blocks never change by use. Slots need not be in the order of
    their positions: what a token sees is decided by position. Not safe for use from two threads.

    Args:
        shape: the model's KV shape.
        capacity: the most tokens it can hold.
        dtype: dtype of keys and values.
        device: where they live.
    """

    def __init__(
        self, shape: KVShape, capacity: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        size = (shape.layers, shape.kv_heads, capacity, shape.head_dim)
        self.keys = torch.empty(size, dtype=dtype, device=device)
        self.values = torch.empty(size, dtype=dtype, device=device)
        self._positions = torch.empty(capacity, dtype=torch.int64)
        self.length = 0

    @classmethod
    def for_backbone(cls, backbone: Backbone, capacity: int) -> LiveCache:
        """An empty cache for a backbone."""
        return cls(backbone.shape, capacity, backbone.dtype, backbone.device)

    @property
    def capacity(self) -> int:
        """How many tokens fit."""
        return int(self._positions.shape[0])

    @property
    def positions(self) -> torch.Tensor:
        """`[length]` int64: the position of each filled slot."""
        return self._positions[: self.length]

    def append(self, block: KVBlock) -> None:
        """Copy a block behind what is there (cast to this cache's dtype).

        Raises:
            InputError: there is no room left.
        """
        end = self.length + len(block)
        self._require(end)
        self.keys[:, :, self.length : end] = block.keys
        self.values[:, :, self.length : end] = block.values
        self._positions[self.length : end] = block.positions
        self.length = end

    def move(self, start: int, positions: torch.Tensor, rope: Rope) -> None:
        """Turn the slots from `start` on to new positions, in place: this cache's copy moves.

        The same as appending `block.moved_to(positions, rope)`, without the copies in between.

        Args:
            start: first slot.
            positions: `[length - start]` int64.
            rope: the rotation the model applies.
        """
        held = self.positions[start:]
        rope.rotate_in_place(self.keys[:, :, start : self.length], held, positions)
        held.copy_(positions)

    def block(self, start: int = 0, end: int | None = None) -> KVBlock:
        """A copy of the slots `[start:end)` as a block."""
        shared = self.view()[start:end]
        return KVBlock(shared.keys.clone(), shared.values.clone(), shared.positions.clone())

    def view(self, start: int = 0) -> KVBlock:
        """The slots from `start` on as a block that shares this cache's memory: read it at once."""
        end = self.length
        return KVBlock(
            self.keys[:, :, start:end], self.values[:, :, start:end], self._positions[start:end]
        )

    def truncate(self, length: int) -> None:
        """Forget the slots from `length` on."""
        self.length = min(self.length, length)

    def slots_for(self, live: torch.Tensor) -> torch.Tensor:
        """`[n]` int64: the slot of each live position; positions not held yet get new slots."""
        if self.length == 0 or bool(live.min() > self.positions.max()):
            slots = torch.arange(self.length, self.length + len(live))
        else:
            held = {int(position): slot for slot, position in enumerate(self.positions)}
            fresh = iter(range(self.length, self.length + len(live)))
            slots = torch.tensor(
                [held[p] if p in held else next(fresh) for p in (int(p) for p in live)]
            )
        self._require(int(slots.max()) + 1)
        return slots

    def _require(self, tokens: int) -> None:
        if tokens > self.capacity:
            raise InputError(f"a cache for {self.capacity} tokens cannot hold {tokens}")


def fill(
    backbone: Backbone,
    cache: LiveCache,
    token_ids: Sequence[int],
    live: torch.Tensor,
    *,
    logits: Literal["last", "all", "none"] = "last",
) -> torch.Tensor | None:
    """Compute tokens at the `live` positions in one forward pass and write their KV in place.

    Each live token sees the live and the cached tokens at positions up to its own. Prefill, decode,
    holes between reused blocks and the repair of seams are all this call.

    Args:
        backbone: the model.
        cache: holds KV at some positions; a live position it already holds is overwritten, others
            take new slots.
        token_ids: the n tokens.
        live: `[n]` int64 distinct positions of these tokens.
        logits: for which live tokens (in the order given) logits are returned.

    Returns:
        float32 logits `[1, vocabulary]` or `[n, vocabulary]`, or None.

    Raises:
        InputError: the arguments do not fit together, or the cache has no room.
    """
    if len(token_ids) != len(live) or not len(live):
        raise InputError(f"{len(token_ids)} tokens do not go to {len(live)} positions")
    live = live.to("cpu", torch.int64)
    slots = cache.slots_for(live)
    length = max(cache.length, int(slots.max()) + 1)
    positions = cache._positions[:length].clone()
    positions[slots] = live
    model = backbone.model.base_model if logits == "none" else backbone.model
    arguments: dict[str, Any] = {
        "input_ids": torch.as_tensor(token_ids, device=backbone.device)[None],
        "position_ids": live.to(backbone.device)[None],
        "attention_mask": _mask(backbone, positions, live, slots),
        backbone.cache_argument: _SlotCache(cache, slots, length),
        "use_cache": True,
    }
    if logits == "last" and backbone.keeps_logits:
        arguments["logits_to_keep"] = 1
    with backbone.computing():
        output = model(**arguments)
    cache._positions[:length] = positions
    cache.length = length
    if logits == "none":
        return None
    result: torch.Tensor = output.logits[0].float()
    return result[-1:] if logits == "last" else result


def plain_prefill(backbone: Backbone, token_ids: Sequence[int]) -> None:
    """What transformers does by itself with a prompt: the yardstick that encoding is timed by."""
    ids = torch.as_tensor(token_ids, device=backbone.device)[None]
    keep = {"logits_to_keep": 1} if backbone.keeps_logits else {}
    with backbone.computing():
        backbone.model(input_ids=ids, use_cache=True, **keep)


def _mask(
    backbone: Backbone, positions: torch.Tensor, live: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor | None:
    """Additive mask `[1, 1, n, length]` by position; None where causal attention is the same."""
    n, length = len(live), len(positions)
    in_order = bool((slots == torch.arange(length - n, length)).all()) and bool(
        (live[1:] > live[:-1]).all()
    )
    past_only = in_order and bool((positions[: length - n] < live[0]).all())
    if past_only and (n == 1 or n == length):
        return None
    visible = positions[None, :] <= live[:, None]
    mask = torch.zeros(visible.shape, dtype=backbone.dtype)
    mask.masked_fill_(~visible, torch.finfo(backbone.dtype).min)
    return mask.to(backbone.device)[None, None]


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's slots of a LiveCache, in the interface transformers' attention writes to."""

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor | slice, length: int
    ) -> None:
        super().__init__()
        self.keys, self.values = keys, values  # [1, kv_heads, capacity, head_dim]
        self.is_initialized = True
        self._slots, self._length = slots, length
        self._written = False

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the buffers exist."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys[:, :, self._slots] = key_states
        self.values[:, :, self._slots] = value_states
        self._written = True
        return self.keys[:, :, : self._length], self.values[:, :, : self._length]

    def get_seq_length(self) -> int:
        """Tokens held before this pass."""
        live = (
            self._slots.stop - self._slots.start
            if isinstance(self._slots, slice)
            else len(self._slots)
        )
        return self._length if self._written else self._length - live

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._length, 0

    def get_max_length(self) -> int:
        return -1


class _SlotCache(Cache):  # type: ignore[misc]
    """A LiveCache as the cache object of one forward pass."""

    def __init__(self, cache: LiveCache, slots: torch.Tensor, length: int) -> None:
        first, last = int(slots[0]), int(slots[-1])
        run = torch.equal(slots, torch.arange(first, first + len(slots)))
        where = slice(first, last + 1) if run else slots.to(cache.keys.device)
        super().__init__(
            layers=[
                _SlotLayer(cache.keys[layer, None], cache.values[layer, None], where, length)
                for layer in range(cache.keys.shape[0])
            ]
        )
