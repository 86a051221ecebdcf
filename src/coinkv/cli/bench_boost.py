"""`coinkv bench boost`: KVBoost against recomputation, prefix reuse and peers."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.table import Table

from coinkv.cli import options as shared
from coinkv.cli.output import milliseconds, print_json, progress, results, size
from coinkv.config import DEFAULT_MODEL
from coinkv.errors import InputError

if TYPE_CHECKING:
    from coinkv.evaluate.boost.layouts import Layout


_HEADINGS = (
    *("system", "first", "later", "F1", "right", "top-1", "same"),
    *("exact", "moved", "repaired", "computed", "memory"),
)


def boost_command(
    data: Annotated[str, typer.Option(help="JSONL file or hub set: questions that share a text.")],
    layouts: Annotated[
        str, typer.Option(help="Where the text stands: layouts with commas between, or all.")
    ] = "all",
    systems: Annotated[
        str, typer.Option(help="Systems with commas between, or all; a wrong name lists them.")
    ] = "all",
    peer: Annotated[
        list[str] | None,
        typer.Option(help="A peer's environment as NAME=PYTHON; may be repeated."),
    ] = None,
    documents: Annotated[
        int | None, typer.Option(help="Only so many texts, short and long ones.")
    ] = None,
    max_document_tokens: Annotated[
        int | None, typer.Option(help="Leave out longer texts. Default: two fit into a prompt.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 16,
    answer_lead: shared.AnswerLead = "The answer is: `",
    chunk_tokens: Annotated[
        int | None, typer.Option(help="Tokens of coinkv's chunks, about. Default: KVBoost's.")
    ] = None,
    codec: Annotated[str, typer.Option(help="How coinkv stores KV: raw, int8 or kivi.")] = "raw",
    boundaries: Annotated[
        str, typer.Option(help="How coinkv cuts chunks: content, fixed or adaptive.")
    ] = "content",
    budget_bytes: Annotated[
        int, typer.Option(help="Most bytes of KV that each system may keep.")
    ] = 1_500_000_000,
    seed: Annotated[int, typer.Option(help="Seed of texts, preambles and orders.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write every answer to this file; goes on where it ends.")
    ] = None,
    model: shared.Model = None,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    threads: shared.Threads = None,
    json: shared.Json = False,
) -> None:
    """Time to first token, answers, reuse and memory of KVBoost, its rivals and no reuse at all.

    Every system runs in a process of its own and is timed by one clock, from sending a prompt to
    the news of its first token.
    """
    shared.use_threads(threads)
    for name, number in (
        ("documents", documents),
        ("max_document_tokens", max_document_tokens),
        ("max_new_tokens", max_new_tokens),
        ("budget_bytes", budget_bytes),
    ):
        shared.require_at_least(name, number, 1)
    from coinkv.evaluate.boost.prompts import prompt_model
    from coinkv.evaluate.boost.run import BoostBench
    from coinkv.evaluate.boost.systems import SYSTEMS, Conditions, peer_interpreters, systems_named
    from coinkv.evaluate.dataset import read_set
    from coinkv.evaluate.provenance import versions

    chosen = systems_named(list(SYSTEMS) if systems == "all" else _names(systems))
    peers = peer_interpreters(peer or [])
    places = _layouts(layouts)
    asked = read_set(data)
    known = prompt_model(model or DEFAULT_MODEL, device=device, dtype=dtype)
    conditions = Conditions(
        known, threads or _usual_threads(), budget_bytes, chunk_tokens, codec, boundaries
    )
    bench = BoostBench(
        conditions,
        chosen,
        peers,
        places,
        documents,
        max_document_tokens,
        max_new_tokens,
        answer_lead,
        seed,
        out,
    )
    with progress(quiet=json) as step:
        facts = bench.run(asked, step)
    facts["command"] = shlex.join(["coinkv", *sys.argv[1:]])
    facts["versions"] = {**versions(), "threads": conditions.threads}
    facts["cpus"] = os.cpu_count()
    if json:
        print_json(facts)
    else:
        _print(facts)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _layouts(text: str) -> tuple[Layout, ...]:
    from coinkv.evaluate.boost.layouts import LAYOUTS

    names = list(LAYOUTS) if text == "all" else _names(text)
    unknown = [name for name in names if name not in LAYOUTS]
    if unknown or not names:
        raise InputError(
            f"there is no layout {(unknown or [text])[0]!r}",
            hint=f"use some of {', '.join(LAYOUTS)}",
        )
    return cast("tuple[Layout, ...]", tuple(dict.fromkeys(names)))


def _usual_threads() -> int:
    import torch

    return torch.get_num_threads()


def _print(facts: dict[str, Any]) -> None:
    for layout, measured in facts["layouts"].items():
        table = Table(title=f"{layout}, {facts['documents']} texts", title_justify="left")
        for heading in _HEADINGS:
            table.add_column(heading, overflow="fold")
        notes = []
        for name, its_facts in measured["systems"].items():
            if "questions" in its_facts:
                table.add_row(name, *_cells(its_facts))
            for state in ("skipped", "failed"):
                if state in its_facts:
                    notes.append(f"{name} {state}: {its_facts[state]}")
        results.print(table)
        for note in notes:
            results.print(note, highlight=False, soft_wrap=True)
        for name, ratio in facts["ratios"][layout].items():
            if ratio is not None and not name.endswith("_median"):
                median = facts["ratios"][layout][f"{name}_median"]
                results.print(f"{name}: {ratio:.2f} (median {median:.2f})")


def _cells(facts: dict[str, Any]) -> list[str]:
    first, later, reuse = facts["ttft_first_ms"], facts["ttft_later_ms"], facts["reuse"]
    agreements = (facts[f"{name}_agreement"] for name in ("top1", "answer"))
    return [
        milliseconds(first["mean"] / 1000) if first else "",
        milliseconds(later["mean"] / 1000) if later else "",
        f"{facts['f1']:.1f}",
        f"{facts['accuracy']:.0f} %",
        *("" if share is None else f"{100 * share:.0f} %" for share in agreements),
        *(f"{100 * share:.0f} %" for share in (reuse.values() if reuse else ())),
        *([] if reuse else [""] * 4),
        size(facts["peak_bytes"]),
    ]
