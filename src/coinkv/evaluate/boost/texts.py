"""Texts with several questions on each: what a cache of prompts has to do with."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from coinkv.errors import InputError
from coinkv.evaluate.dataset import EvalRow, EvalSet, require_answers


@dataclass(frozen=True)
class AskedText:
    """A text and the questions on it, in the order of their set.

    Attributes:
        title: of the text, may be empty.
        text: the text.
        tokens: of the text alone.
        rows: its questions, at least one, with answers.
    """

    title: str
    text: str
    tokens: int
    rows: tuple[EvalRow, ...]


def asked_texts(eval_set: EvalSet, count_tokens: Callable[[str], int]) -> tuple[AskedText, ...]:
    """The texts of a set with the questions that share each, in the order of the set.

    Args:
        eval_set: rows whose first passage is the text they are about.
        count_tokens: tokens of a text.

    Raises:
        InputError: a row has no passage or no answers.
    """
    require_answers(eval_set)
    found: dict[tuple[str, str], list[EvalRow]] = {}
    for row in eval_set.rows:
        if not row.passages:
            raise InputError(
                "this question has no text it is about",
                where=row.where or f"{eval_set.name}, {row.id}",
                hint='give "passages": [{"text": "..."}]',
            )
        found.setdefault((row.passages[0].title, row.passages[0].text), []).append(row)
    return tuple(
        AskedText(title, text, count_tokens(text), tuple(rows))
        for (title, text), rows in found.items()
    )


def spread_over_lengths(
    texts: Sequence[AskedText], count: int | None, most_tokens: int, seed: int
) -> tuple[AskedText, ...]:
    """Some of the texts, short and long ones, in an order of their own.

    Those that fit are ranked by length and cut into `count` equal parts; one is drawn from each.

    Args:
        texts: to choose from.
        count: how many; None takes all that fit.
        most_tokens: longer texts are left out.
        seed: of choice and order.

    Raises:
        InputError: fewer texts fit than are wanted.
    """
    fitting = sorted((t for t in texts if t.tokens <= most_tokens), key=lambda t: t.tokens)
    wanted = len(fitting) if count is None else count
    if not 1 <= wanted <= len(fitting):
        raise InputError(
            f"{len(fitting)} of {len(texts)} texts have at most {most_tokens} tokens, "
            f"{max(wanted, 1)} are wanted",
            hint="ask for fewer documents, or allow longer ones",
        )
    draw = random.Random(f"{seed} texts")
    edges = [number * len(fitting) // wanted for number in range(wanted + 1)]
    chosen = [draw.choice(fitting[start:end]) for start, end in pairwise(edges)]
    return tuple(draw.sample(chosen, wanted))
