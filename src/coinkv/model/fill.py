"""Fill: the one live computation. Tokens at given positions are computed in one forward pass, each
seeing exactly the positions before it, and their KV is written in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from coinkv.errors import InputError
from coinkv.kv.block import KVBlock, KVShape
from coinkv.kv.rope import Rope
from coinkv.model.backbone import Backbone
from coinkv.model.narrow import LiveRows, Narrowing, decoder_layers, narrowed
from coinkv.model.work import Work


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
        self._layers_computed = torch.zeros(capacity, dtype=torch.int32)
        self._attended = 0
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

    @property
    def layers_computed(self) -> torch.Tensor:
        """`[length]` int32: in how many layers each slot's KV was computed in this cache."""
        return self._layers_computed[: self.length]

    @property
    def work(self) -> Work:
        """What was computed in this cache; copied blocks cost nothing."""
        return Work(int(self._layers_computed.sum()), self._attended)

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
        self._layers_computed[self.length : end] = 0
        self.length = end

    def reserve(self, positions: torch.Tensor) -> None:
        """Take slots for tokens that are still to be computed at these positions."""
        end = self.length + len(positions)
        self._require(end)
        self._positions[self.length : end] = positions
        self._layers_computed[self.length : end] = 0
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
        held, order = self.positions.sort()
        at = torch.searchsorted(held, live).clamp(max=max(self.length - 1, 0))
        known = held[at] == live if self.length else torch.zeros(len(live), dtype=torch.bool)
        slots = torch.empty_like(live)
        slots[known] = order[at[known]]
        slots[~known] = torch.arange(self.length, self.length + int((~known).sum()))
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
    embeddings: dict[int, torch.Tensor] | None = None,
    narrowing: Narrowing | None = None,
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
        embeddings: input vectors `[hidden]` that replace those of the tokens at these indices.
        narrowing: leaves tokens out of later layers while the pass runs; what stands in the cache
            for them stays. Logits are then to be had for the last token only.

    Returns:
        float32 logits `[1, vocabulary]` or `[n, vocabulary]`, or None.

    Raises:
        InputError: the arguments do not fit together, or the cache has no room.
        UnsupportedModelError: this model cannot be narrowed.
    """
    if len(token_ids) != len(live) or not len(live):
        raise InputError(f"{len(token_ids)} tokens do not go to {len(live)} positions")
    if narrowing is not None and logits == "all":
        raise InputError("a narrowed pass gives the last token's logits only")
    live = live.to("cpu", torch.int64)
    if narrowing is None and _is_long(backbone, live):
        return _in_passes(backbone, cache, token_ids, live, logits, embeddings or {})
    slots = cache.slots_for(live)
    held = max(cache.length, int(slots.max()) + 1)
    positions = cache._positions[:held].clone()
    positions[slots] = live
    # slots behind all that is visible are left out: they may be reserved, and hold anything
    length = int((positions <= live.max()).nonzero().max()) + 1
    model = backbone.model.base_model if logits == "none" else backbone.model
    rows = LiveRows(slots)
    arguments: dict[str, Any] = {
        "position_ids": live.to(backbone.device)[None],
        "attention_mask": _mask(
            backbone, positions[:length], live, slots, always=narrowing is not None
        ),
        backbone.cache_argument: _SlotCache(cache, rows, length, narrowing),
        "use_cache": True,
    }
    if logits == "last" and backbone.keeps_logits:
        arguments["logits_to_keep"] = 1
    layers = decoder_layers(backbone.model, backbone.name) if narrowing is not None else None
    with backbone.computing(len(live)):
        arguments |= _input(backbone, token_ids, embeddings or {})
        with narrowed(layers, rows) if layers is not None else nullcontext():
            output = model(**arguments)
    cache._positions[:held] = positions
    cache.length = held
    if logits == "none":
        return None
    result: torch.Tensor = output.logits[0].float()
    return result[-1:] if logits == "last" else result


def _is_long(backbone: Backbone, live: torch.Tensor) -> bool:
    """Whether tokens are too many for one pass, and in an order in which they can go in several."""
    limit = backbone.pass_tokens
    return limit is not None and len(live) > limit and bool((live[1:] > live[:-1]).all())


def _in_passes(
    backbone: Backbone,
    cache: LiveCache,
    token_ids: Sequence[int],
    live: torch.Tensor,
    logits: Literal["last", "all", "none"],
    embeddings: dict[int, torch.Tensor],
) -> torch.Tensor | None:
    """The same as one pass: in the order of positions nobody needs what a later pass computes."""
    count = -(-len(live) // (backbone.pass_tokens or len(live)))
    rows = []
    for part in torch.arange(len(live)).tensor_split(count):
        start, end = int(part[0]), int(part[-1]) + 1
        wanted = logits if end == len(live) or logits == "all" else "none"
        here = {at - start: row for at, row in embeddings.items() if start <= at < end}
        rows.append(
            fill(
                backbone,
                cache,
                token_ids[start:end],
                live[start:end],
                logits=wanted,
                embeddings=here,
            )
        )
    return torch.cat([row for row in rows if row is not None]) if logits != "none" else None


def _input(
    backbone: Backbone, token_ids: Sequence[int], embeddings: dict[int, torch.Tensor]
) -> dict[str, torch.Tensor]:
    ids = torch.as_tensor(token_ids, device=backbone.device)[None]
    if not embeddings:
        return {"input_ids": ids}
    vectors = backbone.model.get_input_embeddings()(ids)
    for index, vector in embeddings.items():
        vectors[0, index] = vector
    return {"inputs_embeds": vectors}


def plain_prefill(backbone: Backbone, token_ids: Sequence[int]) -> None:
    """What transformers does by itself with a prompt: the yardstick that encoding is timed by."""
    ids = torch.as_tensor(token_ids, device=backbone.device)[None]
    keep = {"logits_to_keep": 1} if backbone.keeps_logits else {}
    with backbone.computing(len(token_ids)):
        backbone.model(input_ids=ids, use_cache=True, **keep)


def _mask(
    backbone: Backbone,
    positions: torch.Tensor,
    live: torch.Tensor,
    slots: torch.Tensor,
    *,
    always: bool = False,
) -> torch.Tensor | None:
    """Additive mask `[1, 1, n, length]` by position; None where causal attention is the same."""
    n, length = len(live), len(positions)
    in_order = bool((slots == torch.arange(length - n, length)).all()) and bool(
        (live[1:] > live[:-1]).all()
    )
    past_only = in_order and bool((positions[: length - n] < live[0]).all())
    if past_only and (n == 1 or n == length) and not always:
        return None
    visible = positions[None, :] <= live[:, None]
    mask = torch.zeros(visible.shape, dtype=backbone.dtype)
    mask.masked_fill_(~visible, torch.finfo(backbone.dtype).min)
    return mask.to(backbone.device)[None, None]


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's slots of a LiveCache, in the interface transformers' attention writes to."""

    def __init__(
        self,
        number: int,
        cache: LiveCache,
        rows: LiveRows,
        length: int,
        narrowing: Narrowing | None,
    ) -> None:
        super().__init__()
        # [1, kv_heads, capacity, head_dim]
        self.keys, self.values = cache.keys[number, None], cache.values[number, None]
        self.is_initialized = True
        self._number, self._cache, self._rows, self._length = number, cache, rows, length
        self._narrowing = narrowing
        self._written = False

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the buffers exist."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        slots, where = self._rows.slots, self._rows.place
        self._cache._layers_computed[slots] += 1
        self._cache._attended += len(slots) * self._length
        if self._narrowing is not None:
            cached = self.keys[0][:, where], self.values[0][:, where]
            fresh = key_states[0], value_states[0]
            kept = self._narrowing.keep(self._number, fresh, cached)
            if kept is not None:
                self._rows.narrow(kept)
        self.keys[:, :, where] = key_states
        self.values[:, :, where] = value_states
        self._written = True
        return self.keys[:, :, : self._length], self.values[:, :, : self._length]

    def get_seq_length(self) -> int:
        """Tokens held before this pass."""
        return self._length if self._written else self._length - len(self._rows.slots)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._length, 0

    def get_max_length(self) -> int:
        return -1


class _SlotCache(Cache):  # type: ignore[misc]
    """A LiveCache as the cache object of one forward pass."""

    def __init__(
        self, cache: LiveCache, rows: LiveRows, length: int, narrowing: Narrowing | None
    ) -> None:
        super().__init__(
            layers=[
                _SlotLayer(number, cache, rows, length, narrowing)
                for number in range(cache.keys.shape[0])
            ]
        )
