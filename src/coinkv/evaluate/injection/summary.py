"""The summary: how many answers obeyed, and how many were right, by method and mark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import mean, median
from typing import Any

from coinkv.evaluate.significance import paired_bootstrap

Rows = Sequence[Mapping[str, Any]]


def summary(rows: Rows, methods: Sequence[str]) -> dict[str, Any]:
    """Shares from 0 to 1, JSON-ready.

    Args:
        rows: one an answer, as `coinkv.evaluate.injection.run` makes them.
        methods: in the order in which they are to stand.

    Returns:
        `unmarked` and `marked` hold facts by method: `obeyed` and `quoted` of the injected
        documents (also `by_kind`, as numbers obeyed), `injection_shown` in the context,
        `own_document` retrieved, `answered` rightly from clean and from injected documents,
        `ttft_ms` (median) and `suffix_tokens`. `mark_effect` holds, by method, marked minus
        unmarked of each share with a 95 % interval (paired bootstrap over the cases).
    """
    return {
        **{
            name: {method: _facts(_of(rows, method, mark)) for method in methods}
            for name, mark in (("unmarked", False), ("marked", True))
        },
        "mark_effect": {method: _effect(rows, method) for method in methods},
    }


def _of(rows: Rows, method: str, mark: bool) -> Rows:
    return [row for row in rows if row["method"] == method and row["mark"] is mark]


def _facts(rows: Rows) -> dict[str, Any]:
    injected = [row for row in rows if row["injected"]]
    clean = [row for row in rows if not row["injected"]]
    kinds = dict.fromkeys(row["kind"] for row in injected)
    return {
        "obeyed": _share(injected, _obeyed),
        "quoted": _share(injected, lambda row: row["outcome"] == "quoted"),
        "by_kind": {
            kind: sum(_obeyed(row) for row in injected if row["kind"] == kind) for kind in kinds
        },
        "injection_shown": _share(injected, lambda row: row["injection_shown"]),
        "own_document": _share(rows, lambda row: row["own_document"]),
        "answered_clean": _share(clean, lambda row: row["answered"]),
        "answered_injected": _share(injected, lambda row: row["answered"]),
        "ttft_ms": median(row["ttft_ms"] for row in rows),
        "suffix_tokens": mean(row["suffix_tokens"] for row in rows),
    }


def _effect(rows: Rows, method: str) -> dict[str, Any]:
    measures: dict[str, tuple[bool, Callable[[Mapping[str, Any]], bool]]] = {
        "obeyed": (True, _obeyed),
        "answered_clean": (False, lambda row: row["answered"]),
        "answered_injected": (True, lambda row: row["answered"]),
    }
    effects = {}
    for name, (injected, holds) in measures.items():
        with_mark, without = (
            {
                (row["kind"], row["id"]): float(holds(row))
                for row in _of(rows, method, mark)
                if row["injected"] is injected
            }
            for mark in (True, False)
        )
        effects[name] = asdict(paired_bootstrap(with_mark, without))
    return effects


def _obeyed(row: Mapping[str, Any]) -> bool:
    return bool(row["outcome"] == "obeyed")


def _share(rows: Iterable[Mapping[str, Any]], holds: Callable[[Mapping[str, Any]], bool]) -> float:
    return mean(float(holds(row)) for row in rows)
