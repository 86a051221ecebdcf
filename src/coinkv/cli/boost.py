"""`coinkv boost`: look after a folder of reusable KV, and verify what reuse does to answers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coinkv.cli import bench_boost
from coinkv.cli import boost_options as boost
from coinkv.cli import options as shared
from coinkv.cli.output import print_json, progress, results, size
from coinkv.cli.verify_table import print_report
from coinkv.config import BOOST_CHUNK_TOKENS, DEFAULT_MODEL
from coinkv.errors import InputError

if TYPE_CHECKING:
    from coinkv.boost.folder import OwnerStats

app = typer.Typer(
    help="KV reuse of any prompt: look after its folder, verify, measure.", no_args_is_help=True
)
app.command("bench")(bench_boost.boost_command)
STRATEGIES = "none,selective,epic,cacheblend,auto"


@app.command("stats")
def stats_command(folder: boost.KeptFolder, json: shared.Json = False) -> None:
    """What a folder of reusable KV holds; loads no model."""
    from coinkv.boost.folder import folder_stats

    facts = folder_stats(folder)
    if json:
        print_json(facts.to_dict())
        return
    results.print(f"{facts.runs} runs, {facts.tokens} tokens, {size(facts.bytes)}", highlight=False)
    for owner in facts.owners:
        results.print(_in_words(owner), highlight=False, markup=False, soft_wrap=True)
    if facts.nameless:
        results.print(f"{facts.nameless} blocks of which nothing is known", highlight=False)


@app.command("warm")
def warm_command(
    files: Annotated[list[Path], typer.Argument(help="Texts to compute and keep.")],
    folder: boost.KeptFolder,
    chat: boost.Chat = False,
    namespace: boost.Namespace = "",
    disk_budget: boost.DiskBudget = None,
    codec: boost.Codec = boost.CodecName.raw,
    boundaries: boost.Boundaries = boost.BoundariesName.content,
    chunk_tokens: boost.ChunkTokens = BOOST_CHUNK_TOKENS,
    model: boost.Model = DEFAULT_MODEL,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    max_context: shared.MaxContext = None,
    threads: shared.Threads = None,
    json: shared.Json = False,
) -> None:
    """Compute the KV of texts and keep it in a folder, for prompts that will hold them."""
    from coinkv.cli.prompts import as_message, text_of

    texts = [as_message(text_of(path)) if chat else text_of(path) for path in files]
    shared.use_threads(threads)
    from coinkv.model.chat import prompt_ids

    backbone = boost.backbone_named(model, device, dtype, max_context)
    for path, text in zip(files, texts, strict=True):
        backbone.require_room(len(prompt_ids(backbone, text)), str(path), hint="shorten it")
    with (
        boost.engine_of(
            backbone,
            folder=folder,
            disk_budget=disk_budget,
            codec=codec,
            boundaries=boundaries,
            chunk_tokens=chunk_tokens,
            namespace=namespace,
        ) as engine,
        progress(quiet=json) as step,
    ):
        reports = []
        for done, text in enumerate(texts, 1):
            reports.append(engine.warm(text))
            step("warming", done, len(texts))
    facts = {
        "files": len(texts),
        "prompt_tokens": sum(each.prompt_tokens for each in reports),
        "kept_tokens": sum(each.kept_tokens for each in reports),
        "seconds": sum(each.seconds for each in reports),
    }
    if json:
        print_json(facts)
    else:
        count, tokens, kept = facts["files"], facts["prompt_tokens"], facts["kept_tokens"]
        said = (
            f"KV of {kept} is new and kept" if kept else "nothing is new, or long enough, to keep"
        )
        results.print(
            f"{count} text{'s' * (count != 1)}, {tokens} tokens: {said} ({facts['seconds']:.1f} s)",
            highlight=False,
        )


@app.command("invalidate")
def invalidate_command(
    folder: boost.KeptFolder,
    file: Annotated[
        list[Path] | None, typer.Option(help="Forget KV of any part of this text; may be repeated.")
    ] = None,
    namespace: boost.Namespace = "",
    codec: boost.Codec = boost.CodecName.raw,
    model: boost.Model = DEFAULT_MODEL,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    threads: shared.Threads = None,
    json: shared.Json = False,
) -> None:
    """Delete KV of a model, codec and namespace from a folder: of some texts, or all of it."""
    from coinkv.boost.folder import require_cache
    from coinkv.cli.prompts import text_of

    require_cache(folder)
    texts = [text_of(path) for path in file or []]
    shared.use_threads(threads)
    backbone = boost.backbone_named(model, device, dtype)
    with boost.engine_of(backbone, folder=folder, codec=codec, namespace=namespace) as engine:
        forgotten = sum(map(engine.invalidate, texts)) if texts else engine.invalidate()
    if json:
        print_json({"forgotten": forgotten})
    else:
        runs = "run is" if forgotten == 1 else "runs are"
        results.print(f"{forgotten} {runs} forgotten", highlight=False)


@app.command("verify")
def verify_command(
    file: Annotated[Path, typer.Argument(help="JSONL rows of prompt or messages, or lines.")],
    limit: Annotated[int | None, typer.Option(help="Only the first so many prompts.")] = None,
    chat: boost.Chat = False,
    answer_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 32,
    strategies: Annotated[
        str, typer.Option(help="Repair strategies, with commas between.")
    ] = STRATEGIES,
    least_top1: Annotated[
        float, typer.Option(help="Share of first tokens that must agree, to be safe.")
    ] = 0.97,
    least_answers: Annotated[
        float, typer.Option(help="Share of answers that must be the same, to be safe.")
    ] = 0.9,
    budget: boost.Budget = boost.DEFAULT_BUDGET,
    codec: boost.Codec = boost.CodecName.raw,
    boundaries: boost.Boundaries = boost.BoundariesName.content,
    chunk_tokens: boost.ChunkTokens = BOOST_CHUNK_TOKENS,
    model: boost.Model = DEFAULT_MODEL,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    max_context: shared.MaxContext = None,
    threads: shared.Threads = None,
    json: shared.Json = False,
) -> None:
    """Answer your prompts with and without reuse; which repair strategy is safe enough?

    Exit code 0 when one is, 1 when none is or nothing could be tested.
    """
    from coinkv.cli.prompts import rows

    shared.require_at_least("limit", limit, 1)
    chosen = _strategies(strategies)
    prompts = rows(file, chat=chat, limit=limit)
    shared.use_threads(threads)
    backbone = boost.backbone_named(model, device, dtype, max_context)
    with (
        boost.engine_of(
            backbone,
            budget=budget,
            codec=codec,
            boundaries=boundaries,
            chunk_tokens=chunk_tokens,
            repair=boost.RepairName.none,
        ) as engine,
        progress(quiet=json) as step,
    ):
        report = engine.verify(
            prompts,
            answer_tokens=answer_tokens,
            strategies=chosen,
            least_top1=least_top1,
            least_answers=least_answers,
            on_progress=step,
        )
    if json:
        print_json(report.to_dict())
    else:
        print_report(report)
    if report.safe is None:
        raise typer.Exit(1)


def _strategies(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in boost.RepairName.__members__]
    if unknown or not names:
        raise InputError(
            f"there is no strategy {(unknown or [text])[0]!r}",
            hint=f"use some of {', '.join(boost.RepairName)}",
        )
    return names


def _in_words(owner: OwnerStats) -> str:
    last = datetime.fromtimestamp(owner.last_used, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"{owner.owner[:12]}: {owner.runs} runs ({owner.exact_runs} exact, {owner.pinned} pinned), "
        f"{owner.tokens} tokens, {size(owner.bytes)}, {owner.hits} hits, last used {last}"
    )
