"""The server's hold on its indexing process: started for the first job, ended when idle."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from coinkv.errors import CoinKVError
from coinkv.serve.library.assignment import Assignment, Outcome
from coinkv.serve.library.children import module_command, package_path
from coinkv.serve.library.share import Share
from coinkv.serve.settings import ServeSettings

OnStep = Callable[[str, int, int], None]

_MOST_DEATHS = 3
_CANCELLED = "indexing was ended"
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


class CancelledError(CoinKVError):
    """A job was ended on purpose: the server closes, or its index is dropped."""


class JobError(CoinKVError):
    """A job cannot be done; the index is as it was."""


class Indexer:
    """Runs jobs one at a time in a process that keeps the model loaded.

    Use `run` and `end` from one thread, which must live as long as this: the system takes it for
    the process's parent. `kill` may come from any thread.

    Args:
        settings: the model to encode with, and the share of the time to do it in.
        busy: whether answers are being computed now.
    """

    def __init__(self, settings: ServeSettings, busy: Callable[[], bool]) -> None:
        self._settings, self._busy = settings, busy
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    @property
    def running(self) -> bool:
        """Whether there is a process, at work or not."""
        return self._process is not None

    def run(
        self, assignment: Assignment, on_step: OnStep, cancelled: Callable[[], bool]
    ) -> Outcome:
        """Do a job. A process that dies over it is replaced, and goes on where the old one was.

        Args:
            assignment: the job.
            on_step: told of every step: stage, what is done, what there is.
            cancelled: whether nobody wants the job any more; asked when a process begins or ends.

        Raises:
            JobError: the job cannot be done, or the process died over it again and again.
            CancelledError: it was cancelled.
        """
        for _ in range(_MOST_DEATHS):
            process = self._started(cancelled)
            with Share(process.pid, self._busy, self._settings.indexing_share):
                outcome = _followed(process, assignment, on_step)
            if outcome is not None:
                return outcome
            self.end()
        if cancelled():
            raise CancelledError(_CANCELLED)
        raise JobError(
            f"the indexing process died {_MOST_DEATHS} times over it",
            hint="give the server more memory, or send less at a time",
        )

    def kill(self) -> None:
        """End the process in the middle of what it does."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def end(self) -> None:
        """End the process and free its memory; the next job starts another."""
        self.kill()
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _started(self, cancelled: Callable[[], bool]) -> subprocess.Popen[str]:
        with self._lock:
            if cancelled():
                raise CancelledError(_CANCELLED)
            if self._process is None:
                self._process = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    encoding="utf-8",
                    env=_environment(),
                    close_fds=True,
                    **_own_group(),
                )
            return self._process

    def _command(self) -> Sequence[str]:
        settings = self._settings
        arguments = ["--parent", str(os.getpid()), "--model", settings.model]
        for option, value in (
            ("--device", settings.device),
            ("--dtype", settings.dtype),
            ("--max-context", settings.max_context),
            ("--codec", settings.index_codec),
        ):
            if value is not None:
                arguments += [option, str(value)]
        return module_command("coinkv.serve.library.worker", *arguments)


def _followed(
    process: subprocess.Popen[str], assignment: Assignment, on_step: OnStep
) -> Outcome | None:
    """Hand a job over and listen until it ends; None when the process ends first."""
    if process.stdin is None or process.stdout is None:
        return None
    try:
        process.stdin.write(assignment.to_line())
        process.stdin.flush()
    except OSError:
        return None
    for line in process.stdout:
        try:
            facts: dict[str, Any] = json.loads(line)
        except ValueError:  # cut off by its death
            return None
        if facts["event"] == "progress":
            on_step(facts["stage"], facts["done"], facts["total"])
        elif facts["event"] == "failed":
            raise JobError(facts["what"], hint=facts["hint"])
        else:
            return Outcome.from_facts(facts)
    return None


def _environment() -> Mapping[str, str]:
    one = dict.fromkeys(_ONE_THREAD, "1")
    path = os.pathsep.join(filter(None, (package_path(), os.environ.get("PYTHONPATH"))))
    return {**os.environ, **one, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}


def _own_group() -> dict[str, Any]:
    """A process group of its own: Ctrl-C is the server's affair, and when the server dies while the
    process is stopped, the system continues and ends it, since its group has been left alone.
    """
    return {"process_group": 0} if hasattr(os, "setpgid") else {}
