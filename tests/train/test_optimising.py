"""AdamW by the recipe, and the rate of every step."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import pytest
import torch

from coinkv.errors import InputError
from coinkv.train.optimising import learning_rate, optimizer_of
from coinkv.train.recipe import Recipe


def test_the_rate_rises_then_falls_as_a_cosine():
    recipe = Recipe(learning_rate=1.0, warmup=0.25)
    rates = [learning_rate(step, 8, recipe) for step in range(8)]
    falling = [0.5 * (1 + math.cos(math.pi * part / 6)) for part in range(6)]
    assert rates == pytest.approx([0.5, 1.0, *falling])


@pytest.mark.parametrize(
    ("steps", "warmup", "expected"),
    [
        (1, 0.03, [1.0]),
        (1, 0.0, [1.0]),
        (2, 0.0, [1.0, 0.5]),
        (2, 1.0, [0.5, 1.0]),
        (3, 0.03, [1.0, 1.0, 0.5]),
    ],
)
def test_the_rate_of_short_runs(steps, warmup, expected):
    recipe = Recipe(learning_rate=1.0, warmup=warmup)
    assert [learning_rate(step, steps, recipe) for step in range(steps)] == pytest.approx(expected)


def test_only_matrices_decay():
    matrix, vector = (torch.nn.Parameter(torch.ones(shape)) for shape in ((2, 2), (2,)))
    recipe = Recipe(weight_decay=0.5, learning_rate=0.1)
    optimizer = optimizer_of({"matrix": matrix, "vector": vector}, recipe)
    for parameter in (matrix, vector):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert matrix.flatten().tolist() == pytest.approx([0.95] * 4)
    assert vector.tolist() == [1.0, 1.0]


def test_a_step_is_that_of_adamw():
    weight = torch.nn.Parameter(torch.tensor([[1.0, 2.0]]))
    optimizer = optimizer_of({"weight": weight}, Recipe(learning_rate=0.1))
    weight.grad = torch.tensor([[3.0, -4.0]])
    optimizer.step()
    assert weight.flatten().tolist() == pytest.approx([0.9, 2.1])


def test_the_8_bit_optimizer_is_refused_on_a_cpu():
    weights = {"weight": torch.nn.Parameter(torch.ones(2, 2))}
    with pytest.raises(InputError, match="GPU"):
        optimizer_of(weights, Recipe(optimizer="adamw8bit"))


class Elsewhere(torch.nn.Parameter):
    """A weight that says it is on a GPU."""

    device = torch.device("cuda")


def test_the_8_bit_optimizer_says_which_package_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    weights = {"weight": Elsewhere(torch.ones(2, 2))}
    with pytest.raises(InputError, match="pip install bitsandbytes"):
        optimizer_of(weights, Recipe(optimizer="adamw8bit"))


def test_the_8_bit_optimizer_gets_the_same_groups(monkeypatch):
    module, optim = ModuleType("bitsandbytes"), ModuleType("bitsandbytes.optim")
    optim.PagedAdamW8bit = lambda groups, lr: (groups, lr)
    monkeypatch.setitem(sys.modules, "bitsandbytes", module)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", optim)
    weights = {"matrix": Elsewhere(torch.ones(2, 2)), "vector": Elsewhere(torch.ones(2))}
    recipe = Recipe(optimizer="adamw8bit", weight_decay=0.1, learning_rate=0.5)
    groups, rate = optimizer_of(weights, recipe)
    assert rate == 0.5
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [
        (1, 0.1),
        (1, 0.0),
    ]
