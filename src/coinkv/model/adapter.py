"""Adapters: a view of a backbone whose forward passes run with a fine-tuned LoRA adapter."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from coinkv.errors import InputError, ModelNotFoundError
from coinkv.model.backbone import Backbone
from coinkv.model.lora import adapted_layers, json_object, read_lora

CARD = "coinkv_adapter.json"
"""File beside an adapter that says what coinkv must know of it."""

Scope = Literal["live", "all"]


@dataclass(frozen=True)
class AdapterCard:
    """What `coinkv_adapter.json` says of the adapter beside it.

    Attributes:
        base_fingerprint: fingerprint of the backbone it was trained on.
        scope: what it was trained to apply to: `live` tokens only, or `all`, chunks included.
        facts: everything else the card says.
    """

    base_fingerprint: str
    scope: Scope
    facts: dict[str, Any]


def read_card(folder: str | Path) -> AdapterCard | None:
    """The card of an adapter; None where its folder has none.

    Raises:
        ModelNotFoundError: there is no such folder.
        InputError: the card is damaged or says something else.
    """
    path = _existing(folder) / CARD
    if not path.exists():
        return None
    facts = json_object(path)
    fingerprint, scope = facts.pop("base_fingerprint", None), facts.pop("scope", None)
    if not isinstance(fingerprint, str) or not fingerprint or scope not in get_args(Scope):
        raise InputError(
            "not the card of an adapter",
            where=path,
            hint='it needs "base_fingerprint" (a string) and "scope" ("live" or "all")',
        )
    return AdapterCard(fingerprint, scope, facts)


def adapted(backbone: Backbone, folder: str | Path) -> Backbone:
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
        folder: a Hugging Face PEFT folder: `adapter_config.json`, `adapter_model.safetensors` and,
            optionally, `coinkv_adapter.json` (see `AdapterCard`).

    Returns:
        the view; its fingerprint follows from the backbone's, the adapter's settings and weights.

    Raises:
        ModelNotFoundError: there is no such folder, or no adapter in it.
        InputError: PEFT is not installed, or the adapter is damaged, pickled, of another kind or
            made for another model. The model is then as it was.
    """
    path = _existing(folder)
    if backbone.adapter is not None:
        raise InputError(
            f"{backbone.name} already runs with an adapter",
            where=path,
            hint="give the backbone it was made from",
        )
    _require_peft(path)
    lora = read_lora(path)
    card = read_card(path)
    if card is not None and card.base_fingerprint != backbone.fingerprint:
        raise InputError(
            f"this adapter was trained on the backbone {card.base_fingerprint[:16]}, "
            f"{backbone.name} is {backbone.fingerprint[:16]}",
            where=path,
            hint="load the model it was trained on, in the same dtype",
        )
    with backbone.turns.turn():
        if lora.digest not in backbone.adapters:
            backbone.adapters[lora.digest] = adapted_layers(backbone, lora)
    facts = f"{backbone.fingerprint} adapter {lora.digest}"
    return replace(
        backbone,
        name=f"{backbone.name} + {path.resolve().name}",
        fingerprint=hashlib.sha256(facts.encode()).hexdigest(),
        adapter=lora.digest,
    )


def _require_peft(folder: Path) -> None:
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise InputError(
            "adapters need the package peft, which cannot be imported",
            where=folder,
            hint="run: pip install 'coinkv[adapters]'",
        ) from error


def _existing(folder: str | Path) -> Path:
    try:
        path = Path(folder).expanduser()
        if path.is_dir():
            return path
        reason = "no such adapter folder"
    except (OSError, RuntimeError) as error:
        reason = f"not a name of a folder: {getattr(error, 'strerror', None) or error}"
    raise ModelNotFoundError(reason, where=folder, hint="name a Hugging Face PEFT folder")
