"""`coinkv report`: tables, figures and a page over the results of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from coinkv.cli import options as shared
from coinkv.cli.output import console, print_json, results

if TYPE_CHECKING:
    from coinkv.evaluate.report import table as shown
    from coinkv.evaluate.report.section import Section

_STYLES = {"best": "bold", "second": "underline", None: ""}


def report_command(
    files: Annotated[list[Path], typer.Argument(help="Files that coinkv sweep wrote.")],
    out: Annotated[Path, typer.Option(help="Folder of the report.")],
    budget: Annotated[
        list[str] | None,
        typer.Option(
            help="Limit to P99 TTFT: 100ms, a multiple of standard_rag's at k_c = 1 (1x), or none. "
            "May be repeated. Default: 1x and none."
        ),
    ] = None,
    json: shared.Json = False,
) -> None:
    """Report on a sweep: the best of each method within a budget, figures, significance."""
    from coinkv.evaluate.budget import Budget
    from coinkv.evaluate.report.write import DEFAULT_BUDGETS, write_report

    budgets = [Budget.parse(text) for text in budget] if budget else DEFAULT_BUDGETS
    report = write_report(files, out, budgets)
    if json:
        print_json(report.facts)
        return
    for section in report.sections:
        _print(section)
    for warning in report.warnings:
        console.print(warning, style="dim", markup=False, highlight=False, soft_wrap=True)
    missing = sum(len(section.missing) for section in report.sections)
    notes = "1 note" if missing == 1 else f"{missing} notes"
    results.print(
        f"{report.page}: figures, all measures, {notes} on what is missing or over budget",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _print(section: Section) -> None:
    from coinkv.evaluate.report.measured import in_words

    results.print(section.part.title, style="bold", markup=False, highlight=False)
    for block, table in zip(section.part.blocks, section.tables, strict=True):
        for of_set in _by_group(table):
            results.print(of_set)
        for comparison in block.comparisons:
            results.print(in_words(comparison), markup=False, highlight=False)


def _by_group(table: shown.Table) -> list[Table]:
    """A terminal is narrow: one table for each group of columns, the methods in all of them."""
    bounds = [*table.starts, len(table.columns)]
    tables = []
    for (heading, _), start, end in zip(table.groups[1:], bounds[:-1], bounds[1:], strict=True):
        of_group = Table(title=escape(f"{heading}: {table.title}"), title_justify="left")
        for column in (0, *range(start, end)):
            of_group.add_column(
                escape(table.columns[column]), justify="left" if column < table.texts else "right"
            )
        for row in table.rows:
            cells = (row[0], *row[start:end])
            of_group.add_row(*(Text(cell.text, style=_STYLES[cell.place]) for cell in cells))
        tables.append(of_group)
    return tables
