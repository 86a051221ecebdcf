"""Narrowing: one forward pass whose later layers compute fewer tokens than its earlier ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from coinkv.errors import UnsupportedModelError

_BY_TOKEN = {"attention_mask": -2, "position_ids": -1, "cache_position": -1}


class Narrowing(Protocol):
    """Decides, while a pass runs, which of its tokens the later layers still compute."""

    def keep(
        self,
        layer: int,
        fresh: tuple[torch.Tensor, torch.Tensor],
        cached: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor | None:
        """Rows that go on to the layers after this one; None keeps all.

        Args:
            layer: number of the layer whose keys and values were just computed, from 0.
            fresh: keys and values `[kv_heads, n, head_dim]` of the n tokens of this layer.
            cached: what stood in the same slots before; arbitrary for tokens new to the cache.

        Returns:
            sorted int64 indices into the n tokens; the last token must be among them when logits
            are wanted.
        """


@dataclass
class LiveRows:
    """The tokens of one pass: their slots, and which of them later layers still compute.

    Attributes:
        slots: int64 `[n]` slots of the tokens that are computed now.
        index: rows of the pass's input that are left, None while all are.
        cut: rows of the last layer's output that the next layer takes, None where it takes all.
        place: the slots as a slice where they are a run (writing one is faster).
    """

    slots: torch.Tensor
    index: torch.Tensor | None = None
    cut: torch.Tensor | None = None
    place: torch.Tensor | slice = field(init=False)

    def __post_init__(self) -> None:
        self.place = _run(self.slots)

    def narrow(self, kept: torch.Tensor) -> None:
        """Go on with these of the present rows only."""
        self.slots = self.slots[kept]
        self.index = kept if self.index is None else self.index[kept]
        self.cut = kept
        self.place = _run(self.slots)


def _run(slots: torch.Tensor) -> torch.Tensor | slice:
    first, last = int(slots[0]), int(slots[-1])
    run = last - first + 1 == len(slots) and bool((slots[1:] > slots[:-1]).all())
    return slice(first, last + 1) if run else slots


def decoder_layers(model: Any, where: str) -> torch.nn.ModuleList:
    """The model's decoder layers, in order.

    Raises:
        UnsupportedModelError: the model keeps them in no list of their own.
    """
    count = model.config.num_hidden_layers
    for module in model.base_model.children():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedModelError(
        "its decoder layers cannot be found, so tokens cannot be repaired layer by layer",
        where=where,
        hint="use a method without a probe: coinrag, standard_cag, epic",
    )


@contextmanager
def narrowed(layers: torch.nn.ModuleList, rows: LiveRows) -> Iterator[None]:
    """Within the block, layers compute only the rows that are left (one pass at a time)."""

    def select(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if rows.index is None:
            return None
        cut, rows.cut = rows.cut, None
        if cut is not None:  # the layer before still computed more
            states = args[0] if args else kwargs.pop("hidden_states")
            args = (states.index_select(1, cut.to(states.device)), *args[1:])
        for name, dimension in _BY_TOKEN.items():
            if isinstance(kwargs.get(name), torch.Tensor):
                index = rows.index.to(kwargs[name].device)
                kwargs[name] = kwargs[name].index_select(dimension, index)
        angles = kwargs.get("position_embeddings")
        if isinstance(angles, tuple):
            kwargs["position_embeddings"] = tuple(
                part.index_select(1, rows.index.to(part.device)) for part in angles
            )
        return args, kwargs

    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(select, with_kwargs=True).remove)
        yield
