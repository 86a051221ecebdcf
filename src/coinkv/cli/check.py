"""`coinkv check`: what the gate measures on a model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from coinkv.cli import options as shared
from coinkv.cli.output import print_json, results
from coinkv.config import DEFAULT_MODEL
from coinkv.errors import UnsupportedModelError

if TYPE_CHECKING:
    from coinkv.model.gate import Rung


def check_command(
    model: Annotated[str, typer.Argument(help="Hub name or folder.")] = DEFAULT_MODEL,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    max_context: shared.MaxContext = None,
    threads: shared.Threads = None,
    json: shared.Json = False,
) -> None:
    """Measure whether a model's KV can be moved exactly; exit code 2 when it cannot."""
    shared.use_threads(threads)
    from coinkv.model.load import measured

    try:
        _, report = measured(model, device=device, dtype=dtype, max_context=max_context, again=True)
    except UnsupportedModelError as error:
        if json:
            print_json({"model": model, "passed": False, "reason": error.what, "rungs": []})
        raise
    if json:
        rungs = [_facts(rung) for rung in report.rungs]
        print_json(
            {
                "model": model,
                "passed": report.passed,
                "reason": report.reason,
                "fingerprint": report.fingerprint,
                "context_length": report.context_length,
                "rungs": rungs,
            }
        )
    else:
        table = Table("measured", "largest difference", "relative", "allowed", "")
        for rung in report.rungs:
            table.add_row(
                rung.name,
                f"{rung.largest_difference:.1e}",
                f"{rung.relative_difference:.1e}",
                f"{rung.tolerance:g}",
                "[green]ok[/]" if rung.passed else "[red]fails[/]",
            )
        results.print(table)
        verdict = "its KV can be moved" if report.passed else "refused"
        results.print(
            f"{model}: {verdict}, up to {report.context_length} tokens of context",
            markup=False,
            soft_wrap=True,
        )
    if not report.passed:
        raise UnsupportedModelError(report.reason, where=model, hint=report.hint)


def _facts(rung: Rung) -> dict[str, Any]:
    """A rung as JSON, which knows neither infinity nor "not a number"."""
    facts = {**vars(rung), "passed": rung.passed}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in facts.items()
    }
