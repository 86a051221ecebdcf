"""The learner: the weights that training changes, and a backbone that computes with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from coinkv.errors import InputError
from coinkv.model.backbone import AdaptedLayer, Backbone
from coinkv.model.lora import fresh_layers
from coinkv.train.objectives import Objective
from coinkv.train.recipe import Recipe

LINKS = "link_embeddings"
_LEARNING = "learning"


@dataclass(frozen=True, eq=False)
class Learner:
    """A backbone with weights that learn.

    Attributes:
        view: the backbone as it is now; every part of coinkv can compute with it, answers included.
            Its fingerprint is not that of its weights: nothing it makes may be kept.
        weights: what learns, by name: an adapter's in PEFT's names, or all of the model's.
        links: `[chunks, links, hidden]` embeddings of link tokens, which learn, too; None without.
        adapter: fields of `peft.LoraConfig`; None where all weights learn.
    """

    view: Backbone
    weights: Mapping[str, torch.nn.Parameter]
    links: torch.nn.Parameter | None
    adapter: dict[str, Any] | None

    @classmethod
    def of(cls, backbone: Backbone, recipe: Recipe, objective: Objective) -> Learner:
        """A learner at its beginning: what it computes is what the backbone computes.

        An adapter leaves the backbone as it was, its weights without gradient; with `weights="all"`
        the backbone itself changes.

        Raises:
            InputError: no layer has one of the names to adapt, or the model cannot learn so.
        """
        links = _links(backbone, objective, recipe.k_chunks) if objective.links else None
        model = backbone.model
        if recipe.weights == "all":
            if backbone.dtype != torch.float32:
                raise InputError(
                    f"all weights learn in float32, the model is in {backbone.dtype}",
                    where=backbone.name,
                    hint="load it with dtype float32; passes on a GPU compute in bfloat16 anyway",
                )
            model.requires_grad_(True)
            return cls(backbone, dict(model.named_parameters()), links, None)
        model.requires_grad_(False)
        settings = lora_settings(recipe)
        _require_rank(recipe.rank, backbone)
        layers = fresh_layers(backbone, settings, recipe.seed)
        places = _places(model, layers)
        _require_targets(recipe, places, backbone.name)
        targets = set(recipe.targets) or {place.rpartition(".")[2] for place in places}
        view = replace(
            backbone, adapter=_LEARNING, adapters={**backbone.adapters, _LEARNING: layers}
        )
        adapter = {**settings, "target_modules": sorted(targets)}
        return cls(view, dict(_lora_weights(places)), links, adapter)

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """All that learns, by name."""
        return {**self.weights, **({} if self.links is None else {LINKS: self.links})}

    @contextmanager
    def learning(self, part: tuple[int, int], seed: int) -> Iterator[None]:
        """Around forward and backward pass of a micro-batch: with gradient, and its own dropout.

        Args:
            part: step and micro-batch, which with the seed decide what is dropped: so a run that
                went on from a checkpoint, or on several processes, drops the same.
            seed: of the run.
        """
        layers = self.view.adapters[_LEARNING] if self.adapter is not None else ()
        device = self.view.device
        shared = [device] if device.type == "cuda" else []
        with self.view.computing(), torch.enable_grad(), torch.random.fork_rng(shared):
            torch.manual_seed(hash((seed, *part)) % 2**63)
            for layer in layers:
                layer.adapted.train()
            try:
                yield
            finally:
                for layer in layers:
                    layer.adapted.eval()

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over weights that were kept, by name.

        Raises:
            InputError: they are not this learner's.
        """
        mine = self.parameters
        if state.keys() != mine.keys() or any(state[n].shape != mine[n].shape for n in mine):
            raise InputError(
                "the weights kept do not belong to this recipe and model",
                hint="resume with the model the run began with, or begin in another folder",
            )
        with torch.no_grad():
            for name, parameter in mine.items():
                parameter.copy_(state[name])


def lora_settings(recipe: Recipe) -> dict[str, Any]:
    """The recipe's adapter as fields of `peft.LoraConfig`."""
    return {
        "task_type": "CAUSAL_LM",
        "r": recipe.rank,
        "lora_alpha": 2 * recipe.rank if recipe.alpha is None else recipe.alpha,
        "lora_dropout": recipe.dropout,
        "target_modules": list(recipe.targets) or "all-linear",
    }


def _places(model: Any, layers: tuple[AdaptedLayer, ...]) -> dict[str, AdaptedLayer]:
    """Layers by their names in the model."""
    owners = {id(module._modules): name for name, module in model.named_modules()}
    return {
        f"{owners[id(layer.siblings)]}.{layer.name}".removeprefix("."): layer for layer in layers
    }


def _require_rank(rank: int, backbone: Backbone) -> None:
    """Refuse a rank that no matrix of the model has: it would only take memory."""
    most = max(min(p.shape) for p in backbone.model.parameters() if p.ndim == 2)
    if rank > most:
        raise InputError(
            f"rank is {rank}, and no matrix of {backbone.name} has more than {most}",
            hint=f"use at most {most}",
        )


def _require_targets(recipe: Recipe, places: Collection[str], where: str) -> None:
    """Refuse names that belong to no layer: PEFT is content if one of them does."""
    for target in recipe.targets:
        if not any(f".{place}".endswith(f".{target}") for place in places):
            raise InputError(
                f"no layer to adapt is called {target!r}",
                where=where,
                hint="name linear layers by the end of their name, such as q_proj",
            )


def _lora_weights(
    places: Mapping[str, AdaptedLayer],
) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """An adapter's weights under the names that PEFT saves them by."""
    for place, layer in places.items():
        for matrix in ("lora_A", "lora_B"):
            (linear,) = getattr(layer.adapted, matrix).values()
            yield f"base_model.model.{place}.{matrix}.weight", linear.weight


def _links(backbone: Backbone, objective: Objective, chunks: int) -> torch.nn.Parameter:
    """Embeddings that begin as those of a line break, each a little apart from the others."""
    token = torch.tensor(backbone.tokenize("\n").ids[-1:], device=backbone.device)
    with torch.no_grad():  # not the table's row: some models scale what they look up
        line_break = backbone.model.get_input_embeddings()(token)[0].float().cpu()
    generator = torch.Generator().manual_seed(0)
    shape = (chunks, objective.links, len(line_break))
    apart = torch.randn(shape, generator=generator) * line_break.std().item() * 0.1
    return torch.nn.Parameter((line_break + apart).to(backbone.device))
