"""Running `coinkv` from tests: in this process as typed, or as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from coinkv.cli.main import main

PROGRAM = (sys.executable, "-c", "from coinkv.cli.main import main; main()")


@dataclass(frozen=True)
class Ran:
    """What a command left: exit code and what it printed."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def coinkv(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line's `main` with arguments, in this process."""

    def run(*arguments: Any) -> Ran:
        monkeypatch.setattr(sys, "argv", ["coinkv", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        printed = capfd.readouterr()
        return Ran(int(left.value.code or 0), printed.out, printed.err)

    return run


def start(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
    """Start a command as a process of its own, its output captured."""
    return subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **options},
    )
