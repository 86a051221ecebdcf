"""The worker's end of the wire: one JSON object a line, the standard library only.

A peer's environment holds no coinkv, so this file is found beside the script that is run.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = Callable[[str, int, Callable[[], None]], dict[str, Any]]
"""Answers a prompt with at most so many tokens; calls back once the first token exists."""
Load = Callable[[dict[str, Any]], tuple[Answer, dict[str, Any]]]
"""Makes a system from its settings; returns how it answers, and its versions."""


def serve(load: Load) -> None:
    """Load a system, say `ready`, then answer requests until the input ends.

    The first argument is a JSON object: the settings, with a prompt to `warm_up` by. A request
    `{"prompt", "max_new_tokens"}` is answered by `{"first": true}` the moment the first token is
    chosen and on the host, and by `{"done": {...}}` when the system is idle again: whatever it does
    behind the answer is over by then.
    """
    wire = _take_stdout()

    def say(message: dict[str, Any]) -> None:
        wire.write(json.dumps(message) + "\n")
        wire.flush()

    settings = json.loads(sys.argv[1])
    answer, versions = load(settings)
    for _ in range(2):  # the first passes of a process find their buffers and code paths
        answer(settings["warm_up"], 2, lambda: None)
    loaded = _start_of_peak()
    say({"ready": {"versions": versions, "loaded_bytes": loaded}})
    for line in sys.stdin:
        request = json.loads(line)
        facts = answer(request["prompt"], request["max_new_tokens"], lambda: say({"first": True}))
        say({"done": {**facts, "peak_bytes": _peak_bytes()}})


def _take_stdout() -> Any:
    """The standard output for the wire alone; what libraries print goes to standard error."""
    wire = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return wire


def _start_of_peak() -> int:
    """Resident bytes now; where the system can, the peak is counted anew from here.

    Loading a model may for a moment take more than ever after.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status_bytes("VmRSS")
    except (OSError, KeyError):
        return _peak_bytes()


def _peak_bytes() -> int:
    """The most resident bytes of this process.

    Not `ru_maxrss` where there is another way: on Linux a child's begins with its parent's.
    """
    try:
        return _status_bytes("VmHWM")
    except (OSError, KeyError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return 1024 * int(fields[name].split()[0])
