"""The report as one Markdown file, its figures as links."""

from __future__ import annotations

from collections.abc import Sequence

from coinkv.evaluate.report.measured import in_words, measured
from coinkv.evaluate.report.section import Section
from coinkv.evaluate.report.table import Table, escaped, to_markdown


def to_report(sections: Sequence[Section], warnings: Sequence[str]) -> str:
    """The text of `report.md`.

    Args:
        sections: one for each backbone.
        warnings: about the results files.
    """
    blocks = ["# Report of a sweep"]
    blocks += [_bullets(warnings)] if warnings else []
    for section in sections:
        blocks += _section(section)
    return "\n\n".join(block.strip() for block in blocks) + "\n"


def _section(section: Section) -> list[str]:
    part = section.part
    facts = [f"**{name}**: {escaped('; '.join(texts))}" for name, texts in measured(part) if texts]
    blocks = [f"## {escaped(part.title)}", _bullets(facts, raw=True)]
    for block, table in zip(part.blocks, section.tables, strict=True):
        blocks += [f"### {escaped(table.title)}", *_table(table)]
        blocks.append(_bullets([in_words(comparison) for comparison in block.comparisons]))
    for picture in section.pictures:
        chart = picture.chart
        blocks += [
            f"### {escaped(chart.title)}",
            f"![{escaped(chart.title)}](figures/{picture.name}.svg)",
            escaped(chart.caption),
        ]
    for table in section.further_tables:
        blocks += [f"### {escaped(table.title)}", *_table(table)]
    missing = _bullets(section.missing) or "Nothing."
    return [*blocks, "### Missing, not within budget, not quite comparable", missing]


def _table(table: Table) -> list[str]:
    return [to_markdown(table), escaped(table.note)]


def _bullets(lines: Sequence[str], *, raw: bool = False) -> str:
    return "\n".join(f"- {line if raw else escaped(line)}" for line in lines)
