"""Child processes: how one is started from this package, and how it dies with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import coinkv

_PR_SET_PDEATHSIG = 1


def module_command(module: str, *arguments: str) -> Sequence[str]:
    """The command that runs a module of this package in a Python of its own.

    `-P` leaves the current folder out of the module search: what lies there is not this package's.
    """
    return (sys.executable, "-P", "-m", module, *arguments)


def package_path() -> str:
    """Where this package was imported from, for a child's `PYTHONPATH`."""
    return str(Path(coinkv.__file__).parent.parent)


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent dies, even while it is stopped (Linux).

    The kernel takes the thread that started this process for the parent: it must live on as long as
    the process. Elsewhere the caller watches for the end of its input.

    Args:
        parent: process number of the parent; when that has died already, this process ends now.
    """
    if sys.platform == "linux":
        with suppress(OSError):  # a C library without prctl: the end of the input remains
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if hasattr(os, "getppid") and os.getppid() != parent:
        os._exit(1)
