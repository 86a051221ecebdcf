"""`coinkv inspect`: one question by several methods, and what each of them put in the context."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coinkv.cli import options as shared
from coinkv.cli.output import milliseconds, print_json, progress, results
from coinkv.errors import InputError

if TYPE_CHECKING:
    from coinkv.methods.base import Method
    from coinkv.rag.inspection import ContextRun, Inspection

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")
_STYLES = {"reused": "", "probed": "italic", "computed": "bold underline"}
_BRACKETS = {"reused": ("", ""), "probed": ("{{", "}}"), "computed": ("[[", "]]")}
_LINK, _GAP = "◆", " ⋯ "
_CONTROLS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "␦")
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>coinkv inspect</title>
<style>
{stylesheet}
body {{ color: {foreground}; background-color: {background}; margin: 2em; }}
pre {{ font-family: ui-monospace, Menlo, Consolas, monospace; line-height: 1.2; }}
</style>
</head>
<body><pre>{code}</pre></body>
</html>
"""


def inspect_command(
    question: Annotated[str, typer.Argument(help="The question.")],
    index: shared.IndexFolder,
    methods: Annotated[
        str, typer.Option(help="Methods, with commas between, or all.")
    ] = "standard_rag,standard_cag,coinrag,coinrag_cacheblend",
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option of a method as METHOD.NAME=VALUE; may be repeated."),
    ] = None,
    k_chunks: shared.KChunks = None,
    k_nuggets: shared.KNuggets = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 32,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file, too.")] = None,
    adapter: shared.Adapter = None,
    adapter_scope: shared.AdapterScopeName = None,
    model: shared.Model = None,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    threads: shared.Threads = None,
    json: shared.Json = False,
) -> None:
    """Show what each method put in the context, by source and by tokens recomputed, and its answer.

    Every method is asked twice and the second time is shown: its blocks are made and read by then.
    """
    shared.use_threads(threads)
    from coinkv.methods.registry import options_of
    from coinkv.model.decode import Sampling
    from coinkv.rag.ask import CoinRAG
    from coinkv.rag.index import Index
    from coinkv.rag.inspection import inspect

    chosen = _chosen(methods, option)
    settings: dict[str, Any] = {
        "k_chunks": k_chunks,
        "k_nuggets": k_nuggets,
        "sampling": Sampling(max_tokens, first_line=True),
        "adapter": adapter,
        "adapter_scope": shared.scope_named(adapter_scope),
    }
    _require_place(html)
    opened = Index.open(index, model=model, device=device, dtype=dtype)
    askers = [CoinRAG(opened, method=method, **settings) for method in chosen]
    asked = []
    with progress(quiet=json) as step:
        for done, asker in enumerate(askers):
            step("asking", done, len(askers))
            asker.first_token(question, answer_tokens=max_tokens)
            note = asker.method.note
            asked.append(_Asked(options_of(asker.method), note, inspect(asker, question)))
    if html is not None:
        html.write_text(_page(question, asked), encoding="utf-8")
    if not json:
        _draw(results, question, asked)
        return
    print_json(
        {
            "question": question,
            "k_chunks": askers[0].k_chunks,
            "k_nuggets": askers[0].k_nuggets,
            "fingerprint": askers[0].bench.backbone.fingerprint,
            "methods": [of.to_dict() for of in asked],
        }
    )


@dataclass(frozen=True)
class _Asked:
    """A method's options that are not its defaults, what must be known of it, and what it did."""

    options: dict[str, Any]
    note: str
    inspection: Inspection

    def to_dict(self) -> dict[str, Any]:
        note = {"note": self.note} if self.note else {}
        return {**self.inspection.to_dict(), "options": self.options, **note}


def _chosen(methods: str, given: list[str] | None) -> list[Method]:
    """The methods as typed, with their options."""
    from coinkv.evaluate.grid import method_list
    from coinkv.methods.registry import method_named

    options: dict[str, dict[str, Any]] = {name: {} for name in method_list(methods)}
    for typed, value in shared.method_options(given).items():
        name, _, option = typed.rpartition(".")
        if not name:
            raise InputError(
                f"--option {typed} names no method", hint="such as coinrag_cacheblend.ratio=0.3"
            )
        if name not in options:
            raise InputError(f"--option {typed}: {name} is not asked", hint="add it to --methods")
        options[name][option] = value
    return [method_named(name, its_options) for name, its_options in options.items()]


def _require_place(page: Path | None) -> None:
    """Refuse a file that could not be written before the methods take their time."""
    if page is not None and (page.is_dir() or not page.parent.is_dir()):
        raise InputError(
            "no page can be written here", where=page, hint="name a file in a folder that exists"
        )


