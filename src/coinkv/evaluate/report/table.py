"""Tables as values: one description that becomes Markdown, HTML or a table of a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """A cell: its text, and whether it is the `best` of its column or the `second`."""

    text: str
    place: Literal["best", "second"] | None = None


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: what it shows.
        groups: heading and width of runs of columns, empty if there are none.
        columns: heading of each column.
        rows: cells of each row.
        texts: how many columns at the left hold text, not numbers.
        note: how to read it, in whole sentences.
    """

    title: str
    groups: tuple[tuple[str, int], ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    texts: int = 1
    note: str = ""

    @property
    def starts(self) -> tuple[int, ...]:
        """The columns that begin a group, the first group left out."""
        widths = [width for _, width in self.groups]
        return tuple(sum(widths[:n]) for n in range(1, len(widths)))


def number(value: float | None, digits: int = 1, factor: float = 1.0) -> Cell:
    """A number with so many digits behind the point, times a factor; a dash for none."""
    return Cell(NOTHING if value is None else f"{value * factor:,.{digits}f}")


def ranked(values: Sequence[float | None], digits: int = 1) -> list[Cell]:
    """Numbers of a column, the highest marked as best and the next as second, as shown."""
    rounded = [None if value is None else round(value, digits) for value in values]
    heights = sorted({value for value in rounded if value is not None}, reverse=True)
    places: dict[float, Literal["best", "second"]] = {}
    if len(heights) > 1:
        places = {heights[0]: "best", heights[1]: "second"}
    return [
        replace(number(value, digits), place=None if value is None else places.get(value))
        for value in rounded
    ]


def to_markdown(table: Table) -> str:
    """The table in Markdown, best bold and second underlined; groups lead their columns' names."""
    headings = [heading for heading, width in table.groups for _ in range(width)]
    headings = headings or [""] * len(table.columns)
    columns = [
        escaped(f"{heading} {column}".strip())
        for heading, column in zip(headings, table.columns, strict=True)
    ]
    dashes = ["---" if column < table.texts else "--:" for column in range(len(columns))]
    lines = [_line(columns), "|" + "|".join(dashes) + "|"]
    lines += [_line([_marked(cell) for cell in row]) for row in table.rows]
    return "\n".join(lines) + "\n"


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _marked(cell: Cell) -> str:
    text = escaped(cell.text)
    if cell.place == "best":
        return f"**{text}**"
    return f"<u>{text}</u>" if cell.place == "second" else text


def escaped(text: str) -> str:
    """Text from the data as Markdown that shows it as it is, on one line."""
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    for mark in "\\`*_[]|#$":
        line = line.replace(mark, f"\\{mark}")
    return line
