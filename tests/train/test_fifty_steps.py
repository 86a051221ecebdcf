"""Fifty steps of every objective, with an adapter and with all weights, lower the loss."""

from __future__ import annotations

import pytest
import torch

from coinkv.model.load import load
from coinkv.train.objectives import objective_named
from coinkv.train.recipe import Recipe
from training_rows import Parts, losses, small_recipe

OBJECTIVES = {
    "coinrag": {},
    "turborag": {"positions": "reordered"},
    "turborag-composite": {"positions": "composite"},
    "block_attention": {},
    "kvlink": {"links": 2},
    "standard_rag": {},
}


def recipe_of(name: str, **options) -> Recipe:
    return small_recipe(
        name.partition("-")[0],
        options=OBJECTIVES[name],
        micro_batch=1,
        epochs=9,
        steps=50,
        checkpointing=False,
        **options,
    )


WAYS = [
    ("lora", False),
    ("lora", True),
    ("all", True),
]
LEFT_OUT = {("standard_rag", "lora", True), ("turborag-composite", "all", True)}
"""They differ from another way in nothing that is computed."""
CASES = [
    *((name, *way) for name in OBJECTIVES for way in WAYS if (name, *way) not in LEFT_OUT),
    ("coinrag", "all", False),
    ("kvlink", "all", False),
]


@pytest.mark.parametrize(("name", "weights", "through_cache"), CASES)
def test_fifty_steps_lower_the_loss(
    passages, small_model, few, tmp_path, name, weights, through_cache
):
    model = load(str(small_model), device="cpu") if weights == "all" else None
    rate = 1e-2 if weights == "lora" else 2e-3
    recipe = recipe_of(name, weights=weights, through_cache=through_cache, learning_rate=rate)
    parts = Parts.of(passages, recipe, model)
    links = None if parts.learner.links is None else parts.learner.links.detach().clone()
    learned = parts.run(tmp_path, few)
    found = losses(tmp_path)
    assert len(found) == learned.steps == 50
    assert sum(found[-10:]) < 0.5 * sum(found[:10])
    if links is not None:
        assert not torch.equal(parts.learner.links, links)
    assert objective_named(recipe.objective, recipe.options).links == (0 if links is None else 2)
