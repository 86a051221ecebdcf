"""What was measured, in rows of a name and texts: backbone, questions, machine, commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coinkv.evaluate.report.part import Comparison, Part
from coinkv.evaluate.report.tables import interval, p_value
from coinkv.evaluate.results import Result


def measured(part: Part) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Names with what there is to say of them, for the head of a part."""
    versions = [version for result in part.results for version in result.versions]
    return (
        ("Backbone", tuple(dict.fromkeys(result.model for result in part.results))),
        ("Fingerprint", (part.fingerprint,)),
        ("Questions", _questions(part.results)),
        ("Configurations", (f"{len({r.configuration for r in part.results})}",)),
        ("Software and machine", tuple(dict.fromkeys(map(_version, versions)))),
        ("Commands", tuple(dict.fromkeys(c for r in part.results for c in r.commands))),
    )


def in_words(comparison: Comparison) -> str:
    """A comparison as a sentence."""
    difference = comparison.difference
    p = p_value(difference)
    contains = "contains" if difference.low <= 0 <= difference.high else "excludes"
    sets = "1 set" if comparison.sets == 1 else f"{comparison.sets} sets"
    return (
        f"{comparison.first} minus {comparison.second}: {difference.mean:+.1f} F1, 95 % CI "
        f"{interval(difference)}, p {p if p.startswith('<') else f'= {p}'} "
        f"(over {difference.questions} questions of {sets}; the interval {contains} 0)."
    )


def _questions(results: Iterable[Result]) -> tuple[str, ...]:
    asked: dict[tuple[str, str], set[str]] = {}
    for result in results:
        asked.setdefault((result.set, result.half), set()).update(result.per_question_f1)
    return tuple(f"{set_}, {half} half: {len(ids)}" for (set_, half), ids in asked.items())


def _version(version: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in version.items())
