"""A part of a report made ready to show: its tables, its drawn figures, what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coinkv.evaluate.report.charts import Chart, charts_of
from coinkv.evaluate.report.figures import drawn
from coinkv.evaluate.report.notes import notes
from coinkv.evaluate.report.part import Part
from coinkv.evaluate.report.table import Table
from coinkv.evaluate.report.tables import ablation_table, all_measures, table_3


@dataclass(frozen=True)
class Picture:
    """A drawn chart.

    Attributes:
        name: of its files, without suffix; no two of a report have the same.
        chart: what is drawn.
        svg: the drawing.
        png: the drawing.
    """

    name: str
    chart: Chart
    svg: bytes
    png: bytes


@dataclass(frozen=True)
class Section:
    """What a report shows of one backbone.

    Attributes:
        part: the numbers.
        tables: the paper's table 3, one a budget.
        pictures: the figures.
        further_tables: all measures of what was chosen; ablations, if there are any.
        everything: all measures of all results.
        missing: what is missing, not within budget or not quite comparable.
    """

    part: Part
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    further_tables: tuple[Table, ...]
    everything: Table
    missing: tuple[str, ...]


def sections_of(parts: Sequence[Part]) -> tuple[Section, ...]:
    """The sections of a report, figures drawn.

    Raises:
        InputError: matplotlib is not installed.
    """
    return tuple(
        _section(part, f"{number}-" if len(parts) > 1 else "")
        for number, part in enumerate(parts, 1)
    )


def _section(part: Part, prefix: str) -> Section:
    pictures = []
    for chart in charts_of(part):
        files = drawn(chart)
        pictures.append(Picture(prefix + chart.name, chart, files["svg"], files["png"]))
    further = [all_measures("Every measure of what was chosen", part.chosen)] if part.chosen else []
    further += [ablation_table(part.ablations)] if part.ablations else []
    return Section(
        part=part,
        tables=tuple(table_3(block) for block in part.blocks),
        pictures=tuple(pictures),
        further_tables=tuple(further),
        everything=all_measures("Everything that was run", part.results),
        missing=notes(part),
    )
