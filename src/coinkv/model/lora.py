"""LoRA: an adapter read from a Hugging Face PEFT folder, and a model's layers with it around them.

Low-rank updates of single layers (arXiv 2106.09685) with rank and alpha patterns, rsLoRA, bias in B
and DoRA (arXiv 2402.09353). Whatever an adapter does beyond that is refused, never left out.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from coinkv.errors import InputError, ModelNotFoundError
from coinkv.model.backbone import AdaptedLayer, Backbone, dtype_name
from coinkv.model.lora_settings import one_line, settings_of

_WEIGHTS, _PICKLED = "adapter_model.safetensors", "adapter_model.bin"
_PREFIX = "base_model.model."  # what PEFT puts before the names of the model it wraps
_NAME = "coinkv"
_OTHER_MODEL = "use an adapter that was trained for this model"


@dataclass(frozen=True)
class Lora:
    """An adapter as it lies in a folder.

    Attributes:
        folder: where it was read.
        settings: the fields of `peft.LoraConfig` that decide what it computes.
        weights: A and B of each layer (and what DoRA adds), by their name in the plain model.
        digest: hex digest of settings and weights.
    """

    folder: Path
    settings: dict[str, Any]
    weights: dict[str, torch.Tensor]
    digest: str


def read_lora(folder: Path) -> Lora:
    """Read and check an adapter; nothing in the folder is run.

    Raises:
        ModelNotFoundError: the folder holds no adapter.
        InputError: it is damaged, pickled, no LoRA adapter or more than one.
    """
    settings, weights = settings_of(folder), _weights(folder)
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
        digest.update(xxhash.xxh3_128_digest(data))
    return Lora(folder, settings, weights, digest.hexdigest())


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of an adapter whose files look whole; its weights are not read.

    Raises:
        ModelNotFoundError: the folder holds no adapter.
        InputError: it is damaged, pickled, no LoRA adapter or more than one.
    """
    settings, path = settings_of(folder), _weights_file(folder)
    try:
        with safe_open(path, framework="pt"):
            return settings
    except (SafetensorError, OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _weights_file(folder: Path) -> Path:
    path = folder / _WEIGHTS
    if not path.is_file() and (folder / _PICKLED).exists():
        raise InputError(
            "the weights of this adapter are pickled, and reading a pickle can run code",
            where=folder / _PICKLED,
            hint=f"convert it to {_WEIGHTS}",
        )
    if not path.is_file():
        raise ModelNotFoundError(
            f"this folder holds no weights of an adapter ({_WEIGHTS})",
            where=folder,
            hint="use a whole copy of it",
        )
    return path


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(
        f"damaged: cannot be read as safetensors ({one_line(error)})",
        where=path,
        hint="use a whole copy",
    )


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    path = _weights_file(folder)
    try:
        stored = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    integers = [name for name, tensor in stored.items() if not tensor.is_floating_point()]
    if integers:
        raise InputError(
            f"{len(integers)} of its weights are no floating-point numbers "
            f"(first: {min(integers)})",
            where=path,
            hint="use a copy that is not quantised",
        )
    return {name.removeprefix(_PREFIX): tensor for name, tensor in stored.items()}


def adapted_layers(backbone: Backbone, lora: Lora) -> tuple[AdaptedLayer, ...]:
    """PEFT's layers around the model's own, ready to be put in place; the model stays as it was.

    They compute in the dtype and on the device of the layers they stand around, without dropout.
    Nothing else may run the model meanwhile.

    Raises:
        InputError: the adapter does not fit this model.
    """
    try:
        return _around(backbone.model, lora)
    except InputError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise InputError(
            f"does not fit into the memory of {backbone.device.type}",
            where=lora.folder,
            hint="use an adapter of lower rank",
        ) from error
    except Exception as error:
        raise InputError(
            f"this adapter does not fit {backbone.name} ({one_line(error)})",
            where=lora.folder,
            hint=_OTHER_MODEL,
        ) from error


def fresh_layers(
    backbone: Backbone, settings: dict[str, Any], seed: int
) -> tuple[AdaptedLayer, ...]:
    """PEFT's layers around the model's own as an adapter begins: B is zero, so nothing changes yet.

    A and B are float32 whatever the model computes in, and want gradients. The model itself stays
    as it was. Nothing else may run it meanwhile.

    Args:
        backbone: the model.
        settings: fields of `peft.LoraConfig`.
        seed: of the random A.

    Raises:
        InputError: no layer of this model can be adapted so.
    """
    from peft import LoraConfig, inject_adapter_in_model

    model = backbone.model
    slots = _slots(model)
    try:
        with _left_as_it_was(model, slots):
            torch.manual_seed(seed)
            inject_adapter_in_model(LoraConfig(**settings), model, _NAME)
            layers = _swapped(slots)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"no adapter can be put around the layers of {backbone.name} ({one_line(error)})",
            hint="name linear layers of this model as targets",
        ) from error
    for layer in layers:
        if not layer.adapted.lora_A:
            raise InputError(
                f"{layer.name} of {backbone.name} is no linear layer",
                hint="name linear layers of this model as targets",
            )
        layer.adapted.eval()
        for name, parameter in layer.adapted.named_parameters():
            if "lora_" in name:
                parameter.data = parameter.data.float()
                parameter.requires_grad_(True)
    return layers


