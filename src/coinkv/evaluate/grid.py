"""Grids: the configurations that a sweep goes through."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from coinkv.config import DEFAULT_K_CHUNKS, DEFAULT_K_NUGGETS
from coinkv.errors import InputError
from coinkv.evaluate.budget import YARDSTICK, Budget, choose, usual_index
from coinkv.evaluate.configuration import DEFAULT_INDEX, Configuration
from coinkv.evaluate.report.ablation import is_ablation
from coinkv.evaluate.results import Result
from coinkv.methods.base import Method
from coinkv.methods.registry import method_class, method_named, method_names, options_of

_FIELDS = {"method", "k_chunks", "k_nuggets", "options"}


@dataclass(frozen=True)
class Axes:
    """The values that are combined; a method takes the axes that mean something to it.

    Attributes:
        k_chunks: chunks retrieved (`k_c`).
        k_nuggets: nuggets retrieved (`k`), for methods whose unit is the nugget.
        ratios: recompute ratios (`r`), for methods with such an option; empty keeps its default.
    """

    k_chunks: tuple[int, ...] = (DEFAULT_K_CHUNKS,)
    k_nuggets: tuple[int, ...] = (DEFAULT_K_NUGGETS,)
    ratios: tuple[float, ...] = ()


PAPER = Axes(
    k_chunks=(1, 2, 3, 4, 5, 10, 20, 30, 50),
    k_nuggets=(1, 2, 3, 4, 5, 10, 20, 30, 50, 100, 150, 200),
    ratios=tuple(step / 10 for step in range(11)),
)
"""The grids of paper arXiv 2608.07458, appendix E."""
SMALL = Axes(k_chunks=(1, 3, 5), k_nuggets=(3, 10), ratios=(0.2,))
"""A first look: a few minutes for each method and set on a laptop."""
GRIDS = {"paper": PAPER, "small": SMALL}


def grid(
    methods: Sequence[str], axes: Axes, index: str = DEFAULT_INDEX, adapter: str | None = None
) -> list[Configuration]:
    """Every combination of the axes for every method.

    Raises:
        InputError: an unknown method, or a value that a method refuses.
    """
    found = []
    for name in methods:
        method = method_class(name)
        options = {"ratio": axes.ratios} if _has_ratio(method) and axes.ratios else {}
        nuggets: Sequence[int | None] = axes.k_nuggets if method.unit == "nugget" else (None,)
        found += list(_combined(name, axes.k_chunks, nuggets, options, index, adapter))
    return _distinct(found)


def read_grid(
    path: Path, index: str = DEFAULT_INDEX, adapter: str | None = None
) -> list[Configuration]:
    """Configurations from a JSON file: a list of objects, each with a `method`.

    `k_chunks`, `k_nuggets` and each of the `options` may be a value or a list of values, which are
    combined: `[{"method": "cacheblend", "k_chunks": [1, 3], "options": {"ratio": [0.1, 0.3]}}]`.

    Raises:
        InputError: no such file, no such list, or something in it that cannot be run.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"the grid cannot be read ({error.strerror or error})",
            where=path,
            hint=f"name a JSON file, or one of {', '.join(GRIDS)}",
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"the grid is no JSON ({error})", where=path) from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError("the grid is no list of objects", where=path)
    found = [
        configuration
        for number, entry in enumerate(entries, 1)
        for configuration in _entry(entry, index, adapter, f"{path}, entry {number}")
    ]
    if not found:
        raise InputError("the grid is empty", where=path)
    return _distinct(found)


def chosen(
    results: Sequence[Result],
    set_: str,
    budgets: Sequence[Budget],
    index: str = DEFAULT_INDEX,
    adapter: str | None = None,
) -> list[Configuration]:
    """What a report over the dev half chooses within the budgets, for a sweep of the test half.

    As in reports, variants of CoinRAG that are ablations do not compete. Choices that were made on
    another index or adapter are left to a sweep of that; the yardstick of relative budgets is added
    where no adapter answers.

    Args:
        results: of one backbone, all sets and halves.
        set_: name of the set.
        budgets: limits to P99 TTFT.
        index: label of the index that is swept.
        adapter: name of the adapter that is swept.

    Raises:
        InputError: the set's dev half is not in the results, nothing of this adapter was chosen, or
            there are results of several backbones.
    """
    usual = usual_index(results)
    of_set = [r for r in results if r.set == set_ and not is_ablation(r.configuration, usual)]
    if not any(result.half == "dev" for result in of_set):
        raise InputError(
            "the results hold no dev half", where=set_, hint="sweep its dev half first"
        )
    found = [Configuration(YARDSTICK, 1, None, index=index)] if adapter is None else []
    for choice in (choice for budget in budgets for choice in choose(of_set, budget)):
        if choice.dev is not None:
            configuration = choice.dev.configuration
            if (configuration.index, configuration.adapter) == (index, adapter):
                found.append(configuration)
    if not found:
        raise InputError("nothing with this adapter was chosen on the dev half", where=set_)
    return _distinct(found)


def _entry(
    entry: Mapping[str, Any], index: str, adapter: str | None, where: str
) -> list[Configuration]:
    unknown = set(entry) - _FIELDS
    options = entry.get("options", {})
    if unknown or "method" not in entry or not isinstance(options, dict):
        raise InputError(
            "this entry is not understood",
            where=where,
            hint='give {"method": name, "k_chunks": [...], "k_nuggets": [...], "options": {...}}',
        )
    try:
        name = str(entry["method"])
        is_nugget = method_class(name).unit == "nugget"
        nuggets = entry.get("k_nuggets", DEFAULT_K_NUGGETS) if is_nugget else None
        chunks = _values(entry.get("k_chunks", DEFAULT_K_CHUNKS))
        values = {option: _values(value) for option, value in options.items()}
        found = list(_combined(name, chunks, _values(nuggets), values, index, adapter))
    except InputError as error:
        raise InputError(str(error), where=where) from error
    if not found:
        raise InputError("this entry holds an empty list", where=where, hint="name a value")
    return found


def _combined(
    name: str,
    chunks: Sequence[Any],
    nuggets: Sequence[Any],
    options: Mapping[str, Sequence[Any]],
    index: str,
    adapter: str | None,
) -> Iterator[Configuration]:
    named = [("k_chunks", k) for k in chunks]
    if method_class(name).unit == "nugget":
        named += [("k_nuggets", k) for k in nuggets]
    for axis, k in named:
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise InputError(f"{axis} is {k!r}", hint="use whole numbers from 1")
    for k_chunks, k_nuggets, *values in product(chunks, nuggets, *options.values()):
        method = method_named(name, dict(zip(options, values, strict=True)))
        chosen = tuple(options_of(method).items())
        yield Configuration(name, k_chunks, k_nuggets, chosen, index, adapter)


def _has_ratio(method: type[Method]) -> bool:
    return any(field.name == "ratio" for field in fields(method))  # type: ignore[arg-type]


def _values(given: Any) -> Sequence[Any]:
    return given if isinstance(given, list) else [given]


def _distinct(found: Sequence[Configuration]) -> list[Configuration]:
    return list(dict.fromkeys(found))


def method_list(text: str) -> list[str]:
    """Methods as typed, with commas between; `all` stands for every one there is.

    Raises:
        InputError: an unknown method, or none.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return method_names()
    if not names:
        raise InputError(
            "no method is named", hint=f"use all, or some of {', '.join(method_names())}"
        )
    for name in names:
        method_class(name)
    return names
