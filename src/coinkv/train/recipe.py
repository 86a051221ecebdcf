"""The recipe: every hyper-parameter of a fine-tuning run, with the paper's table as defaults."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from coinkv.errors import InputError
from coinkv.model.prompt import unicode_text

Weights = Literal["lora", "all"]
OptimizerName = Literal["adamw", "adamw8bit"]

FULL_LEARNING_RATE = 5e-6
"""Paper arXiv 2608.07458, appendix G, Table 5."""
LORA_LEARNING_RATE = 3e-4
"""LoRA moves few weights, from zero: rates of this order (arXiv 2106.09685, appendix D)."""
_TOO_MANY = 2**31
_LARGEST = 1e15  # products of two, and of one with a gradient, still are float32 numbers


@dataclass(frozen=True)
class Recipe:
    """How a run learns; equal recipes on equal data give equal weights.

    What is not said otherwise is Table 5 of paper arXiv 2608.07458, appendix G.

    Attributes:
        objective: name of the method that makes the prefix, see `coinkv.train.objectives`.
        options: options of that method.
        through_cache: make the prefix with gradient, by the weights that learn. Otherwise it comes
            from the model as it was, through the block store, and only what is computed live
            learns: an adapter then leaves existing caches valid (scope `live`, else `all`).
        weights: `lora` trains an adapter, `all` every weight of the model.
        rank: of the adapter.
        alpha: scale of the adapter; None: twice the rank.
        dropout: of the adapter's input.
        targets: names of the layers that get an adapter; empty: all linear layers.
        learning_rate: at its highest; None: 5e-6 for all weights (the paper), 3e-4 for LoRA.
        warmup: share of the steps in which the rate rises from zero; then it falls as a cosine.
        weight_decay: AdamW's, on matrices only.
        clip: largest norm of the gradient.
        micro_batch: rows computed together.
        accumulation: micro-batches of one step.
        epochs: passes over the rows.
        steps: end after so many, whatever the epochs; None: all epochs.
        optimizer: `adamw`, or `adamw8bit` with the package bitsandbytes.
        checkpointing: recompute a layer's inner values in the backward pass instead of keeping
            them.
        max_length: most tokens of a row, context and answer included: of a row with more the worst
            chunks are left out, and the row itself if its best chunk alone is too long.
        k_chunks: chunks retrieved.
        k_nuggets: nuggets retrieved among them.
        raft: probability that a row's gold evidence is withheld in an epoch.
        answer_lead: first words of every answer, not learned.
        seed: of the order of rows, the noise, the dropout and the adapter's beginning.
    """

    objective: str = "coinrag"
    options: Mapping[str, Any] = field(default_factory=dict)
    through_cache: bool = False
    weights: Weights = "lora"
    rank: int = 16
    alpha: float | None = None
    dropout: float = 0.0
    targets: tuple[str, ...] = ()
    learning_rate: float | None = None
    warmup: float = 0.03
    weight_decay: float = 0.0
    clip: float = 1.0
    micro_batch: int = 1
    accumulation: int = 16
    epochs: int = 1
    steps: int | None = None
    optimizer: OptimizerName = "adamw"
    checkpointing: bool = True
    max_length: int = 1024
    k_chunks: int = 5
    k_nuggets: int = 10
    raft: float = 0.15
    answer_lead: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", tuple(self.targets))
        object.__setattr__(self, "options", dict(self.options))
        for name, allowed in (
            ("weights", get_args(Weights)),
            ("optimizer", get_args(OptimizerName)),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}", hint=f"use {' or '.join(allowed)}"
                )
        unicode_text(self.answer_lead, "answer_lead")
        whole = ("rank", "micro_batch", "accumulation", "epochs", "steps", "max_length")
        for name in (*whole, "k_chunks", "k_nuggets"):
            count = getattr(self, name)
            if count is not None and not 1 <= count < _TOO_MANY:
                raise InputError(f"{name} is {_short(count)}", hint="use 1 or more, below 2**31")
        for name in ("warmup", "raft", "dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {_short(getattr(self, name))}", hint="use 0 to 1")
        for name in ("learning_rate", "alpha", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= _LARGEST:
                raise InputError(
                    f"{name} is {_short(value)}",
                    hint=f"use a number above 0, at most {_LARGEST:g}",
                )
        if not 0 <= self.weight_decay <= _LARGEST:
            raise InputError(
                f"weight_decay is {_short(self.weight_decay)}",
                hint=f"use a number from 0 to {_LARGEST:g}",
            )
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed is {_short(self.seed)}", hint="use 0 or more, below 2**63")

    @property
    def rows_per_step(self) -> int:
        """Rows that one step learns from, over all processes."""
        return self.micro_batch * self.accumulation

    @property
    def peak_rate(self) -> float:
        """The learning rate at its highest."""
        if self.learning_rate is not None:
            return self.learning_rate
        return LORA_LEARNING_RATE if self.weights == "lora" else FULL_LEARNING_RATE

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return {**asdict(self), "targets": list(self.targets)}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any], where: str) -> Recipe:
        """A recipe read back; what is not given is as by default.

        Raises:
            InputError: a field is unknown, of the wrong type or out of range.
        """
        known = {each.name: each for each in fields(cls)}
        unknown = sorted(facts.keys() - known.keys())
        if unknown:
            raise InputError(
                f"a recipe has no {', '.join(unknown)}",
                where=where,
                hint=f"its fields are {', '.join(known)}",
            )
        for name, value in facts.items():
            _require_kind(name, value, getattr(cls(), name), where)
        try:
            return cls(**facts)
        except InputError as error:
            raise InputError(error.what, where=where, hint=error.hint) from error

    @classmethod
    def from_json(cls, text: str, where: str) -> Recipe:
        """A recipe from the JSON of its fields.

        Raises:
            InputError: no JSON object, or one that is no recipe.
        """
        try:
            facts = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError("is no JSON", where=where, hint="give an object of fields") from error
        if not isinstance(facts, dict):
            raise InputError("is no JSON object", where=where, hint="give an object of fields")
        return cls.from_dict(facts, where)


_OPTIONAL = {"alpha": float, "learning_rate": float, "steps": int}
_KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
    tuple: ((list, tuple), "a list of names"),
    dict: ((dict,), "an object of texts, numbers, true and false"),
}
_PLAIN = (str, int, float, bool, type(None))


def _require_kind(name: str, value: Any, default: Any, where: str) -> None:
    if name in _OPTIONAL and value is None:
        return
    accepted, described = _KINDS[_OPTIONAL.get(name, type(default))]
    fits = isinstance(value, accepted) and (bool in accepted or not isinstance(value, bool))
    if isinstance(value, list | tuple):
        fits = fits and all(isinstance(each, str) for each in value)
    if isinstance(value, dict):
        fits = fits and all(isinstance(each, _PLAIN) for each in value.values())
    if not fits:
        raise InputError(f"{name} is {_short(value)}", where=where, hint=f"give {described}")


def _short(value: Any) -> str:
    return reprlib.repr(value)
