"""`coinkv index`: look at an index, check it, take documents out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coinkv.cli import options as shared
from coinkv.cli.output import counted, print_json, progress, results, size

app = typer.Typer(help="Look at an index, check it, take documents out.", no_args_is_help=True)


@app.command("stats")
def stats_command(index: shared.IndexFolder, json: shared.Json = False) -> None:
    """What an index holds."""
    from coinkv.rag.stats import stats

    facts = stats(index)
    if json:
        print_json(facts)
        return
    results.print(
        f"{counted(facts['documents'], 'document')}, "
        f"{counted(facts['chunks'], 'distinct chunk')}, {counted(facts['tokens'], 'token')}"
    )
    nuggets = facts["nuggets"]
    results.print(
        f"nuggets: {nuggets['exact']} exact, {nuggets['fuzzy']} fuzzy, "
        f"{nuggets['abandoned']} abandoned; they cover {nuggets['coverage']:.0%} of the text"
    )
    results.print(
        f"{size(facts['kv_bytes'])} of KV in {counted(facts['blocks'], 'block')}, "
        f"codec {facts['settings']['codec']}"
    )
    made_with = f"model {facts['settings']['model']}, embedder {facts['settings']['embedder']}"
    for line in (made_with, *(f"  {name}" for name in facts["document_keys"])):
        results.print(line, highlight=False, markup=False, soft_wrap=True)


@app.command("verify")
def verify_command(
    index: shared.IndexFolder,
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove damaged blocks; the next build makes them.")
    ] = False,
    json: shared.Json = False,
) -> None:
    """Read every byte of an index and check it; exit code 1 when something is wrong."""
    from coinkv.rag.verify import verify

    with progress(quiet=json) as step:
        report = verify(
            index, lambda done, total: step("checking blocks", done, total), repair=repair
        )
    if json:
        print_json(report.to_dict())
    else:
        for problem in report.problems:
            results.print(problem, markup=False, highlight=False, soft_wrap=True)
        verdict = "clean" if report.clean else f"{len(report.problems)} problems"
        results.print(f"{counted(report.blocks, 'block')} checked: {verdict}")
        if report.removed:
            results.print(f"removed {report.removed} damaged blocks: build again to encode them")
    if not report.clean:
        raise typer.Exit(1)


@app.command("remove")
def remove_command(
    documents: Annotated[list[str], typer.Argument(help="Names as `index stats` prints them.")],
    index: shared.IndexFolder,
    json: shared.Json = False,
) -> None:
    """Take documents out of an index; nothing is encoded again."""
    from coinkv.rag.remove import remove

    left = remove(Path(index), documents)
    if json:
        print_json({"removed": documents, "documents": left})
    else:
        results.print(f"removed {len(documents)}, documents left: {left}")
