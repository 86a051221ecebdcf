"""What commands print: results on stdout, progress and errors on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

console = Console(stderr=True)
results = Console()


def print_json(facts: Any) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(facts, ensure_ascii=False, indent=2) + "\n")


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A bar a stage with count, rate and time left; yields what to call with a step.

    Where there is no bar, only what keeps one waiting for another process is a line on stderr.
    """
    bars = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        speed_estimate_period=600,  # a step of training may take minutes
        disable=quiet or not console.is_terminal,
    )
    silent = bars.disable
    current: dict[str, Any] = {}

    def step(stage: str, done: int, total: int) -> None:
        if current.get("stage") != stage:
            if "task" in current:
                bars.remove_task(current["task"])
            current["stage"] = stage
            if silent and stage.startswith("waiting"):
                console.print(f"{stage} ...", highlight=False, soft_wrap=True)
            current["task"] = bars.add_task(stage, total=total, rate="")
        speed = bars.tasks[-1].speed
        rate = "" if not speed else f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each"
        bars.update(current["task"], completed=done, total=total, rate=rate)

    with bars:
        yield step


def milliseconds(seconds: float) -> str:
    """Seconds as a short text in the unit a person would choose."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def counted(number: int, noun: str) -> str:
    """`1 document`, `1200 documents`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def size(count: float) -> str:
    """Bytes as a short text."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
