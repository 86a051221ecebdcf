"""A training run in a process of its own: `python training_process.py MODEL ROWS CACHE RUN STEP`.

It kills itself before STEP, so that nothing can be tidied up; 0 lets it finish. Under torchrun only
the main process may write.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from coinkv.model.load import load
from coinkv.rag.options import BuildOptions
from coinkv.train import loop
from coinkv.train.passages import Passages
from coinkv.train.processes import Processes
from training_rows import Parts, drawn, resumable_recipe, resumable_watch


def refused(*_, **__):
    raise AssertionError("another process than the main one writes")


def main(model: str, rows: str, cache: str, run: str, last: str) -> None:
    torch.set_num_threads(1)
    if not Processes(torch.device("cpu")).main:
        loop.save = loop.Journal = refused
    backbone = load(model, device="cpu")

    def tell(stage, done, of):
        if os.environ.get("RANK", "0") != "0":
            refused()
        if stage == "training" and done == int(last) > 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with Passages.open(cache, BuildOptions(model=backbone, chunk_tokens=64)) as passages:
        parts = Parts.of(passages, resumable_recipe())
        parts.run(Path(run), drawn(Path(rows), held_out=8), resumable_watch(), tell)


if __name__ == "__main__":
    main(*sys.argv[1:])
