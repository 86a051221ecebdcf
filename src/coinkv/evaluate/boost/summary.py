"""The summary: what rows of answers say of each system in each layout, and the ratios asked for."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coinkv.evaluate.provenance import spread_ms

_BUCKETS = (("<1K", 0), ("1-2K", 1000), ("2-4K", 2000), ("4K+", 4000))
_KINDS = ("exact", "moved", "repaired", "computed")
Row = Mapping[str, Any]


def summary(
    rows: Sequence[Row],
    layouts: Sequence[str],
    systems: Sequence[str],
    skipped: Mapping[str, str],
    failed: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """Times, scores, reuse and memory of every system in every layout.

    The first prompt on a text is cold, later ones are warm. Reuse is a share of the prompt tokens
    of later prompts, by kind; `exact` and `moved` are never one figure. `accuracy` is the share of
    answers in which a right one stands as a word, `f1` that of their first lines. `top1_agreement`
    is the share of prompts whose first token is that of `full`, `answer_agreement` that of answers
    equal to the last token.

    Args:
        rows: answers, in any order.
        layouts: names of the layouts, in the order in which they are shown.
        systems: names of the systems, the same.
        skipped: why systems were not measured at all.
        failed: why systems fell out, by layout.

    Returns:
        JSON-ready `layouts.<layout>.systems.<system>`, where a system that was not measured has
        `skipped` or `failed` with the reason, and `ratios.<layout>`.
    """
    facts: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    for layout in layouts:
        its_rows = {
            system: [r for r in rows if (r["layout"], r["system"]) == (layout, system)]
            for system in systems
        }
        full = _by_prompt(its_rows.get("full", []))
        facts[layout] = {
            "systems": {
                system: {
                    **(_facts(answered, full) if answered else {}),
                    **({"skipped": skipped[system]} if system in skipped else {}),
                    **({"failed": why} if (why := failed.get(layout, {}).get(system)) else {}),
                }
                for system, answered in its_rows.items()
            }
        }
        ratios[layout] = _ratios(its_rows)
    return {"layouts": facts, "ratios": ratios}


def ratio(above: Sequence[Row], below: Sequence[Row]) -> tuple[float | None, float | None]:
    """How many times longer one system's first tokens take than another's.

    Args:
        above: rows of the one.
        below: rows of the other.

    Returns:
        the ratio of the mean TTFTs and the median of the ratios prompt by prompt, over the prompts
        that both answered; None without such.
    """
    others = _by_prompt(below)
    pairs = [
        (row["ttft_ms"], others[_prompt(row)]["ttft_ms"]) for row in above if _prompt(row) in others
    ]
    if not pairs:
        return None, None
    of_means = sum(a for a, _ in pairs) / sum(b for _, b in pairs)
    return of_means, statistics.median(a / b for a, b in pairs)


def _prompt(row: Row) -> tuple[str, str]:
    return row["sitting"], row["id"]


def _by_prompt(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    return {_prompt(row): row for row in rows}


def _first(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["number"] == 0]


def _later(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["number"] > 0]


def _facts(rows: Sequence[Row], full: Mapping[tuple[str, str], Row]) -> dict[str, Any]:
    loaded, peak = (max(row[f"{when}_bytes"] for row in rows) for when in ("loaded", "peak"))
    later = _later(rows)
    return {
        **_times(rows),
        "accuracy": statistics.mean(100.0 * row["accurate"] for row in rows),
        "f1": statistics.mean(row["f1"] for row in rows),
        "top1_agreement": _agreement(rows, full, lambda row: row["token_ids"][:1]),
        "top1_agreement_later": _agreement(later, full, lambda row: row["token_ids"][:1]),
        "answer_agreement": _agreement(rows, full, lambda row: row["token_ids"]),
        "reuse": _reuse(later),
        "repairs": _counts(row["repair"] for row in later if row["repair"]),
        "peak_bytes": peak,
        "loaded_bytes": loaded,
        "added_bytes": peak - loaded,
        "questions": len(rows),
        "prompt_tokens": statistics.mean(row["prompt_tokens"] for row in rows),
        "buckets": _buckets(rows),
        "versions": rows[-1]["versions"],
    }


def _times(rows: Sequence[Row]) -> dict[str, Any]:
    first, later = _first(rows), _later(rows)
    return {
        f"{clock}_{when}_ms": spread_ms([row[f"{clock}_ms"] / 1000 for row in some])
        if some
        else None
        for clock in ("ttft", "total")
        for when, some in (("first", first), ("later", later))
    }


def _agreement(
    rows: Sequence[Row], full: Mapping[tuple[str, str], Row], of: Callable[[Row], Any]
) -> float | None:
    same = [of(row) == of(full[_prompt(row)]) for row in rows if _prompt(row) in full]
    return statistics.mean(map(float, same)) if same else None


def _reuse(rows: Sequence[Row]) -> dict[str, float] | None:
    total = sum(row["prompt_tokens"] for row in rows)
    if not total:
        return None
    return {kind: sum(row["reuse"][kind] for row in rows) / total for kind in _KINDS}


def _counts(names: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def _buckets(rows: Sequence[Row]) -> dict[str, Any]:
    """Times by length of the prompt; lengths that do not occur are left out."""
    ends = [start for _, start in _BUCKETS[1:]]
    buckets: dict[str, Any] = {}
    for (name, start), end in zip(_BUCKETS, [*ends, None], strict=True):
        some = [
            row
            for row in rows
            if row["prompt_tokens"] >= start and (end is None or row["prompt_tokens"] < end)
        ]
        if some:
            buckets[name] = {"questions": len(some), **_times(some)}
    return buckets


def _ratios(rows: Mapping[str, Sequence[Row]]) -> dict[str, float | None]:
    auto = rows.get("coinkv_auto", [])
    compared = {
        **{
            f"{name}_over_auto": (_later(rows.get(name, [])), _later(auto))
            for name in ("full", "exact_prefix", "kvboost", "vllm")
        },
        "cold_auto_over_full": (_first(auto), _first(rows.get("full", []))),
    }
    ratios: dict[str, float | None] = {}
    for name, (above, below) in compared.items():
        ratios[name], ratios[f"{name}_median"] = ratio(above, below)
    return ratios