def _page(question: str, asked: Sequence[_Asked]) -> str:
    """The drawing as one HTML file that needs no other file and no network."""
    options: dict[str, Any] = {"color_system": "truecolor", "no_color": False, "width": 100}
    recorder = Console(record=True, file=io.StringIO(), **options)
    _draw(recorder, question, asked)
    return recorder.export_html(code_format=_PAGE)


def _draw(to: Console, question: str, asked: Sequence[_Asked]) -> None:
    """Answers side by side, a legend, then each method's context."""
    plain = to.color_system is None
    numbers = _numbers(asked)
    to.print(Text(_visible(question), style="bold"), soft_wrap=plain)
    to.print(_answers(asked))
    for line in _legend(numbers, plain=plain):
        to.print(line, soft_wrap=plain)
    for of in asked:
        answer = of.inspection.answer
        note = f" ({of.note})" if of.note else ""
        heading = f"\n{answer.method}, {answer.len_tokens} tokens{note}"
        to.print(Text(heading, style="bold"), soft_wrap=plain)
        for paragraph in _paragraphs(of.inspection.runs, numbers, plain=plain):
            to.print(paragraph, soft_wrap=plain)


def _answers(asked: Sequence[_Asked]) -> Table:
    table = Table("method", "answer")
    for column in ("TTFT", "Len", "reused", "probed", "computed"):
        table.add_column(column, justify="right")
    for of in asked:
        answer = of.inspection.answer
        options = (f"{name}={value}" for name, value in of.options.items())
        table.add_row(
            Text("\n".join([answer.method, *options])),
            Text(_visible(answer.text)),
            milliseconds(answer.ttft_seconds),
            str(answer.len_tokens),
            *(str(count) for count in of.inspection.tokens.values()),
        )
    return table


_Numbers = dict[tuple[str | None, int | None], tuple[int, str]]


def _numbers(asked: Sequence[_Asked]) -> _Numbers:
    """Number and name of each chunk by document and place: its rank, from 1, or the next one free.

    Methods that retrieve nuggets in one stage rank chunks in an order of their own.
    """
    numbers: _Numbers = {}
    taken: set[int] = set()
    for of in asked:
        for run in of.inspection.runs:
            place = run.document, run.chunk
            if run.chunk_rank is None or place in numbers:
                continue
            number = run.chunk_rank + 1
            while number in taken:
                number += 1
            taken.add(number)
            numbers[place] = number, f"{run.title or ''} ({run.document}, chunk {run.chunk})"
    return numbers


def _legend(numbers: _Numbers, *, plain: bool) -> Iterator[Text]:
    for number, name in sorted(numbers.values()):
        yield Text(f"({number}) {_visible(name)}", style=_colour(number))
    yield Text.assemble(
        "KV reused as stored, ",
        _marked("probed in the first layers", "probed", "", plain=plain),
        ", ",
        _marked("computed in all layers", "computed", "", plain=plain),
        f"; {_LINK} link token,{_GAP}text left out",
    )


def _paragraphs(runs: Sequence[ContextRun], numbers: _Numbers, *, plain: bool) -> Iterator[Text]:
    """The context as a paragraph for the prompt and for each chunk, links at the chunk's end."""
    paragraph = Text()
    before: ContextRun | None = None
    for run in runs:
        if run.source == "links":
            paragraph.append(_marked(_LINK * run.tokens, run.kind, "", plain=plain))
            continue
        number = None if run.source == "prompt" else numbers[run.document, run.chunk][0]
        colour = "dim" if number is None else _colour(number)
        if before is None or (run.source, run.chunk_rank) != (before.source, before.chunk_rank):
            if before is not None:
                yield paragraph
            paragraph = Text.assemble((f"({number or 'prompt'}) ", f"{colour} bold"))
        elif run.start != before.start + before.tokens:
            paragraph.append(_GAP, "dim")
        paragraph.append(_marked(_visible(run.text), run.kind, colour, plain=plain))
        before = run
    yield paragraph


def _marked(text: str, kind: str, colour: str, *, plain: bool) -> Text:
    """A run's text in its style, or in brackets where there is none."""
    left, right = _BRACKETS[kind] if plain and text else ("", "")
    return Text(f"{left}{text}{right}", style=f"{colour} {_STYLES[kind]}".strip())


def _colour(number: int) -> str:
    return _COLOURS[(number - 1) % len(_COLOURS)]


def _visible(text: str) -> str:
    """A text whose control characters cannot command a terminal."""
    return text.translate(_CONTROLS)
