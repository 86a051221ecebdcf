"""Results: what a run leaves, an adapter with its card or a whole model, written whole or not."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from coinkv.errors import InputError, StorageError
from coinkv.model.adapter import CARD
from coinkv.model.backbone import Backbone
from coinkv.model.pretrained import quiet_transformers
from coinkv.train.card import LINK_FILE, readme
from coinkv.train.checkpoint import unwritable_hint
from coinkv.train.learner import LINKS, Learner

MODEL_CARD = "training.json"
_PART, _OLD = ".part", ".old"


def write_adapter(
    learner: Learner, base: Backbone, folder: Path, card: Mapping[str, Any]
) -> list[Path]:
    """Write a Hugging Face PEFT folder with `coinkv_adapter.json` and a README beside the weights.

    Weights are kept in float16, or in float32 where one is too large for it. Link embeddings that
    were learned lie beside them, for the method's option `embeddings`.

    Args:
        learner: with an adapter.
        base: the backbone it was trained on.
        folder: made, or replaced as a whole.
        card: as `coinkv.train.card.card` makes it.

    Returns:
        The files.

    Raises:
        InputError: all weights were trained, there is no adapter.
        StorageError: the folder cannot be written; one that was there is as it was.
    """
    if learner.adapter is None:
        raise InputError("all weights were trained, there is no adapter", hint="write the model")
    settings = {**learner.adapter, "base_model_name_or_path": base.name}

    def write(part: Path) -> None:
        from peft import LoraConfig

        LoraConfig(**settings, inference_mode=True).save_pretrained(str(part))
        _with_sets_in_order(part / "adapter_config.json")
        weights = {name: p.detach().cpu().contiguous() for name, p in learner.weights.items()}
        half = {name: weight.half() for name, weight in weights.items()}
        finite = all(bool(weight.isfinite().all()) for weight in half.values())
        save_file(half if finite else weights, part / "adapter_model.safetensors")
        _write_beside(learner, part, CARD, card)

    return _replaced(folder, write)


def write_model(learner: Learner, folder: Path, card: Mapping[str, Any]) -> list[Path]:
    """Write a whole Hugging Face model with its tokenizer, `training.json` and a README.

    Returns:
        The files.

    Raises:
        StorageError: the folder cannot be written; one that was there is as it was.
    """
    view = learner.view

    def write(part: Path) -> None:
        with quiet_transformers():
            view.model.save_pretrained(part)
            view.tokenizer.save_pretrained(part)
        _write_beside(learner, part, MODEL_CARD, card)

    return _replaced(folder, write)


def _with_sets_in_order(config: Path) -> None:
    """PEFT writes its sets of names in another order in each process."""
    settings = json.loads(config.read_text(encoding="utf-8"))
    for name in ("target_modules", "exclude_modules"):
        if isinstance(settings[name], list):
            settings[name] = sorted(settings[name])
    config.write_text(json.dumps(settings, indent=2, sort_keys=True), encoding="utf-8")


def _write_beside(learner: Learner, folder: Path, name: str, card: Mapping[str, Any]) -> None:
    """Link embeddings, if any were learned, the card, and the card for people."""
    if learner.links is not None:
        links = learner.links.detach().float().cpu().contiguous()
        save_file({LINKS: links}, folder / LINK_FILE)
    text = json.dumps(dict(card), indent=2, ensure_ascii=False) + "\n"
    (folder / name).write_text(text, encoding="utf-8")
    (folder / "README.md").write_text(readme(card), encoding="utf-8")


def _replaced(folder: Path, write: Callable[[Path], None]) -> list[Path]:
    """A folder written beside its place and put there as a whole; the older one goes last."""
    for leftover in folder.parent.glob(f"{folder.name}.*"):
        if leftover.suffix in (_PART, _OLD):  # of a run that was killed here
            _remove(leftover)
    name = f"{folder.name}.{uuid.uuid4().hex}"
    part, old = folder.with_name(name + _PART), folder.with_name(name + _OLD)
    try:
        part.mkdir(parents=True)
        with torch.no_grad():
            write(part)
        readable = (part / "README.md").stat().st_mode
        for path in part.iterdir():
            path.chmod(readable)  # safetensors lets nobody read its files but their owner
        names = sorted(path.name for path in part.iterdir())
        if _is_there(folder):
            folder.rename(old)
        part.rename(folder)
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"the result cannot be written ({getattr(error, 'strerror', None) or error})"[:300],
            where=folder,
            hint=unwritable_hint(error),
        ) from error
    finally:
        if _is_there(old) and not _is_there(folder):
            old.rename(folder)
        for path in (part, old):
            _remove(path)
    return [folder / name for name in names]


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _remove(path: Path) -> None:
    """Remove a folder or whatever has its name, as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()
