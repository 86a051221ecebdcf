"""Settings of a LoRA adapter: what `adapter_config.json` says, if all of it can be applied."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coinkv.errors import InputError, ModelNotFoundError

_CONFIG = "adapter_config.json"

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


def settings_of(folder: Path) -> dict[str, Any]:
    """The settings of the adapter in a folder that decide what it computes.

    Raises:
        ModelNotFoundError: the folder holds no adapter.
        InputError: they are damaged, of no LoRA adapter or of more than one.
    """
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
            f"not a LoRA adapter (peft_type {reprlib.repr(config.get('peft_type'))})",
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
    wrong = next((key for key, fits in _KINDS.items() if not fits(settings.get(key))), None)
    if wrong is not None:
        raise InputError(
            f"its settings are damaged: {wrong} is {reprlib.repr(settings[wrong])}",
            where=path,
            hint="use a whole copy",
        )
    return settings


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        InputError: there is none.
    """
    try:
        if not path.is_file():  # a pipe would keep its reader waiting
            raise ValueError("it is no file")
        value = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(value, allow_nan=False)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"cannot be read as JSON ({one_line(error)})", where=path, hint="use a whole copy"
        ) from error
    if not isinstance(value, dict):
        raise InputError("holds no JSON object", where=path, hint="use a whole copy")
    return value


def one_line(error: BaseException) -> str:
    """What an error of another package says, in one line that is not long."""
    return " ".join(str(error).split())[:120] or type(error).__name__


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31


def _is_scale(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 2**31


def _is_pattern(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_scale, value.values()))


def _are_names(value: object) -> bool:
    if isinstance(value, str):
        try:
            re.compile(value)
        except (re.error, RecursionError, OverflowError):
            return False
        return True
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _or_none(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)


_KINDS: dict[str, Callable[[object], bool]] = {
    "r": _or_none(_is_size),
    "lora_alpha": _or_none(_is_scale),
    "rank_pattern": _or_none(_is_pattern),
    "alpha_pattern": _or_none(_is_pattern),
    "target_modules": _or_none(_are_names),
    "exclude_modules": _or_none(_are_names),
}
