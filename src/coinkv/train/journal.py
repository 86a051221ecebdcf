"""The journal: what a run did, a JSON line a step and a JSON line an evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coinkv.errors import InputError, StorageError
from coinkv.store.atomic import publish

JOURNAL, TENSORBOARD = "journal.jsonl", "tensorboard"
"""File and folder in a run's folder: the lines, and the same as TensorBoard's event files."""


class Journal:
    """Appends lines to `journal.jsonl` of a run's folder, and to TensorBoard files if wanted.

    A line of kind `step` has `step`, `epoch`, `loss`, `learning_rate`, `gradient_norm`, `rows`,
    `answer_tokens`, `seconds`; one of kind `dev` has `step` and the fields of
    `coinkv.train.evaluation.DevScores`. TensorBoard has their numbers as `step/loss`, `dev/f1`
    and so on; each line is on the disk before the next one is written.

    Args:
        folder: of the run.
        done: steps that are behind the run; lines of later ones, from before it was cut off, go,
            and with 0 all of them: a run that begins again evaluates again before its first step.
        writer: what `tensorboard_writer` made, or None.

    Raises:
        StorageError: the file cannot be read or written.
    """

    def __init__(self, folder: Path, done: int, writer: Any | None = None) -> None:
        self._path, self._writer = folder / JOURNAL, writer
        from_step = done + 1 if done else 0
        kept = [line for line in read(folder) if line["step"] < from_step]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        try:
            publish(self._path, [memoryview(text.encode())], fsync=False)
            if writer is not None:
                # a writer takes `purge_step` when it opens a file, and it had to be made before the
                # run has found its newest checkpoint: have it open another one
                writer.close()
                writer.purge_step = from_step
        except OSError as error:
            raise _unwritten(self._path, error) from error

    def write(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Append a line.

        Raises:
            StorageError: the disk is full or refuses.
        """
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, **facts}) + "\n")
            if self._writer is not None:
                for name, value in facts.items():
                    if name != "step" and isinstance(value, int | float):
                        self._writer.add_scalar(f"{kind}/{name}", value, facts["step"])
                self._writer.flush()  # nothing else does when a run is cut off
        except OSError as error:
            raise _unwritten(self._path, error) from error


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of a run's journal, none where there is no journal.

    A last line that was cut off is left out.

    Raises:
        StorageError: the file cannot be read.
    """
    path = folder / JOURNAL
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise StorageError(
            f"cannot be read ({error.strerror or error})",
            where=path,
            hint="make it a file that you may read",
        ) from error
    for line in text.split("\n"):
        try:
            facts = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(facts, dict) and isinstance(facts.get("step"), int):
            yield facts


def tensorboard_writer(folder: Path) -> Any:
    """A `torch.utils.tensorboard.SummaryWriter` on the folder `tensorboard` of a run's folder.

    Of several processes that share a run, only the one that keeps the journal needs one.

    Raises:
        InputError: tensorboard is not installed.
        StorageError: its folder or file cannot be written.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            "TensorBoard files need tensorboard, which is not installed",
            hint="run: pip install 'coinkv[tensorboard]'",
        ) from error
    path = folder / TENSORBOARD
    try:
        return SummaryWriter(str(path))
    except OSError as error:
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"cannot be written ({error.strerror or error})",
        where=path,
        hint="free space on that disk or make it writable, then run the same command again",
    )
