"""`coinkv demo`: real documents, real questions, CoinRAG beside Standard RAG."""

from __future__ import annotations

import shlex
import shutil
import statistics
import sys
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from coinkv.cli import options as shared
from coinkv.cli.output import console, milliseconds, print_json, progress, results, size
from coinkv.config import home

if TYPE_CHECKING:
    from coinkv.rag.answer import Answer
    from coinkv.rag.build import BuildReport
    from coinkv.rag.index import Index

_METHODS = ("standard_rag", "coinrag")


def demo_command(
    index: Annotated[
        Path | None, typer.Option("--index", help="Where to keep the demo's index.")
    ] = None,
    adapter: shared.Adapter = None,
    no_adapter: shared.NoAdapter = False,
    model: shared.Model = None,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    threads: shared.Threads = None,
    json: shared.Json = False,
) -> None:
    """Build an index of eight documents and answer five questions by two methods."""
    shared.use_threads(threads)
    from coinkv.evaluate.questions import read_questions
    from coinkv.rag.build import BuildOptions, build
    from coinkv.rag.index import Index

    chosen = shared.adapter_chosen(adapter, no_adapter)
    folder = index or home() / "demo"
    console.print("Preparing the model (the embedded default is converted once, about 20 s).")
    with as_file(files("coinkv.cli") / "demo_data") as data:
        options = BuildOptions(model=model, device=device, dtype=dtype)
        with progress(quiet=json) as step:
            report = build(data / "docs", folder, options, step)
        questions = read_questions(data / "questions.jsonl")
    if not json:
        results.print(
            f"Indexed {report.documents} documents: {report.chunks} chunks, {report.tokens} "
            f"tokens, {size(report.kv_bytes)} of KV ({report.seconds:.0f} s)."
        )
    opened = Index.open(folder, model=model, device=device, dtype=dtype)
    rows = _ask_all(opened, questions, chosen, show=not json)
    ratio = statistics.median(
        answers["standard_rag"].ttft_seconds / answers["coinrag"].ttft_seconds
        for answers in rows.values()
    )
    if json:
        print_json(_facts(report, rows, ratio))
        return
    used = {answer.adapter for answers in rows.values() for answer in answers.values()}
    for each in filter(None, used):
        without = "; --no-adapter does without" if adapter is None else ""
        results.print(f"\nAnswered with the adapter {each.name}{without}.")
    results.print(
        f"\nMedian over {len(rows)} questions: the first token comes [bold]{ratio:.1f} times[/] "
        f"sooner with coinrag than with standard_rag ({opened.settings.chunk_tokens}-token chunks)."
    )
    results.print(
        f'Ask your own: {_command()} ask --index {shlex.quote(str(folder))} "..."',
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _command() -> str:
    """How to call this program again from here: by name if the shell finds it, else by its path."""
    return "coinkv" if shutil.which("coinkv") else shlex.quote(sys.argv[0])


def _ask_all(
    index: Index, questions: list[str], adapter: Path | str | None, *, show: bool
) -> dict[str, dict[str, Answer]]:
    from coinkv.rag.ask import CoinRAG

    askers = {name: CoinRAG(index, method=name, adapter=adapter) for name in _METHODS}
    askers["coinrag"].ask(questions[0])  # warm up: the first pass of a process is slower
    rows: dict[str, dict[str, Answer]] = {}
    for question in questions:
        rows[question] = {name: asker.ask(question) for name, asker in askers.items()}
        if show:
            _print(question, rows[question])
    return rows


def _print(question: str, answers: dict[str, Answer]) -> None:
    table = Table("method", "answer", "first token", "Len", "best evidence", title=question)
    table.title_justify = "left"
    for name, answer in answers.items():
        best = answer.evidence[0] if answer.evidence else None
        shown = "" if best is None else f"{best.document}: {_short(best.text)}"
        table.add_row(
            name,
            _short(answer.text),
            milliseconds(answer.ttft_seconds),
            str(answer.len_tokens),
            shown,
        )
    results.print(table)


def _short(text: str, most: int = 80) -> str:
    from rich.markup import escape

    line = " ".join(text.split())
    return escape(line if len(line) <= most else f"{line[: most - 1]}…")


def _facts(report: BuildReport, rows: dict[str, dict[str, Answer]], ratio: float) -> dict[str, Any]:
    return {
        "build": report.to_dict(),
        "questions": [
            {"question": question, "answers": [answer.to_dict() for answer in answers.values()]}
            for question, answers in rows.items()
        ],
        "ratios": {"standard_rag_over_coinrag": ratio},
    }
