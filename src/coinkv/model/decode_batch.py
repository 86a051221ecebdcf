"""Batched decoding: several answers continue together, each behind its own context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from coinkv.errors import InputError
from coinkv.model.backbone import Backbone
from coinkv.model.decode import Choice, FinishReason, Sampling
from coinkv.model.fill import LiveCache


@dataclass(frozen=True)
class Decoded:
    """One of the answers: its text, its tokens, and why it ended."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason

    @property
    def tokens(self) -> int:
        """How many tokens it took."""
        return len(self.token_ids)


def decode_batch(
    backbone: Backbone,
    caches: Sequence[LiveCache],
    logits: Sequence[torch.Tensor],
    sampling: Sampling,
) -> list[Decoded]:
    """Continue from filled caches together until each answer has ended.

    A step computes one token of every answer that goes on, so the weights are read once for all of
    them; on a CPU eight answers take little longer than one. The caches are not changed. Each
    answer is what `decode` gives, except where two tokens are equal in probability up to the
    rounding of float arithmetic.

    Args:
        backbone: the model.
        caches: hold everything before each answer.
        logits: `[1, vocabulary]` behind each.
        sampling: how to choose and when to end, for all.

    Raises:
        InputError: numbers of caches and logits differ.
    """
    if len(caches) != len(logits):
        raise InputError(f"{len(caches)} caches do not go with {len(logits)} rows of logits")
    choices = [Choice(backbone, cache, sampling) for cache in caches]
    going = [n for n, choice in enumerate(choices) if choice.take(logits[n][-1])]
    batch = _Batch(backbone, [caches[n] for n in going], sampling.max_tokens)
    while going:
        rows = batch.step([choices[n].token for n in going])
        kept = [at for at, n in enumerate(going) if choices[n].take(rows[at])]
        if len(kept) < len(going):
            going = [going[at] for at in kept]
            batch.keep(kept)
    return [
        Decoded(choice.text, tuple(choice.token_ids), choice.finish_reason) for choice in choices
    ]


class _Batch:
    """KV of the answers that go on: contexts side by side, padded, then the answers' tokens."""

    def __init__(self, backbone: Backbone, caches: Sequence[LiveCache], steps: int) -> None:
        self._backbone = backbone
        longest = max((cache.length for cache in caches), default=0)
        shape = backbone.shape
        size = (shape.layers, len(caches), shape.kv_heads, longest + steps, shape.head_dim)
        self._keys = torch.zeros(size, dtype=backbone.dtype, device=backbone.device)
        self._values = torch.zeros_like(self._keys)
        self._visible = torch.zeros(len(caches), longest + steps, dtype=torch.bool)
        for row, cache in enumerate(caches):
            held = cache.view()
            self._keys[:, row, :, : cache.length] = held.keys
            self._values[:, row, :, : cache.length] = held.values
            self._visible[row, : cache.length] = True
        self._next = torch.tensor([int(cache.positions.max()) + 1 for cache in caches])
        self._slot = longest

    def step(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Compute one token of each answer; returns float32 logits `[answers, vocabulary]`."""
        backbone, end = self._backbone, self._slot + 1
        self._visible[:, self._slot] = True
        mask = torch.zeros(self._visible[:, :end].shape, dtype=backbone.dtype)
        mask.masked_fill_(~self._visible[:, :end], torch.finfo(backbone.dtype).min)
        layers = [_StepLayer(*kv, self._slot) for kv in zip(self._keys, self._values, strict=True)]
        arguments: dict[str, Any] = {
            "input_ids": torch.tensor(token_ids, device=backbone.device)[:, None],
            "position_ids": self._next.to(backbone.device)[:, None],
            "attention_mask": mask.to(backbone.device)[:, None, None],
            backbone.cache_argument: Cache(layers=layers),
            "use_cache": True,
        }
        with backbone.computing():
            output = backbone.model(**arguments)
        self._next += 1
        self._slot = end
        rows: torch.Tensor = output.logits[:, -1].float()
        return rows

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these answers only."""
        index = torch.tensor(rows, dtype=torch.int64)
        self._keys, self._values = (kv[:, index] for kv in (self._keys, self._values))
        self._visible, self._next = self._visible[index], self._next[index]


class _StepLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of a batch during one step, in the interface transformers' attention writes to."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, slot: int) -> None:
        super().__init__()
        self.keys, self.values = keys, values  # [answers, kv_heads, capacity, head_dim]
        self.is_initialized = True
        self._slot = slot

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the buffers exist."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        end = self._slot + 1
        self.keys[:, :, self._slot : end] = key_states
        self.values[:, :, self._slot : end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        """Tokens held before this step."""
        return self._slot

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._slot + 1, 0

    def get_max_length(self) -> int:
        return -1
