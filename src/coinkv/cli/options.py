"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coinkv.errors import InputError

IndexFolder = Annotated[Path, typer.Option("--index", help="The index folder.")]
Model = Annotated[
    str | None,
    typer.Option(help="Backbone: hub name or folder. Default: the index's, or the embedded one."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps. Default: the best there is.")]
Dtype = Annotated[str | None, typer.Option(help="float32, float16 or bfloat16.")]
MaxContext = Annotated[
    int | None, typer.Option(help="Promise to stay within so many tokens of context.")
]
Threads = Annotated[int | None, typer.Option(help="CPU threads to compute with.")]
KChunks = Annotated[int | None, typer.Option(help="Chunks retrieved (k_c). Default 5.")]
KNuggets = Annotated[int | None, typer.Option(help="Nuggets retrieved (k). Default 10.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def use_threads(threads: int | None) -> None:
    """Set the number of CPU threads of the model's computations.

    Raises:
        InputError: below 1.
    """
    if threads is None:
        return
    if threads < 1:
        raise InputError(f"threads is {threads}", hint="use 1 or more")
    import torch

    torch.set_num_threads(threads)
