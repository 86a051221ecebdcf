"""A recipe holds a run's hyper-parameters, refuses what makes no sense, and goes through JSON."""

from __future__ import annotations

import json

import pytest

from coinkv.errors import InputError
from coinkv.train.recipe import Recipe


def test_a_recipe_comes_back_from_its_json():
    recipe = Recipe(
        objective="turborag",
        options={"positions": "composite"},
        targets=("q_proj", "v_proj"),
        learning_rate=1e-4,
        steps=7,
    )
    assert Recipe.from_json(json.dumps(recipe.to_dict()), "here") == recipe


def test_defaults_are_the_papers():
    recipe = Recipe()
    assert (recipe.k_chunks, recipe.k_nuggets, recipe.raft, recipe.warmup) == (5, 10, 0.15, 0.03)
    assert recipe.rows_per_step == 16
    assert (recipe.peak_rate, Recipe(weights="all").peak_rate) == (3e-4, 5e-6)
    assert Recipe(learning_rate=0.5).peak_rate == 0.5


@pytest.mark.parametrize(
    "fields",
    [
        {"weights": "some"},
        {"optimizer": "sgd"},
        {"rank": 0},
        {"micro_batch": 0},
        {"k_nuggets": -1},
        {"steps": 0},
        {"raft": 1.5},
        {"warmup": float("nan")},
        {"learning_rate": 0.0},
        {"clip": float("inf")},
        {"weight_decay": -0.1},
        {"seed": -1},
        {"seed": 2**63},
        *({name: 10**400} for name in ("rank", "steps", "learning_rate", "alpha", "clip")),
        {"weight_decay": 10**400},
        {"learning_rate": 1e300},
        {"answer_lead": "\ud800"},
    ],
)
def test_what_is_out_of_range_is_refused(fields):
    (name,) = fields
    with pytest.raises(InputError, match=name):
        Recipe(**fields)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is no JSON object"),
        ('{"ranks": 1}', "a recipe has no ranks"),
        ('{"rank": "16"}', "rank is '16'; give a whole number"),
        ('{"rank": true}', "rank is True"),
        ('{"rank": 1.5}', "rank is 1.5"),
        ('{"rank": null}', "rank is None"),
        ('{"targets": "q_proj"}', "targets is 'q_proj'"),
        ('{"targets": [1]}', "targets is"),
        ('{"options": []}', "options is"),
        ('{"through_cache": 1}', "through_cache is 1"),
        ('{"learning_rate": NaN}', "learning_rate is nan"),
        ('{"raft": 2}', "raft is 2"),
        ('{"options": {"order": ["document"]}}', "options is {'order': ['document']}; give"),
        ('{"options": {"a": %s}}' % ("[" * 900 + "]" * 900), "options is {'a': [[[["),
    ],
)
def test_a_file_that_is_no_recipe_is_named_in_one_line(text, said):
    with pytest.raises(InputError) as refused:
        Recipe.from_json(text, "recipe.json")
    assert str(refused.value).startswith(f"recipe.json: {said}")
    assert "\n" not in str(refused.value)


def test_whole_numbers_do_for_floats_and_nothing_for_what_may_be_missing():
    recipe = Recipe.from_json('{"raft": 0, "learning_rate": null, "steps": null}', "here")
    assert recipe == Recipe(raft=0)
