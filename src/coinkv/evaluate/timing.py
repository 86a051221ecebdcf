"""Timing: rounds of questions in shuffled order, the configurations in turn at every question."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coinkv.errors import InputError
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.provenance import provenance
from coinkv.evaluate.run import configuration_facts, first_token
from coinkv.rag.ask import CoinRAG

STAGES = ("embed", "retrieve", "read", "compose", "prefill")
ANSWER_ROOM = 8
"""Room left for an answer where none is decoded."""


def timing_round(
    askers: Mapping[Configuration, CoinRAG],
    questions: Sequence[str],
    number: int,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Time every configuration on every question once, up to the first token.

    Questions come in an order of this round; at each the configurations are asked in turn, in an
    order of that question, so that a machine that slows down slows all of them. Before that every
    configuration is warmed up. TTFT is that of paper arXiv 2608.07458, appendix E.

    Args:
        askers: the configurations at work on one index.
        questions: what to ask.
        number: of the round; gives the order together with the seed.
        seed: of the order.
        on_progress: told of questions done and of all.

    Returns:
        one JSON-ready `timing` row of a results file a configuration, but for set and half.

    Raises:
        InputError: no questions, or one whose context is too long.
    """
    if not questions:
        raise InputError("there are no questions to time")
    made = {each: provenance(asker, seed) for each, asker in askers.items()}
    order = random.Random(f"{seed} {number}")
    asked = order.sample(questions, len(questions))
    times: dict[Configuration, list[float]] = {each: [] for each in askers}
    stages: dict[Configuration, list[Mapping[str, float]]] = {each: [] for each in askers}
    for asker in askers.values():
        asker.first_token(asked[0], answer_tokens=ANSWER_ROOM)
    for done, question in enumerate(asked):
        for each in order.sample(list(askers), len(askers)):
            first = first_token(askers[each], question, ANSWER_ROOM)
            times[each].append(first.clock.total_seconds)
            stages[each].append(first.clock.stages_seconds)
            del first  # freeing its cache is not part of the next question's time
        if on_progress is not None:
            on_progress(done + 1, len(asked))
    return [
        {
            "kind": "timing",
            **configuration_facts(each),
            "round": number,
            "ttft_ms": [round(1000 * seconds, 3) for seconds in times[each]],
            "stages_ms": {
                stage: 1000 * statistics.mean(laps.get(stage, 0.0) for laps in stages[each])
                for stage in STAGES
            },
            **made[each],
        }
        for each in askers
    ]
