"""`coinkv eval`: one configuration asked a file of questions, scored and timed."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from coinkv.cli import options as shared
from coinkv.cli.output import print_json, progress, results, size
from coinkv.errors import InputError

if TYPE_CHECKING:
    from coinkv.evaluate.configuration import Configuration
    from coinkv.evaluate.run import Asking
    from coinkv.rag.index import Index


def eval_command(
    index: shared.IndexFolder,
    questions: Annotated[str, typer.Option(help="JSONL file or hub set with answers.")],
    method: shared.MethodName = "coinrag",
    option: shared.MethodOptions = None,
    k_chunks: shared.KChunks = None,
    k_nuggets: shared.KNuggets = None,
    half: Annotated[str, typer.Option(help="dev, test or all of the questions.")] = "all",
    limit: shared.Limit = None,
    timed_queries: Annotated[
        int, typer.Option(help="Time so many queries; 0 times each question once.")
    ] = 0,
    answer_tokens: shared.AnswerTokens = 32,
    answer_lead: shared.ScoredLead = None,
    batch: shared.Batch = 8,
    per_question: Annotated[
        Path | None, typer.Option(help="Write a JSON line a question to this file.")
    ] = None,
    seed: shared.OrderSeed = 0,
    adapter: shared.Adapter = None,
    adapter_scope: shared.AdapterScopeName = None,
    model: shared.Model = None,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    threads: shared.Threads = None,
    json: shared.Json = False,
) -> None:
    """Answer the questions by one method: F1, exact match, time to first token, recall of evidence.

    F1 is LongBench's. Nothing is written but what `--per-question` names.
    """
    shared.use_threads(threads)
    from coinkv.evaluate.configuration import Configuration
    from coinkv.evaluate.dataset import half as half_of
    from coinkv.evaluate.dataset import read_set, require_answers
    from coinkv.evaluate.run import Asking, run
    from coinkv.methods.registry import method_named, options_of
    from coinkv.rag.ask import CoinRAG
    from coinkv.rag.index import Index

    shared.require_at_least("limit", limit, 1)
    shared.require_at_least("timed_queries", timed_queries, 0)
    if per_question is not None:
        _require_writable(per_question)
    eval_set = half_of(read_set(questions), shared.half_named(half))
    require_answers(eval_set)
    chosen = method_named(method, shared.method_options(option))
    asking = Asking(
        answer_tokens,
        shared.lead_for(answer_lead, adapter),
        batch,
        adapter,
        shared.scope_named(adapter_scope),
        seed,
    )
    opened = Index.open(index, model=model, device=device, dtype=dtype)
    asker = CoinRAG(opened, method=chosen, k_chunks=k_chunks, k_nuggets=k_nuggets)
    configuration = Configuration(
        method,
        asker.k_chunks,
        asker.k_nuggets if chosen.unit == "nugget" else None,
        tuple(options_of(chosen).items()),
        index.resolve().name,
        asking.adapter_name,
    )
    rows = eval_set.rows[:limit]
    with progress(quiet=json) as step:
        facts = run(
            opened, rows, configuration, asking, lambda done, of: step("answering", done, of)
        )
        if timed_queries:
            asked = [row.question for row in rows]
            facts |= _timed(opened, asked, configuration, asking, timed_queries, step)
    answered = facts.pop("per_question")
    if json:
        print_json(facts)
    else:
        _print(facts)
    if per_question is not None:
        _write(per_question, answered)


def _timed(
    index: Index,
    questions: list[str],
    configuration: Configuration,
    asking: Asking,
    queries: int,
    step: Callable[[str, int, int], None],
) -> dict[str, Any]:
    """TTFT and its stages over so many queries, in rounds of all questions."""
    from coinkv.evaluate.provenance import spread_ms
    from coinkv.evaluate.timing import timing_round

    askers = {configuration: asking.asker(index, configuration)}
    times: list[float] = []
    stages: list[dict[str, float]] = []
    while len(times) < queries:
        step("timing", len(times), queries)
        (row,) = timing_round(askers, questions, len(stages), asking.seed)
        times += row["ttft_ms"]
        stages.append(row["stages_ms"])
    return {
        "ttft_ms": spread_ms([milliseconds / 1000 for milliseconds in times]),
        "timed_queries": len(times),
        "stages_ms": {
            stage: sum(each[stage] for each in stages) / len(stages) for stage in stages[0]
        },
    }


def _require_writable(path: Path) -> None:
    """Find out before any work whether a file can be written; leaves what is there as it is."""
    try:
        was_there = path.exists()
        path.open("ab").close()
        if not was_there:
            path.unlink()
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror or error})",
            where=path,
            hint="name a file in a folder that is there",
        ) from error


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(jsonlib.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _print(facts: dict[str, Any]) -> None:
    table = Table("measure", "value", title=f"{facts['method']}, {facts['questions']} questions")
    for name in ("f1", "exact_match"):
        table.add_row(name, f"{facts[name]:.1f}")
    for name in ("evidence_recall", "answer_recall"):
        if facts[name] is not None:
            table.add_row(name, f"{facts[name]:.2f}")
    for name, value in facts["ttft_ms"].items():
        table.add_row(f"TTFT {name}", f"{value:.0f} ms")
    table.add_row("Len", f"{facts['len_tokens']:.0f} tokens")
    table.add_row("KV of the context", size(facts["kv_bytes"]))
    table.add_row("layer-tokens computed", f"{facts['layer_tokens']:,.0f}")
    table.add_row("prefill", f"{facts['flops'] / 1e9:.1f} GFLOP")
    if facts["decode_tokens_per_second"]:
        table.add_row("decoding, alone", f"{facts['decode_tokens_per_second']:.1f} tokens/s")
    results.print(table)
    if "note" in facts:
        results.print(f"note: {facts['note']}")
