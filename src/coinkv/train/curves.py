"""Curves of runs as pictures: loss and F1 over the steps of one run, or of several at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from coinkv.errors import InputError, StorageError
from coinkv.evaluate.report.rendering import rendered
from coinkv.store.atomic import publish
from coinkv.train.curve_figures import comparison_figure, f1_figure, loss_figure
from coinkv.train.history import History

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(folder: Path, target: Path | None = None) -> list[Path]:
    """Draw a run's loss (`loss.svg`, `loss.png`) and its F1 and exact match (`f1.svg`, `f1.png`).

    The best step is that of the most F1, or of the least loss among those. Without development
    rows there is no picture of F1.

    Args:
        folder: of a run, done or not.
        target: folder of the pictures, made if missing; None: the run's. Older pictures are
            replaced.

    Returns:
        The files written.

    Raises:
        InputError: the folder holds no journal of a run or an empty one, the target is a file, or
            matplotlib is not installed.
        StorageError: the journal cannot be read, or the disk is full or refuses.
    """
    history = History.of(folder)
    target = folder if target is None else target
    files = _save(target, "loss", "Loss by step", partial(loss_figure, history))
    if history.dev:
        files += _save(target, "f1", "F1 by step", partial(f1_figure, history))
    return files


def compare(folders: Mapping[str, Path], target: Path) -> list[Path]:
    """Draw loss and F1 of several runs in one picture, `comparison.svg` and `comparison.png`.

    Args:
        folders: of runs, by the names they go by; a method's name brings the colour that it has in
            reports, as far as no earlier run has that colour.
        target: folder of the picture, made if missing.

    Returns:
        The files written.

    Raises:
        InputError: there are no runs, a folder holds no journal of a run or an empty one, the
            target is a file, or matplotlib is not installed.
        StorageError: a journal cannot be read, or the disk is full or refuses.
    """
    if not folders:
        raise InputError("there are no runs to compare", hint="name the folders of runs")
    histories = {name: History.of(folder) for name, folder in folders.items()}
    title = "Loss and F1 of several runs by step"
    return _save(target, "comparison", title, partial(comparison_figure, histories))


def _save(folder: Path, name: str, title: str, figure: Callable[[], Figure]) -> list[Path]:
    files = []
    for suffix, content in rendered(name, title, figure, extra="train").items():
        path = folder / f"{name}.{suffix}"
        try:
            publish(path, [memoryview(content)], fsync=False)
        except (FileExistsError, NotADirectoryError) as error:
            raise InputError("this is a file", where=folder, hint="name a folder") from error
        except OSError as error:
            raise StorageError(
                f"cannot be written ({error.strerror or error})",
                where=path,
                hint="free space on that disk or make it writable",
            ) from error
        files.append(path)
    return files
