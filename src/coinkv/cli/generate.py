"""`coinkv generate`: continue a prompt, computing only what was never computed before."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from coinkv.cli import boost_options as boost
from coinkv.cli import options as shared
from coinkv.cli.output import console, milliseconds, print_json, results
from coinkv.config import BOOST_CHUNK_TOKENS, DEFAULT_MODEL

if TYPE_CHECKING:
    from coinkv.boost.engine import KVBoost
    from coinkv.boost.result import BoostResult, PlanSummary, ReuseSplit
    from coinkv.cli.prompts import Messages
    from coinkv.model.decode import Sampling


def generate_command(
    prompt: Annotated[
        str | None,
        typer.Argument(help="A text, or - for standard input, which is also read for no prompt."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(help="A text before PROMPT, or - for standard input; may be repeated."),
    ] = None,
    messages: Annotated[
        Path | None, typer.Option(help="JSON file: the chat so far, a list of role and content.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message; implies --chat.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Make the text a user's message, not to be continued.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens of the text.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text.")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what would be reused, and generate nothing.")
    ] = False,
    folder: boost.Folder = None,
    namespace: boost.Namespace = "",
    budget: boost.Budget = boost.DEFAULT_BUDGET,
    disk_budget: boost.DiskBudget = None,
    codec: boost.Codec = boost.CodecName.raw,
    reuse: Annotated[
        boost.ReuseName, typer.Option(help="What may be reused.")
    ] = boost.ReuseName.all,
    repair: boost.Repair = boost.RepairName.auto,
    boundaries: boost.Boundaries = boost.BoundariesName.content,
    chunk_tokens: boost.ChunkTokens = BOOST_CHUNK_TOKENS,
    model: boost.Model = DEFAULT_MODEL,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    max_context: shared.MaxContext = None,
    threads: shared.Threads = None,
    json: shared.Json = False,
) -> None:
    """Continue a prompt, or answer a chat, reusing all KV that the folder holds of its text."""
    from coinkv.cli.prompts import asked as asked_for

    boost.require_folder_for(disk_budget, folder)
    asked = asked_for(prompt, file or [], messages, system, chat=chat)
    shared.use_threads(threads)
    from coinkv.model.chat import prompt_ids
    from coinkv.model.decode import Sampling

    sampling = Sampling(max_new_tokens, temperature, top_p, tuple(stop or ()), seed)
    backbone = boost.backbone_named(model, device, dtype, max_context)
    # neither a prompt that cannot be used nor a plan makes a folder
    backbone.require_room(len(prompt_ids(backbone, asked)), "the prompt", hint="shorten it")
    if plan and folder is not None and not folder.exists():
        folder = disk_budget = None
    with boost.engine_of(
        backbone,
        budget=budget,
        folder=folder,
        disk_budget=disk_budget,
        codec=codec,
        boundaries=boundaries,
        chunk_tokens=chunk_tokens,
        repair=repair,
        namespace=namespace,
    ) as engine:
        if plan:
            _plan(engine, asked, reuse, json=json)
        else:
            _generate(engine, asked, sampling, reuse, json=json)


def split_in_words(split: ReuseSplit) -> str:
    """Where the KV of a prompt came from."""
    return (
        f"{split.exact} exact, {split.moved} moved, {split.repaired} repaired, "
        f"{split.computed} computed"
    )


def _generate(
    engine: KVBoost,
    asked: str | Messages,
    sampling: Sampling,
    reuse: boost.ReuseName,
    *,
    json: bool,
) -> None:
    # an interrupted text keeps its KV, too, before the engine is closed
    with closing(engine.stream(asked, sampling=sampling, reuse=reuse.value)) as stream:
        for text in stream:
            if not json:
                sys.stdout.write(text)
                sys.stdout.flush()
    if json:
        print_json(stream.result.to_dict())
        return
    sys.stdout.write("\n")
    sys.stdout.flush()
    _print_timing(stream.result)


def _print_timing(result: BoostResult) -> None:
    stages = ", ".join(
        f"{stage} {milliseconds(seconds)}" for stage, seconds in result.stages_seconds.items()
    )
    by = f" (repair {result.repair})" if result.reuse.moved + result.reuse.repaired else ""
    console.print(
        f"first token after {milliseconds(result.ttft_seconds)} ({stages}); "
        f"{result.prompt_tokens} tokens: {split_in_words(result.reuse)}{by}",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )


def _plan(engine: KVBoost, asked: str | Messages, reuse: boost.ReuseName, *, json: bool) -> None:
    from dataclasses import asdict

    from coinkv.model.chat import prompt_ids

    summary = engine.plan(asked, reuse=reuse.value)
    if json:
        print_json(asdict(summary))
        return
    ids = prompt_ids(engine.backbone, asked)
    texts = [engine.backbone.detokenize(list(ids[start:end])) for start, end, _ in summary.spans]
    _print_plan(summary, texts)


def _print_plan(summary: PlanSummary, texts: list[str]) -> None:
    table = Table("tokens", "KV", "text")
    for (start, end, kind), text in zip(summary.spans, texts, strict=True):
        line = " ".join(text.split())
        table.add_row(f"{start} to {end}", kind, line if len(line) <= 50 else f"{line[:49]}…")
    results.print(table)
    results.print(
        f"{summary.prompt_tokens} tokens: {summary.exact} exact, {summary.moved} moved "
        f"(repair {summary.repair}, at most {summary.repaired} of them), "
        f"{summary.computed} computed",
        highlight=False,
        soft_wrap=True,
    )
