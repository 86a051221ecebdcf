"""A pass with gradient: live tokens of several rows, each behind KV of its own, in one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import Cache, CacheLayerMixin

from coinkv.kv.block import KVBlock
from coinkv.model.backbone import Backbone
from coinkv.model.narrow import decoder_layers

_NOWHERE = 1 << 40  # a position no token can see


@dataclass(frozen=True, eq=False)
class PassRow:
    """One row of a pass.

    Attributes:
        cached: KV that is ready, each token at its own position, in any order.
        token_ids: the tokens to compute.
        positions: `[n]` int64, where they stand.
        embeddings: input vectors `[hidden]` that replace those of the tokens at these indices.
    """

    cached: KVBlock
    token_ids: tuple[int, ...]
    positions: torch.Tensor
    embeddings: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Passed:
    """What a pass computed.

    Attributes:
        logits: `[rows, last, vocabulary]` float32 behind the last tokens of each row; None when
            none were wanted.
        keys: of each layer `[rows, kv_heads, longest, head_dim]`, rows shorter than the longest
            filled at the front.
        values: likewise.
    """

    logits: torch.Tensor | None
    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    def block(self, row: int, positions: torch.Tensor) -> KVBlock:
        """The KV of a row's tokens, with their gradient."""
        tokens = len(positions)
        keys, values = (
            torch.stack([layer[row, :, -tokens:] for layer in layers])
            for layers in (self.keys, self.values)
        )
        widest = torch.promote_types(keys.dtype, values.dtype)  # autocast halves values only
        return KVBlock(keys.to(widest), values.to(widest), positions)


def forward(
    backbone: Backbone, rows: Sequence[PassRow], *, last: int, checkpointing: bool = False
) -> Passed:
    """Compute the live tokens of rows together; each sees what its row holds up to its position.

    The same numbers as `coinkv.model.fill.fill` row by row, up to the rounding of other matrix
    shapes, but nothing is written in place, so gradients flow through all of it, into cached KV
    too. To be called where passes are made with gradient (`Learner.learning`) or without
    (`Backbone.computing`).

    Args:
        backbone: the model.
        rows: at least one; rows with fewer tokens than the longest are filled at the front.
        last: logits are wanted behind so many last tokens of each row; 0 for none.
        checkpointing: keep a layer's input only and compute the rest again in the backward pass
            (arXiv 1604.06174).
    """
    longest = max(len(row.token_ids) for row in rows)
    behind = max(len(row.cached) for row in rows)
    model = backbone.model if last else backbone.model.base_model
    cache = _BehindCache(rows, behind)
    arguments: dict[str, Any] = {
        "position_ids": _filled([row.positions for row in rows], longest, 0).to(backbone.device),
        "attention_mask": _mask(backbone, rows, longest, behind),
        backbone.cache_argument: cache,
        "use_cache": True,
        **_input(backbone, rows, longest),
    }
    if last and backbone.keeps_logits:
        arguments["logits_to_keep"] = last
    with checkpointed(backbone) if checkpointing else ExitStack():
        output = model(**arguments)
    logits = output.logits[:, -last:].float() if last else None
    return Passed(
        logits,
        [layer.fresh[0] for layer in cache.layers],
        [layer.fresh[1] for layer in cache.layers],
    )


@contextmanager
def checkpointed(backbone: Backbone) -> Iterator[None]:
    """Within the block, every decoder layer keeps its input only and is computed again backwards.

    Transformers' own switch takes the cache away from the layers; these keep theirs, which only
    joins what it is given and may be asked twice.

    Raises:
        UnsupportedModelError: the model keeps its layers in no list of their own.
    """
    with ExitStack() as undo:
        for layer in decoder_layers(backbone.model, backbone.name):
            undo.callback(_restore, layer, vars(layer).get("forward"))
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        yield


def _restore(layer: Any, forward: Any | None) -> None:
    """Give a layer back the forward of its own that others had put in place, or its class's."""
    del layer.forward
    if forward is not None:
        layer.forward = forward


def _input(backbone: Backbone, rows: Sequence[PassRow], longest: int) -> dict[str, torch.Tensor]:
    ids = _filled([torch.tensor(row.token_ids) for row in rows], longest, 0).to(backbone.device)
    if not any(row.embeddings for row in rows):
        return {"input_ids": ids}
    vectors = backbone.model.get_input_embeddings()(ids)
    replaced = [
        (number, longest - len(row.token_ids) + at, vector)
        for number, row in enumerate(rows)
        for at, vector in row.embeddings.items()
    ]
    numbers, places, given = zip(*replaced, strict=True)
    where = (torch.tensor(numbers, device=ids.device), torch.tensor(places, device=ids.device))
    return {"inputs_embeds": vectors.index_put(where, torch.stack(given).to(vectors.dtype))}


def _filled(rows: Sequence[torch.Tensor], longest: int, value: int) -> torch.Tensor:
    """Rows `[n]` int64 as one `[rows, longest]`, filled at the front."""
    filled = torch.full((len(rows), longest), value, dtype=torch.int64)
    for number, row in enumerate(rows):
        filled[number, longest - len(row) :] = row
    return filled


def _mask(backbone: Backbone, rows: Sequence[PassRow], longest: int, behind: int) -> torch.Tensor:
    """Additive mask `[rows, 1, longest, behind + longest]` by position."""
    held = _filled([row.cached.positions for row in rows], behind, _NOWHERE)
    live = _filled([row.positions for row in rows], longest, _NOWHERE)
    asking = live.where(live < _NOWHERE, torch.tensor(0))[:, :, None]
    visible = torch.cat([held, live], dim=1)[:, None, :] <= asking
    mask = torch.zeros(visible.shape, dtype=backbone.dtype)
    mask.masked_fill_(~visible, torch.finfo(backbone.dtype).min)
    return mask.to(backbone.device)[:, None]


class _BehindLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's cached KV of a batch, in the interface transformers' attention writes to."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values  # [rows, kv_heads, behind, head_dim]
        self.is_initialized = True
        self.fresh: tuple[torch.Tensor, torch.Tensor] = (keys[:, :, :0], values[:, :, :0])

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: there is nothing to allocate."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.fresh = (key_states, value_states)
        kept = self.keys.to(key_states.dtype), self.values.to(value_states.dtype)
        return torch.cat([kept[0], key_states], 2), torch.cat([kept[1], value_states], 2)

    def get_seq_length(self) -> int:
        return int(self.keys.shape[2])

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return int(self.keys.shape[2]) + query_length, 0

    def get_max_length(self) -> int:
        return -1


class _BehindCache(Cache):  # type: ignore[misc]
    """The cached KV of all rows as the cache object of one forward pass."""

    def __init__(self, rows: Sequence[PassRow], behind: int) -> None:
        keys, values = (_batched(rows, behind, name) for name in ("keys", "values"))
        super().__init__(layers=[_BehindLayer(k, v) for k, v in zip(keys, values, strict=True)])


def _batched(rows: Sequence[PassRow], behind: int, name: str) -> torch.Tensor:
    """Keys or values of all rows, `[layers, rows, kv_heads, behind, head_dim]`."""
    padded = [
        torch.nn.functional.pad(tensor, (0, 0, behind - tensor.shape[2], 0))
        for tensor in (getattr(row.cached, name) for row in rows)
    ]
    return torch.stack(padded, dim=1)
