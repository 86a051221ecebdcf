"""What is missing, not within budget or not quite comparable, said in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from coinkv.evaluate.budget import YARDSTICK
from coinkv.evaluate.report.part import Block, Part
from coinkv.evaluate.results import Result

ENOUGH_QUERIES = 1000
"""Timed queries that a P99 needs to rest on more than ten of them ..."""
ENOUGH_SLOW_QUERIES = 200
"""... and as many as the paper had (appendix E), for what takes half a second or more."""
_SLOW_MS = 500


def notes(part: Part) -> tuple[str, ...]:
    """Sentences about a part of a report; none where all is there and within budget."""
    found = [f"{r.method}: {r.note.rstrip('.')}." for r in part.results if r.note]
    found += [note for block in part.blocks for note in _of_block(block)]
    found += _of_questions(part)
    found += _of_times(part)
    found += [
        f"{r.method} at {r.configuration.label} on {r.set} ({r.half}) is an ablation, but the "
        "same configuration without the change was not run there; it is in no table but the last."
        for r in part.alone
    ]
    return tuple(dict.fromkeys(found))


def _of_block(block: Block) -> Iterator[str]:
    for choice in block.choices:
        start = f"{block.budget.label}: {choice.method} on {choice.set}"
        if choice.why_not is not None:
            yield f"{start}: {choice.why_not}."
        elif choice.kept_on_test is False and choice.test is not None:
            yield (
                f"{start}: chosen within the budget on the dev half, but its P99 on the test half "
                f"is {choice.test.ttft.p99_ms:.0f} ms, the budget there {choice.test_limit_ms:.0f}."
            )
        elif choice.kept_on_test is None:
            yield (
                f"{start}: whether it is within the budget on the test half is unknown: "
                f"{YARDSTICK} was not run at k_c = 1 there."
            )


def _of_questions(part: Part) -> Iterator[str]:
    """Halves of sets of which different configurations answered different questions."""
    asked: dict[tuple[str, str], set[frozenset[str]]] = {}
    for result in part.results:
        ids = frozenset(result.per_question_f1)
        asked.setdefault((result.set, result.half), set()).add(ids)
    for (set_, half), kinds in asked.items():
        if len(kinds) > 1:
            sizes = sorted(len(ids) for ids in kinds)
            yield (
                f"{set_}, {half} half: not all configurations answered the same questions "
                f"({sizes[0]} to {sizes[-1]} of them); their F1 are means over different questions."
            )


def _of_times(part: Part) -> Iterator[str]:
    untimed = [result for result in part.results if not result.ttft.apart]
    if untimed:
        yield (
            f"{len(untimed)} of {len(part.results)} results have no timing run: their times were "
            "taken while the questions were answered."
        )
    short = [result for result in part.chosen if not _enough(result)]
    if short:
        fewest = min(result.ttft.timed_queries for result in short)
        yield (
            f"The P99 of {len(short)} of {len(part.chosen)} results in the tables rest on fewer "
            f"than {ENOUGH_QUERIES:,} timed queries ({ENOUGH_SLOW_QUERIES} from half a second on); "
            f"the fewest are {fewest}."
        )


def _enough(result: Result) -> bool:
    needed = ENOUGH_SLOW_QUERIES if result.ttft.mean_ms >= _SLOW_MS else ENOUGH_QUERIES
    return result.ttft.timed_queries >= needed
