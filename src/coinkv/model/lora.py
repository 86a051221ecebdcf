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

_CONFIG, _PICKLED = "adapter_config.json", "adapter_model.bin"
_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."  # what PEFT puts before the names of the model it wraps
_NAME = "coinkv"
_OTHER_MODEL = "use an adapter that was trained for this model"

_APPLIED = {
    *("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "lora_bias"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    "fan_in_fan_out",
}
# What a saved configuration says of training, of files and of options that are not in use.
_WITHOUT_EFFECT = {
    *("auto_mapping", "base_model_name_or_path", "peft_type", "peft_version", "revision"),
    *("task_type", "inference_mode", "lora_dropout", "megatron_core", "qalora_group_size"),
    *("init_lora_weights", "corda_config", "eva_config", "loftq_config", "lora_ga_config"),
    "runtime_config",
}
# Other ways to begin (PiSSA, OLoRA, CorDA, LoftQ, ...) also change the model's own weights.
_HARMLESS_BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal")


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
    settings, weights = _settings(folder), _weights(folder)
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
    settings, path = _settings(folder), _weights_file(folder)
    try:
        with safe_open(path, framework="pt"):
            return settings
    except (SafetensorError, OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        InputError: there is none.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"cannot be read as JSON ({_short(error)})", where=path, hint="use a whole copy"
        ) from error
    if not isinstance(value, dict):
        raise InputError("holds no JSON object", where=path, hint="use a whole copy")
    return value


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    if not path.is_file():
        raise ModelNotFoundError(
            f"this folder holds no adapter ({_CONFIG})",
            where=folder,
            hint="name a Hugging Face PEFT folder",
        )
    config = json_object(path)
    if config.get("peft_type") != "LORA":
        raise InputError(
            f"not a LoRA adapter (peft_type {config.get('peft_type')!r})",
            where=path,
            hint="use a LoRA adapter",
        )
    plain = _APPLIED | _WITHOUT_EFFECT | ({"bias"} if config.get("bias") == "none" else set())
    beyond = sorted(key for key, value in config.items() if value and key not in plain)
    if config.get("init_lora_weights") not in _HARMLESS_BEGINNINGS:
        beyond.append(f"init_lora_weights={config['init_lora_weights']}")
    if beyond:
        raise InputError(
            f"this adapter is more than LoRA ({', '.join(beyond)[:120]})",
            where=path,
            hint="use an adapter trained without these options",
        )
    settings = {key: config[key] for key in sorted(_APPLIED & config.keys())}
    for key in ("target_modules", "exclude_modules"):  # PEFT writes these sets in any order
        if isinstance(settings.get(key), list):
            settings[key] = sorted(settings[key], key=str)
    return settings


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
        f"damaged: cannot be read as safetensors ({_short(error)})",
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
            f"this adapter does not fit {backbone.name} ({_short(error)})",
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
            f"no adapter can be put around the layers of {backbone.name} ({_short(error)})",
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


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