def _slots(model: Any) -> list[tuple[dict[str, Any], str, Any]]:
    """Every module of a model, where it hangs, so that it can be put back."""
    return [
        (module._modules, name, layer)
        for module in model.modules()
        for name, layer in module._modules.items()
    ]


def _swapped(slots: list[tuple[dict[str, Any], str, Any]]) -> tuple[AdaptedLayer, ...]:
    """The layers that PEFT put others around."""
    return tuple(
        AdaptedLayer(siblings, name, layer, siblings[name])
        for siblings, name, layer in slots
        if siblings[name] is not layer
    )


def _around(model: Any, lora: Lora) -> tuple[AdaptedLayer, ...]:
    from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model

    slots = _slots(model)
    with _left_as_it_was(model, slots):
        config = LoraConfig(**lora.settings, init_lora_weights=False, inference_mode=True)
        inject_adapter_in_model(config, model, _NAME)
        held = get_peft_model_state_dict(model, adapter_name=_NAME, save_embedding_layers=False)
        _copy(lora, {name.removeprefix(_PREFIX): tensor for name, tensor in held.items()})
        layers = _swapped(slots)
    for layer in layers:
        layer.adapted.eval()
    return layers


@contextmanager
def _left_as_it_was(model: Any, slots: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Take back all that PEFT does to a model inside, also when it fails half way."""
    attributes = set(vars(model))
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            yield
    finally:
        for siblings, name, layer in slots:
            siblings[name] = layer
        for parameter in trainable:
            parameter.requires_grad_(True)
        for attribute in set(vars(model)) - attributes:
            delattr(model, attribute)


def _copy(lora: Lora, held: dict[str, torch.Tensor]) -> None:
    """Fill the layers PEFT made: every weight has exactly one place, and every place a weight."""
    stored = lora.weights
    misshapen = {n for n in stored.keys() & held.keys() if stored[n].shape != held[n].shape}
    for names, fault in (
        (stored.keys() - held.keys(), "belong to no layer that it adapts in this model"),
        (held.keys() - stored.keys(), "are missing for the layers that it adapts"),
        (misshapen, "have another shape than the layers of this model want"),
    ):
        if names:
            raise InputError(
                f"{len(names)} of its weights {fault} (first: {min(names)})",
                where=lora.folder,
                hint=_OTHER_MODEL,
            )
    for name, tensor in held.items():
        tensor.copy_(stored[name])
        if not bool(tensor.isfinite().all()):
            raise InputError(
                f"its weight {name} is not finite in {dtype_name(tensor.dtype)}",
                where=lora.folder,
                hint="use another copy of the adapter, or another dtype",
            )
