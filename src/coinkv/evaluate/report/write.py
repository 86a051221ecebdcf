"""From results files to a folder with the report: page, Markdown, figures and numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coinkv import __version__
from coinkv.errors import InputError
from coinkv.evaluate.budget import Budget
from coinkv.evaluate.report.facts import facts_of
from coinkv.evaluate.report.markdown import to_report
from coinkv.evaluate.report.page import to_page
from coinkv.evaluate.report.part import parts_of
from coinkv.evaluate.report.section import Section, sections_of
from coinkv.evaluate.results import read_results

DEFAULT_BUDGETS = (Budget(multiple=1), Budget())


@dataclass(frozen=True)
class Report:
    """A written report.

    Attributes:
        page: the HTML page.
        sections: what it shows, one for each backbone.
        warnings: what was left out of the results files.
        facts: the object in `report.json`.
    """

    page: Path
    sections: tuple[Section, ...]
    warnings: tuple[str, ...]
    facts: dict[str, Any]


def write_report(
    results: Sequence[Path], out: Path, budgets: Sequence[Budget] = DEFAULT_BUDGETS
) -> Report:
    """Write `report.html`, `report.md`, `report.json` and `figures/*.svg, *.png`.

    Args:
        results: files that `coinkv sweep` wrote.
        out: a folder, made if it is not there; its files of these names are replaced.
        budgets: a table for each.

    Raises:
        InputError: the results cannot be read, or matplotlib or jinja2 is not installed.
        InputError: the folder cannot be made.
        OSError: it cannot be written.
    """
    read = read_results(results)
    sections = sections_of(parts_of(read.results, tuple(dict.fromkeys(budgets))))
    facts = {
        "coinkv": __version__,
        "sources": [path.name for path in results],
        "warnings": list(read.warnings),
        "parts": [
            facts_of(section.part, [picture.chart for picture in section.pictures])
            for section in sections
        ],
    }
    page = to_page(sections, read.warnings)
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError("this is a file", where=out, hint="name a folder") from error
    for section in sections:
        for picture in section.pictures:
            (out / "figures" / f"{picture.name}.svg").write_bytes(picture.svg)
            (out / "figures" / f"{picture.name}.png").write_bytes(picture.png)
    (out / "report.md").write_text(to_report(sections, read.warnings), encoding="utf-8")
    text = json.dumps(facts, ensure_ascii=False, allow_nan=False, indent=1)
    (out / "report.json").write_text(text + "\n", encoding="utf-8")
    (out / "report.html").write_text(page, encoding="utf-8")
    return Report(out / "report.html", sections, read.warnings, facts)
