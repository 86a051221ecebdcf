"""Rows: the KV of answers that are decoded together, which may begin and end at any step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from coinkv.errors import InputError
from coinkv.kv.block import KVBlock
from coinkv.model.backbone import Backbone
from coinkv.model.fill import LiveCache

_SLOTS = 256
"""The buffer grows by so many slots, so that it is seldom copied."""


class Rows:
    """KV side by side: each row a context and its answer so far, at slots 0 on.

    A step computes one token of every row, so the weights are read once for all of them; on a CPU
    eight answers take little longer than one. Rows are numbered without gaps: when one leaves, the
    last takes its number. Not safe for use from two threads.

    Args:
        backbone: the model.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self._keys = self._values = self._buffer(0, 0)
        self._lengths: list[int] = []
        self._next: list[int] = []

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, cache: LiveCache) -> int:
        """Copy a filled cache into a new row, which becomes the last; returns its number."""
        row, held = len(self._lengths), cache.view()
        self._require(row + 1, cache.length + 1)
        self._keys[:, row, :, : cache.length] = held.keys
        self._values[:, row, :, : cache.length] = held.values
        self._lengths.append(cache.length)
        self._next.append(int(cache.positions.max()) + 1)
        return row

    def step(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Compute one token of each row; returns float32 logits `[rows, vocabulary]`.

        Raises:
            InputError: there is not one token for each row.
        """
        count = len(self._lengths)
        if len(token_ids) != count or not count:
            raise InputError(f"{len(token_ids)} tokens do not go to {count} rows")
        end = max(self._lengths) + 1
        self._require(count, end)
        backbone, slots = self.backbone, torch.tensor(self._lengths)
        kv = zip(self._keys[:, :count], self._values[:, :count], strict=True)
        arguments: dict[str, Any] = {
            "input_ids": torch.tensor(token_ids, device=backbone.device)[:, None],
            "position_ids": torch.tensor(self._next, device=backbone.device)[:, None],
            "attention_mask": self._mask(slots, end),
            backbone.cache_argument: Cache(layers=[_StepLayer(*each, slots, end) for each in kv]),
            "use_cache": True,
        }
        with backbone.computing(count):
            output = backbone.model(**arguments)
        self._lengths = [length + 1 for length in self._lengths]
        self._next = [position + 1 for position in self._next]
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits

    def remove(self, row: int) -> None:
        """Let a row go; the last one takes its number."""
        last = len(self._lengths) - 1
        if row < last:
            length = self._lengths[last]
            self._keys[:, row, :, :length] = self._keys[:, last, :, :length]
            self._values[:, row, :, :length] = self._values[:, last, :, :length]
        for each in (self._lengths, self._next):
            each[row] = each[last]
            each.pop()
        if not self._lengths:
            self._keys = self._values = self._buffer(0, 0)

    def block(self, row: int, start: int) -> KVBlock:
        """A copy of a row's KV from slot `start` on."""
        length = self._lengths[row]
        first = self._next[row] - (length - start)
        return KVBlock(
            self._keys[:, row, :, start:length].clone(),
            self._values[:, row, :, start:length].clone(),
            torch.arange(first, self._next[row]),
        )

    def _mask(self, slots: torch.Tensor, end: int) -> torch.Tensor | None:
        """Additive mask `[rows, 1, 1, end]`; None where every row ends there."""
        visible = torch.arange(end)[None] <= slots[:, None]
        if bool(visible.all()):
            return None
        mask = torch.zeros(visible.shape, dtype=self.backbone.dtype)
        mask.masked_fill_(~visible, torch.finfo(self.backbone.dtype).min)
        return mask.to(self.backbone.device)[:, None, None]

    def _require(self, rows: int, slots: int) -> None:
        """Have room for so many rows of so many slots."""
        _, held_rows, _, held_slots, _ = self._keys.shape
        if rows <= held_rows and slots <= held_slots:
            return
        rows = max(held_rows, rows if rows == 1 else 2 ** (rows - 1).bit_length())
        slots = max(held_slots, -(-slots // _SLOTS) * _SLOTS)
        for name in ("_keys", "_values"):
            old, new = getattr(self, name), self._buffer(rows, slots)
            new[:, :held_rows, :, :held_slots] = old
            setattr(self, name, new)

    def _buffer(self, rows: int, slots: int) -> torch.Tensor:
        """`[layers, rows, kv_heads, slots, head_dim]`; what is hidden must still be a number."""
        shape = self.backbone.shape
        size = (shape.layers, rows, shape.kv_heads, slots, shape.head_dim)
        return torch.zeros(size, dtype=self.backbone.dtype, device=self.backbone.device)


class _StepLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of all rows during one step, in the interface transformers' attention writes to."""

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, end: int
    ) -> None:
        super().__init__()
        self.keys, self.values = keys, values  # [rows, kv_heads, slots, head_dim]
        self.is_initialized = True
        self._slots, self._end = slots.to(keys.device), end
        self._row = torch.arange(len(slots), device=keys.device)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the buffers exist."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys[self._row, :, self._slots] = key_states[:, :, 0]
        self.values[self._row, :, self._slots] = value_states[:, :, 0]
        return self.keys[:, :, : self._end], self.values[:, :, : self._end]

    def get_seq_length(self) -> int:
        """Tokens held before this step."""
        return self._end - 1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._end, 0

    def get_max_length(self) -> int:
        return -1
