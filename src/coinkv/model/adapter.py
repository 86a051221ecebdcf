"""Adapters: a view of a backbone whose forward passes run with a fine-tuned LoRA adapter.

Its card says what it was trained on and for; one that ships may be a backbone's default.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from coinkv.errors import InputError
from coinkv.model import shipped
from coinkv.model.backbone import Backbone, dtype_name
from coinkv.model.fingerprint import form_digest, weights_digest
from coinkv.model.lora import adapted_layers, read_lora
from coinkv.model.lora_settings import json_object

CARD = shipped.CARD
Scope = Literal["live", "all"]
_FORM = "form"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class AdapterCard:
    """What `coinkv_adapter.json` says of the adapter beside it.

    Attributes:
        base_fingerprint: fingerprint of the backbone it was trained on.
        scope: what it was trained to apply to: `live` tokens only, or `all`, chunks included.
        facts: everything else the card says.
        base_weights: digests by which the same backbone is known in other dtypes, as `base_facts`
            gives them; empty where the card has none.
    """

    base_fingerprint: str
    scope: Scope
    facts: dict[str, Any]
    base_weights: dict[str, str] = field(default_factory=dict)

    @property
    def is_default(self) -> bool:
        """It means to be used by default where it ships in the package."""
        return self.facts.get("default") is True and self.scope == "live"

    @property
    def name(self) -> str | None:
        """What it is called, in few printable characters; None where the card does not tell."""
        name = self.facts.get("name")
        return shipped.printable(name, shipped.NAME_CHARACTERS) if isinstance(name, str) else None

    @property
    def answer_lead(self) -> str | None:
        """First words of the answers it was trained with; None where the card says nothing."""
        recipe = self.facts.get("recipe")
        lead = recipe.get("answer_lead") if isinstance(recipe, dict) else None
        return lead if isinstance(lead, str) else None

    def to_dict(self) -> dict[str, Any]:
        """All that the card says, JSON-ready."""
        weights = {"base_weights": self.base_weights} if self.base_weights else {}
        told = {"base_fingerprint": self.base_fingerprint, "scope": self.scope}
        return {**told, **weights, **self.facts}

    def fits(self, backbone: Backbone) -> bool:
        """Whether a backbone is the one it was trained on, in whatever dtype it is loaded.

        Another dtype is recognised by `base_weights`, which takes a pass over the weights.
        """
        if self.base_fingerprint == backbone.fingerprint:
            return True
        weights = self.base_weights.get(dtype_name(backbone.dtype))
        if weights is None:
            return False
        with backbone.turns.turn():
            return self.base_weights.get(_FORM) == _form(backbone) and weights == weights_digest(
                backbone.model, backbone.dtype
            )


def base_facts(backbone: Backbone) -> dict[str, Any]:
    """What the card of an adapter says of the backbone it is trained on, JSON-ready.

    Args:
        backbone: without an adapter, best loaded in float32: only then are the digests for all
            dtypes certain to be those of the same model loaded in them.

    Returns:
        `base_fingerprint`, and `base_weights`: the digest of the model's form, and of its weights
        once rounded to each dtype.

    Raises:
        InputError: the backbone is a view with an adapter.
    """
    _require_plain(backbone)
    with backbone.turns.turn():
        weights = {dtype_name(dtype): weights_digest(backbone.model, dtype) for dtype in _DTYPES}
        form = _form(backbone)
    return {
        "base_fingerprint": backbone.fingerprint,
        "base_weights": {_FORM: form, **weights},
    }


def _form(backbone: Backbone) -> str:
    return form_digest(backbone.model, backbone.text_tokenizer, backbone.rope)


def read_card(adapter: str | Path) -> AdapterCard | None:
    """The card of an adapter, given by folder or name; None where its folder has none.

    Raises:
        ModelNotFoundError: there is no such folder or name.
        InputError: the card is damaged or says something else.
    """
    path = shipped.adapter_folder(adapter) / CARD
    if not (path.exists() or path.is_symlink()):
        return None
    facts = json_object(path)
    fingerprint, scope = facts.pop("base_fingerprint", None), facts.pop("scope", None)
    weights = facts.pop("base_weights", {})
    if (
        not isinstance(fingerprint, str)
        or not fingerprint
        or scope not in get_args(Scope)
        or not isinstance(weights, dict)
    ):
        raise InputError(
            "not the card of an adapter",
            where=path,
            hint='it needs "base_fingerprint" (a string) and "scope" ("live" or "all")',
        )
    return AdapterCard(fingerprint, scope, facts, weights)


def default_adapter(backbone: Backbone) -> Path | None:
    """The folder of the adapter that ships for this backbone; None where there is none.

    It was trained on this very backbone, for live tokens, and its card says `"default": true`.

    Raises:
        InputError: the card of a shipped adapter is damaged.
    """
    for folder in shipped.adapters_in(shipped.SHIPPED).values():
        card = read_card(folder)
        if card is not None and card.is_default and card.fits(backbone):
            return folder
    return None


def adapted(backbone: Backbone, adapter: str | Path) -> Backbone:
    """A view of the same loaded model whose forward passes run with a LoRA adapter.

    The view shares the model, its lock and its tokenizer. Forward passes of `backbone` stay what
    they were, bit for bit and at the same cost: PEFT's layers around the model's own are put in
    place for each pass of the view and taken out after it (see `Backbone.computing`). Settings that
    change more than single layers by low rank are refused (see `coinkv.model.lora`). An adapter
    whose content was loaded before is not loaded again. A one-token pass of a 135M model with rank
    16 in every linear layer took 1.2 times as long as without (DoRA: 9 times, since PEFT computes
    the norms of whole weights in each pass).

    Args:
        backbone: a loaded backbone that is not itself such a view.
        adapter: a Hugging Face PEFT folder: `adapter_config.json`, `adapter_model.safetensors` and,
            optionally, `coinkv_adapter.json` (see `AdapterCard`); or a name, see
            `coinkv.model.shipped.adapter_folder`.

    Returns:
        the view; its fingerprint follows from the backbone's, the adapter's settings and weights.

    Raises:
        ModelNotFoundError: there is no such folder or name, or no adapter in it.
        InputError: PEFT is not installed, or the adapter is damaged, pickled, of another kind or
            made for another model. The model is then as it was.
    """
    return adapted_with_card(backbone, adapter)[0]


def adapted_with_card(
    backbone: Backbone, adapter: str | Path
) -> tuple[Backbone, AdapterCard | None]:
    """The view that `adapted` makes, and the card by which it was found to fit, if there is one."""
    path = shipped.adapter_folder(adapter)
    _require_plain(backbone, path)
    _require_peft(path)
    lora = read_lora(path)
    card = read_card(path)
    if card is not None and not card.fits(backbone):
        raise InputError(
            f"this adapter was trained on the backbone {card.base_fingerprint[:16]}, "
            f"{backbone.name} is {backbone.fingerprint[:16]}",
            where=path,
            hint="load the model it was trained on"
            + ("" if card.base_weights else ", in the same dtype"),
        )
    with backbone.turns.turn():
        if lora.digest not in backbone.adapters:
            backbone.adapters[lora.digest] = adapted_layers(backbone, lora)
    facts = f"{backbone.fingerprint} adapter {lora.digest}"
    view = replace(
        backbone,
        name=f"{backbone.name} + {path.resolve().name}",
        fingerprint=hashlib.sha256(facts.encode()).hexdigest(),
        adapter=lora.digest,
    )
    return view, card


def _require_plain(backbone: Backbone, where: Path | None = None) -> None:
    if backbone.adapter is not None:
        raise InputError(
            f"{backbone.name} already runs with an adapter",
            where=where,
            hint="give the backbone it was made from",
        )


def _require_peft(folder: Path) -> None:
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise InputError(
            "adapters need the package peft, which cannot be imported",
            where=folder,
            hint="run: pip install peft, or ask without an adapter",
        ) from error
