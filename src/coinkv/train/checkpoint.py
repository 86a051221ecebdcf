"""Checkpoints: all that a run needs to go on as if it had never stopped."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from coinkv.errors import StorageError
from coinkv.store.atomic import sync
from coinkv.train.learner import Learner
from coinkv.train.sealed import sealed, unsealed

CHECKPOINTS, BEST = "checkpoints", "best"
"""Folders of a run: where it goes on from, and the weights of its best evaluation."""
_PREFIX, _PART = "checkpoint-", ".part"
_WEIGHTS, _OPTIMIZER, _STATE = "weights.safetensors", "optimizer.safetensors", "state.json"


def save(
    folder: Path, step: int, learner: Learner, optimizer: Any, facts: Mapping[str, Any]
) -> None:
    """Keep the state behind a step; it appears whole or not at all, and older ones go.

    Args:
        folder: for checkpoints only.
        step: steps done.
        learner: whose weights are kept.
        optimizer: its moments are kept as tensors, never pickled; None keeps the weights only.
        facts: JSON-ready, given back by `load`.

    Raises:
        StorageError: the disk is full or refuses; the checkpoint before is still there.
    """
    moments = optimizer.state_dict()["state"] if optimizer is not None else {}
    tensors, numbers = _flat(moments)
    part = folder / f"{_PREFIX}{step}.{uuid.uuid4().hex}{_PART}"
    try:
        part.mkdir(parents=True)
        weights = {name: p.detach().cpu().contiguous() for name, p in learner.parameters.items()}
        save_file(weights, part / _WEIGHTS)
        save_file(tensors, part / _OPTIMIZER)
        kept = {"numbers": numbers, "facts": dict(facts)}
        text = sealed(kept, part, (_WEIGHTS, _OPTIMIZER))
        (part / _STATE).write_text(text, encoding="utf-8")
        for written in (*part.iterdir(), part):
            sync(written)
        target = folder / f"{_PREFIX}{step}"
        if target.exists():  # of a run that began anew
            target.rename(folder / f"{target.name}.{uuid.uuid4().hex}{_PART}")
        part.rename(target)
        sync(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise StorageError(
            f"a checkpoint cannot be written ({getattr(error, 'strerror', None) or error})",
            where=folder,
            hint=unwritable_hint(error),
        ) from error
    for older in folder.glob(f"{_PREFIX}*"):
        if older != target:
            shutil.rmtree(older, ignore_errors=True)


def load(folder: Path, learner: Learner, optimizer: Any | None) -> dict[str, Any] | None:
    """Take over the newest whole checkpoint; the facts kept with it, None without one.

    Args:
        folder: as given to `save`.
        learner: gets the weights.
        optimizer: gets the moments; None leaves them.

    Raises:
        StorageError: it is damaged.
        InputError: it belongs to another model or recipe.
    """
    newest = max(_whole(folder), key=_step_of, default=None)
    if newest is None:
        return None
    try:
        kept = unsealed((newest / _STATE).read_text(encoding="utf-8"), newest)
        weights, tensors = load_file(newest / _WEIGHTS), load_file(newest / _OPTIMIZER)
        facts = dict(kept["facts"])
        state = _nested(tensors, kept["numbers"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"this checkpoint is damaged ({getattr(error, 'strerror', None) or error})"[:200],
            where=newest,
            hint=f"remove the folder {CHECKPOINTS} of this run; it then begins anew",
        ) from error
    learner.load(weights)
    if optimizer is not None:
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    return facts


def unwritable_hint(error: Exception) -> str:
    """What to do where a file or folder of a run cannot be written."""
    if isinstance(error, FileExistsError | NotADirectoryError | IsADirectoryError):
        return "something else has its name: move it away and run the same command again"
    return (
        "free space on that disk and run the same command again: it goes on from what was kept last"
    )


def _whole(folder: Path) -> list[Path]:
    found = folder.glob(f"{_PREFIX}*")
    return [path for path in found if path.suffix != _PART and _step_of(path) >= 0]


def _step_of(path: Path) -> int:
    number = path.name.removeprefix(_PREFIX)
    return int(number) if number.isascii() and number.isdigit() else -1


def _flat(
    state: Mapping[int, Mapping[str, Any]],
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """An optimizer's state as tensors and other values by `<parameter>.<name>`."""
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, Any] = {}
    for parameter, values in state.items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{parameter}.{name}"] = value.detach().cpu().clone().contiguous()
            else:
                numbers[f"{parameter}.{name}"] = value
    return tensors, numbers


def _nested(
    tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, Any]
) -> dict[int, dict[str, Any]]:
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **numbers}.items():
        parameter, _, name = key.partition(".")
        state.setdefault(int(parameter), {})[name] = value
    return state
