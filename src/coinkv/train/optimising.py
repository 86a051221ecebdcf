"""Optimising: AdamW, plain or in 8 bit, and the learning rate of every step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from coinkv.errors import InputError
from coinkv.train.recipe import Recipe


def optimizer_of(parameters: Mapping[str, torch.nn.Parameter], recipe: Recipe) -> Any:
    """The recipe's optimizer; weight decay is for matrices only.

    Raises:
        InputError: it needs bitsandbytes, which is not there or cannot work on this device.
    """
    matrices = [p for p in parameters.values() if p.ndim >= 2]
    others = [p for p in parameters.values() if p.ndim < 2]
    groups = [
        {"params": held, "weight_decay": decay}
        for held, decay in ((matrices, recipe.weight_decay), (others, 0.0))
        if held
    ]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.peak_rate)
    if any(p.device.type == "cpu" for p in parameters.values()):
        raise InputError(
            "the 8-bit optimizer works on a GPU only",
            hint="train on one, or use the optimizer adamw",
        )
    try:
        from bitsandbytes.optim import PagedAdamW8bit
    except Exception as error:
        raise InputError(
            f"the 8-bit optimizer needs bitsandbytes, which cannot be imported ({error})"[:200],
            hint="run: pip install bitsandbytes, or use the optimizer adamw",
        ) from error
    return PagedAdamW8bit(groups, lr=recipe.peak_rate)


def learning_rate(step: int, steps: int, recipe: Recipe) -> float:
    """The rate of a step (from 0) of so many: a rise, then a cosine to zero.

    Paper arXiv 2608.07458, appendix G, Table 5: cosine, warm-up ratio 0.03.
    """
    rising = math.ceil(recipe.warmup * steps)
    if step < rising:
        return recipe.peak_rate * (step + 1) / rising
    progress = (step - rising) / max(1, steps - rising)
    return recipe.peak_rate * 0.5 * (1 + math.cos(math.pi * progress))
