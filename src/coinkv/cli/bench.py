"""`coinkv bench`: measurements anyone can repeat."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from coinkv.cli import bench_boost, bench_injection
from coinkv.cli import options as shared
from coinkv.cli.output import print_json, progress, results

app = typer.Typer(help="Measurements anyone can repeat.", no_args_is_help=True)
app.command("boost")(bench_boost.boost_command)
app.command("injection")(bench_injection.injection_command)


@app.callback()
def _bench() -> None:
    """Measurements anyone can repeat."""


@app.command("ttft")
def ttft_command(
    index: shared.IndexFolder,
    questions: Annotated[Path, typer.Option(help="JSONL rows with a `question`.")],
    k_chunks: shared.KChunks = None,
    k_nuggets: shared.KNuggets = None,
    repeat: Annotated[int, typer.Option(help="How often every question is asked.")] = 1,
    limit: shared.Limit = None,
    methods: Annotated[
        str, typer.Option(help="Methods, with commas between.")
    ] = "standard_rag,standard_cag,coinrag",
    model: shared.Model = None,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    threads: shared.Threads = None,
    json: shared.Json = False,
) -> None:
    """Time to first token of the methods side by side, and the floor beneath coinrag."""
    shared.use_threads(threads)
    from coinkv.evaluate.questions import read_questions
    from coinkv.evaluate.ttft import bench_ttft
    from coinkv.rag.index import Index

    asked = read_questions(questions, limit)
    opened = Index.open(index, model=model, device=device, dtype=dtype)
    with progress(quiet=json) as step:
        facts = bench_ttft(
            opened,
            asked,
            k_chunks=k_chunks,
            k_nuggets=k_nuggets,
            repeat=repeat,
            methods=[name.strip() for name in methods.split(",")],
            on_progress=lambda done, total: step("asking", done, total),
        )
    facts["command"] = shlex.join(["coinkv", *sys.argv[1:]])
    if json:
        print_json(facts)
    else:
        _print(facts)


def _print(facts: dict[str, Any]) -> None:
    stages = next(iter(facts["methods"].values()))["stages_ms"]
    table = Table("method", "TTFT p50", "p99", "Len", *stages)
    for name, measured in facts["methods"].items():
        table.add_row(
            name,
            f"{measured['ttft_ms']['p50']:.0f} ms",
            f"{measured['ttft_ms']['p99']:.0f} ms",
            f"{measured['len_tokens']:.0f}",
            *(f"{value:.1f}" for value in measured["stages_ms"].values()),
        )
    results.print(table)
    for name, ratio in facts["ratios"].items():
        if ratio is not None:
            results.print(f"{name}: {ratio:.2f}")
