"""Turns: every prompt goes to all systems one after the other, in an order of its own."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coinkv.errors import CoinKVError
from coinkv.evaluate.boost.layouts import AskedPrompt, Sitting
from coinkv.evaluate.boost.record import Rows
from coinkv.evaluate.boost.worker import Reply, Worker
from coinkv.evaluate.metrics import token_f1


def ask_in_turn(
    sitting: Sitting,
    workers: Mapping[str, Worker],
    max_new_tokens: int,
    end_token_ids: frozenset[int],
    seed: int,
    on_prompt: Callable[[], None],
    on_failure: Callable[[str, str], None],
) -> dict[str, Rows]:
    """Ask the prompts of a sitting; a machine that slows down slows all systems.

    Args:
        sitting: the prompts, asked in their order.
        workers: the systems by name.
        max_new_tokens: most tokens of an answer.
        end_token_ids: tokens that are no part of an answer.
        seed: of the systems' order at each prompt.
        on_prompt: told of every prompt done.
        on_failure: told of a system that did not answer, and why; it is not asked again.

    Returns:
        rows by system, a row a prompt, of the systems that answered all.
    """
    rows: dict[str, Rows] = {name: [] for name in workers}
    for number, asked in enumerate(sitting.prompts):
        order = random.Random(f"{seed} {sitting.name} {number}").sample(sorted(rows), len(rows))
        for name in order:
            try:
                reply = workers[name].ask(asked.prompt, asked.tokens, max_new_tokens)
            except CoinKVError as error:
                del rows[name]
                on_failure(name, error.what)
            else:
                rows[name].append(_row(asked, number, reply, end_token_ids))
        on_prompt()
    return rows


def names_an_answer(text: str, answers: Sequence[str]) -> bool:
    """Whether one of the answers stands in a text as a word or words of its own."""
    return any(re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) for answer in answers)


def _row(
    asked: AskedPrompt, number: int, reply: Reply, end_token_ids: frozenset[int]
) -> dict[str, Any]:
    tokens = list(reply.token_ids)
    while tokens and tokens[-1] in end_token_ids:
        tokens.pop()
    text = reply.text.strip()
    return {
        "id": asked.row.id,
        "number": number,
        "prompt_tokens": asked.tokens,
        "ttft_ms": round(1000 * reply.ttft_seconds, 3),
        "total_ms": round(1000 * reply.total_seconds, 3),
        "token_ids": tokens,
        "text": text,
        "f1": token_f1(text.partition("\n")[0], asked.row.answers),
        "accurate": names_an_answer(text, asked.row.answers),
        "reuse": dict(reply.reuse),
        "repair": reply.repair,
        "stages_ms": reply.stages_ms,
        "peak_bytes": reply.peak_bytes,
    }
