"""Rows of JSON Lines files of results: read past a cut last line, their fields checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coinkv.errors import InputError


@dataclass(frozen=True)
class Row:
    """One JSON object with where it stands, so that a wrong field can be named.

    Attributes:
        fields: the object.
        where: file and line.
    """

    fields: Mapping[str, Any]
    where: str

    def text(self, name: str) -> str:
        """A field that must be a text and not empty."""
        value = self.fields.get(name)
        if not isinstance(value, str) or not value:
            raise self.wrong(name)
        return value

    def number(self, name: str) -> float:
        """A field that must be a finite number, 0 or more."""
        value: Any = self.fields.get(name)
        if not is_measure(value):
            raise self.wrong(name)
        return float(value)

    def number_or_none(self, name: str) -> float | None:
        """A number that may be null or left out."""
        return None if self.fields.get(name) is None else self.number(name)

    def inner(self, name: str) -> Row:
        """A field that must be an object."""
        value = self.fields.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name)
        return Row(value, f"{self.where}, {name}")

    def objects(self, name: str) -> list[Row]:
        """A field that must be a list of objects, at least one."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not value:
            raise self.wrong(name)
        if not all(isinstance(item, dict) for item in value):
            raise self.wrong(name)
        return [Row(item, f"{self.where}, {name} {n}") for n, item in enumerate(value, 1)]

    def numbers(self, name: str) -> list[float]:
        """A field that must be a list of finite numbers, at least one."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not value or not all(map(is_measure, value)):
            raise self.wrong(name)
        return [float(number) for number in value]

    def wrong(self, name: str) -> InputError:
        """The error that says what a field holds instead of what it should."""
        if name not in self.fields:
            return InputError(f"the row has no `{name}`", where=self.where)
        shown = repr(self.fields[name])
        return InputError(f"`{name}` is {shown[:60]}", where=self.where)


def is_measure(value: Any) -> bool:
    """Whether a value is a finite number, 0 or more."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )


def read_rows(path: Path) -> tuple[list[Row], bool]:
    """The rows of a file, and whether its last line was cut off (by a kill) and is left out.

    Raises:
        InputError: the file cannot be read, or another line is no JSON object.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        what = "no such file" if isinstance(error, FileNotFoundError) else f"not read ({error})"
        raise InputError(what, where=path, hint="name a results file of coinkv sweep") from error
    # not splitlines: JSON strings may hold U+2028 and its like
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            fields = json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            if number == len(lines):  # a whole row ends with a line feed
                return rows, True
            raise InputError("this line is not JSON", where=where) from error
        if not isinstance(fields, dict):
            raise InputError("this line is no JSON object", where=where)
        rows.append(Row(fields, where))
    return rows, False
