"""`coinkv sweep`: many configurations over many sets, resumable, into one results file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coinkv.cli import options as shared
from coinkv.cli.output import console, print_json, progress, results
from coinkv.errors import InputError

if TYPE_CHECKING:
    from coinkv.corpus.extract.base import Extractor
    from coinkv.evaluate.configuration import Configuration
    from coinkv.evaluate.grid import Axes


class ExtractorName(StrEnum):
    """What proposes nuggets when an index has to be built."""

    sentences = "sentences"
    windows = "windows"


def sweep_command(
    sets: Annotated[list[str], typer.Argument(help="JSONL files or hub sets with passages.")],
    folder: Annotated[Path, typer.Option(help="Where the sets' indexes are, or are built.")],
    to: Annotated[Path, typer.Option(help="The results file; goes on where it ends.")],
    half: Annotated[str, typer.Option(help="dev, test or all of the questions.")] = "dev",
    methods: Annotated[str, typer.Option(help="Methods, with commas between, or all.")] = "all",
    grid: Annotated[
        str, typer.Option(help="small, paper, or a JSON file of configurations.")
    ] = "small",
    k_chunks: Annotated[str | None, typer.Option(help="Values instead of the grid's.")] = None,
    k_nuggets: Annotated[str | None, typer.Option(help="Values instead of the grid's.")] = None,
    ratios: Annotated[str | None, typer.Option(help="Values instead of the grid's.")] = None,
    chosen_from: Annotated[
        list[Path] | None,
        typer.Option(help="Results of a dev half: run what is best within the budgets there."),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(help="With --chosen-from: 100ms, 1x (times standard_rag at k_c = 1), none."),
    ] = None,
    limit: shared.Limit = None,
    timed_queries: Annotated[
        int, typer.Option(help="Queries timed of each configuration, besides the answers.")
    ] = 0,
    slow_queries: Annotated[
        int, typer.Option(help="The same where the median is above half a second.")
    ] = 200,
    answer_tokens: shared.AnswerTokens = 32,
    answer_lead: shared.ScoredLead = None,
    batch: shared.Batch = 8,
    label: Annotated[
        str | None, typer.Option(help="Label of the index. Default: the extractor's name.")
    ] = None,
    extractor: Annotated[
        ExtractorName, typer.Option(help="What proposes nuggets, where an index is built.")
    ] = ExtractorName.sentences,
    seed: shared.OrderSeed = 0,
    adapter: shared.Adapter = None,
    adapter_scope: shared.AdapterScopeName = None,
    model: shared.Model = None,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    threads: shared.Threads = None,
    json: shared.Json = False,
) -> None:
    """Run every configuration on every set; each finished run is a line of the results file.

    A sweep that was stopped goes on when the same command is run again. Answers and timing are runs
    of their own: answer on a busy machine, then time on a quiet one with --timed-queries.
    """
    shared.use_threads(threads)
    from coinkv.evaluate.budget import Budget
    from coinkv.evaluate.dataset import read_set
    from coinkv.evaluate.grid import chosen
    from coinkv.evaluate.ledger import Ledger
    from coinkv.evaluate.results import read_results
    from coinkv.evaluate.run import Asking
    from coinkv.evaluate.sweep import Sweep
    from coinkv.rag.build import BuildOptions

    read = [read_set(name) for name in sets]
    named = label or extractor.value
    asking = Asking(
        answer_tokens,
        shared.lead_for(answer_lead, adapter),
        batch,
        adapter,
        shared.scope_named(adapter_scope),
        seed,
    )
    values = (k_chunks, k_nuggets, ratios)
    if chosen_from:
        if half == "dev":
            raise InputError(
                "what was chosen on the dev half is to be run on the other",
                hint="add --half test",
            )
        if grid != "small" or methods != "all" or any(values):
            raise InputError(
                "--chosen-from names methods and values by itself",
                hint="leave out --grid, --methods, --k-chunks, --k-nuggets and --ratios",
            )
        budgets = [Budget.parse(text) for text in budget or ("1x", "none")]
        found = read_results(chosen_from).results
        plan = {
            each.name: chosen(found, each.name, budgets, named, asking.adapter_name)
            for each in read
        }
    else:
        if budget:
            raise InputError("--budget chooses among results", hint="add --chosen-from FILE")
        configurations = _configurations(grid, methods, values, named, asking.adapter_name)
        plan = {each.name: configurations for each in read}
    sweep = Sweep(
        folder,
        Ledger(to),
        half=shared.half_named(half),
        limit=limit,
        timed_queries=timed_queries,
        slow_queries=slow_queries,
        index=named,
        build=BuildOptions(
            model=model, extractor=_extractor(extractor), device=device, dtype=dtype
        ),
        asking=asking,
    )
    with progress(quiet=json) as step:
        facts = sweep.run(read, plan, step)
    for line in facts["left_out"]:
        console.print(f"left out: {line}", highlight=False, soft_wrap=True)
    if not (facts["answered"] or facts["timed"] or facts["kept"]):
        raise InputError("no configuration could be run", hint="see what was left out and why")
    if json:
        print_json({**facts, "results": str(to)})
    else:
        _print(facts, to)


def _configurations(
    grid_name: str,
    methods: str,
    values: tuple[str | None, str | None, str | None],
    index: str,
    adapter: str | None,
) -> list[Configuration]:
    from coinkv.evaluate.grid import GRIDS, grid, method_list, read_grid

    if grid_name not in GRIDS:
        if any(values) or methods != "all":
            raise InputError(
                "a grid file names its own methods and values",
                hint="leave out --methods, --k-chunks, --k-nuggets and --ratios",
            )
        return read_grid(Path(grid_name), index, adapter)
    return grid(method_list(methods), _axes(GRIDS[grid_name], values), index, adapter)


def _axes(axes: Axes, values: tuple[str | None, str | None, str | None]) -> Axes:
    from dataclasses import replace

    k_chunks, k_nuggets, ratios = values
    if k_chunks is not None:
        axes = replace(axes, k_chunks=_numbers("k-chunks", k_chunks, int))
    if k_nuggets is not None:
        axes = replace(axes, k_nuggets=_numbers("k-nuggets", k_nuggets, int))
    if ratios is not None:
        axes = replace(axes, ratios=_numbers("ratios", ratios, float))
    return axes


def _numbers(name: str, text: str, kind: type) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(
            f"--{name} is {text!r}", hint="give numbers with commas between"
        ) from error


def _extractor(name: ExtractorName) -> Extractor | None:
    if name is ExtractorName.sentences:
        return None
    from coinkv.corpus.extract.windows import WindowExtractor

    return WindowExtractor()


def _print(facts: dict[str, Any], to: Path) -> None:
    results.print(
        f"{facts['answered']} runs answered, {facts['timed']} timing rounds, "
        f"{facts['kept']} runs kept from before: {to}",
        soft_wrap=True,
    )
    results.print(f"next: coinkv report {to} --out DIR", soft_wrap=True)
