"""The indexing process: takes jobs from its standard input, one line each, and tells how they go.

Run as `python -m coinkv.serve.library.worker`; whoever starts it is its parent, and when that dies
it dies, too. It computes on one thread and yields to everything else.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import sys
import threading
from dataclasses import asdict
from functools import cache
from typing import Any, TextIO

from coinkv.serve.library.assignment import Assignment
from coinkv.serve.library.children import die_with_parent

_NICE = 10
_log = logging.getLogger(__name__)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="coinkv-indexing")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--max-context", type=int)
    parser.add_argument("--codec", required=True)
    return parser.parse_args()


def _jobs() -> queue.SimpleQueue[str]:
    """Lines of standard input; at its end this process ends, in the middle of a job as well."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)  # a job that is cut off is done again by the next server

    threading.Thread(target=read, name="coinkv-parent", daemon=True).start()
    return lines


def _tell(out: TextIO, **facts: Any) -> None:
    print(json.dumps(facts), file=out, flush=True)


def main() -> None:
    """Work until the parent is gone or closes the input."""
    arguments = _arguments()
    die_with_parent(arguments.parent)
    if hasattr(os, "nice"):
        os.nice(_NICE)
    # what libraries print must not come between the lines that the parent reads
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lines = _jobs()
    while True:
        _perform(Assignment.from_line(lines.get()), arguments, out)


def _perform(assignment: Assignment, arguments: argparse.Namespace, out: TextIO) -> None:
    """Do one job and report; whatever goes wrong is the job's end, not this process's."""
    import torch

    from coinkv.errors import CoinKVError
    from coinkv.rag.build import BuildOptions
    from coinkv.serve.library.perform import Performer

    torch.set_num_threads(1)

    def options() -> BuildOptions:
        backbone = _loaded(
            arguments.model, arguments.device, arguments.dtype, arguments.max_context
        )
        return BuildOptions(
            model=backbone,
            max_context=arguments.max_context,
            codec=arguments.codec,
            mark=True,  # whoever uploads a document is seldom the one who asks it
        )

    def tell(stage: str, done: int, total: int) -> None:
        _tell(out, event="progress", stage=stage, done=done, total=total)

    try:
        outcome = Performer(options, tell).perform(assignment)
    except CoinKVError as error:
        _tell(out, event="failed", what=error.what, hint=error.hint)
    except Exception as error:  # noqa: BLE001 - a job may break down, not the process
        _log.exception("an indexing job broke down")
        _tell(out, event="failed", what=f"indexing broke down ({type(error).__name__})", hint=None)
    else:
        _tell(out, event="done", **asdict(outcome))


@cache
def _loaded(name: str, device: str | None, dtype: str | None, max_context: int | None) -> Any:
    """The backbone, kept for later jobs."""
    from coinkv.model.load import load

    return load(name, device=device, dtype=dtype, max_context=max_context)


if __name__ == "__main__":
    main()
