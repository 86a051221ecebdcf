"""A stand-in for a system: counts tokens as the model does, reuses prefixes, fails when told to.

`STAND_IN` holds JSON: what to do wrong by a word of the settings, such as `{"epic": "crash"}`.
`STAND_IN_LOG` names a file that gets a line a prompt.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from tokenizers import Tokenizer

from coinkv.evaluate.boost.workers.wire import serve

SLOW_SECONDS = 0.2


def fault_of(settings):
    words = {str(value) for value in settings.values()}
    return next((fault for word, fault in FAULTS.items() if word in words), "")


FAULTS = json.loads(os.environ.get("STAND_IN", "{}"))


def load(settings):
    fault = fault_of(settings)
    if fault == "no module":
        raise ModuleNotFoundError("No module named 'kvboost'")
    tokenizer = Tokenizer.from_file(str(Path(settings["model"]) / "tokenizer.json"))
    name = settings.get("repair", settings.get("strategy", "vllm"))
    seen, asked = [], []

    def answer(prompt, max_new_tokens, on_first):
        print("a library that prints to standard output")  # must not disturb the wire
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        warming_up = prompt == settings["warm_up"]
        asked.append(prompt)
        if not warming_up and "STAND_IN_LOG" in os.environ:
            with Path(os.environ["STAND_IN_LOG"]).open("a") as log:
                log.write(f"{settings.get('reuse', '')} {name}\n")
        if not warming_up and len(asked) > 4:
            misbehave(fault)
        if fault == "slow":
            time.sleep(SLOW_SECONDS)
        exact = 0
        if settings.get("reuse") != "none":
            exact = max((common(ids, before) for before in seen), default=0)
            exact = min(exact, len(ids) - 1)
            seen.append(ids)
        on_first()
        miscounted = 1 if fault == "miscount" and not warming_up else 0
        wrong_sum = 1 if fault == "wrong sum" and not warming_up else 0
        return {
            "text": " The answer is seven",
            "token_ids": [7, len(ids), 1],
            "prompt_tokens": len(ids) + miscounted,
            "reuse": {
                "exact": exact,
                "moved": 0,
                "repaired": 0,
                "computed": len(ids) - exact + miscounted + wrong_sum,
            },
            "repair": None,
            "stages_ms": None,
        }

    return answer, {"stand_in": "1"}


def misbehave(fault):
    if fault == "crash":
        sys.stderr.write("Traceback (most recent call last):\nRuntimeError: the roof fell in\n")
        os._exit(3)
    if fault == "silent":
        time.sleep(60)
    if fault == "nonsense":
        os.write(WIRE, b"Loading weights: 100%\n")


def common(one, other):
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


if __name__ == "__main__":
    WIRE = os.dup(1)  # before `serve` takes it away: what a native library may hold on to
    serve(load)
