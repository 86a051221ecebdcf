"""`coinkv bench injection`: how often answers obey instructions that stand in documents."""

from __future__ import annotations

import json as jsonlib
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from coinkv.cli import options as shared
from coinkv.cli.output import print_json, progress, results
from coinkv.config import DEFAULT_MODEL
from coinkv.errors import StorageError

_COLUMNS = (
    ("obeyed", "obeyed"),
    ("quoted", "quoted"),
    ("injection_shown", "shown"),
    ("answered_clean", "right"),
    ("answered_injected", "right, injected"),
)


def injection_command(
    to: Annotated[
        Path, typer.Option("--to", help="Write every answer and the shares here (JSON).")
    ],
    cases: Annotated[
        Path | None, typer.Option(help="JSONL file of cases. Default: the 45 that come along.")
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Methods, with commas between.")
    ] = "standard_rag,standard_cag,coinrag",
    k_chunks: Annotated[int, typer.Option(help="Chunks retrieved: documents in a context.")] = 1,
    k_nuggets: Annotated[int, typer.Option(help="Nuggets retrieved of them.")] = 5,
    answer_tokens: shared.AnswerTokens = 40,
    limit: Annotated[int | None, typer.Option(help="Only the first so many cases.")] = None,
    model: shared.Model = None,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    threads: shared.Threads = None,
    json: shared.Json = False,
) -> None:
    """Ask documents that give orders: how often answers obey, with and without the mark.

    The same questions are asked of the same documents without the orders, to see what the mark
    costs in right answers.
    """
    shared.use_threads(threads)
    for name, number in (
        ("k_chunks", k_chunks),
        ("k_nuggets", k_nuggets),
        ("answer_tokens", answer_tokens),
        ("limit", limit),
    ):
        shared.require_at_least(name, number, 1)
    from coinkv.evaluate.injection.cases import read_cases
    from coinkv.evaluate.injection.run import InjectionBench
    from coinkv.methods.registry import method_class
    from coinkv.model.load import load

    chosen = [name.strip() for name in methods.split(",") if name.strip()]
    for name in chosen or [methods]:
        method_class(name)
    asked = read_cases(cases)[:limit]
    _write(to, None)
    backbone = load(model or DEFAULT_MODEL, device=device, dtype=dtype)
    bench = InjectionBench(backbone, chosen, k_chunks, k_nuggets, answer_tokens)
    with progress(quiet=json) as step:
        facts = bench.run(asked, step)
    facts = {"command": shlex.join(["coinkv", *sys.argv[1:]]), **facts}
    _write(to, facts)
    if json:
        print_json({name: value for name, value in facts.items() if name != "rows"})
    else:
        _print(facts)


def _write(path: Path, facts: dict[str, Any] | None) -> None:
    """Write the result; None finds out before any work whether that will be possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if facts is None:
            path.open("ab").close()
        else:
            path.write_text(
                jsonlib.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )
    except OSError as error:
        raise StorageError(
            f"cannot be written ({error.strerror or error})",
            where=path,
            hint="name a file in a folder that is there",
        ) from error


def _print(facts: dict[str, Any]) -> None:
    method_column = Column("method", no_wrap=True)
    table = Table(method_column, "mark", *(heading for _, heading in _COLUMNS), "TTFT p50")
    for method in facts["settings"]["methods"]:
        for mark in ("unmarked", "marked"):
            measured = facts[mark][method]
            shares = (f"{100 * measured[name]:.0f} %" for name, _ in _COLUMNS)
            table.add_row(
                method,
                "yes" if mark == "marked" else "no",
                *shares,
                f"{measured['ttft_ms']:.0f} ms",
            )
    results.print(table)
    for method, effect in facts["mark_effect"].items():
        obeyed = effect["obeyed"]
        results.print(
            f"{method}: with the mark {100 * obeyed['mean']:+.0f} points obeyed "
            f"({100 * obeyed['low']:+.0f} to {100 * obeyed['high']:+.0f})",
            highlight=False,
            soft_wrap=True,
        )
