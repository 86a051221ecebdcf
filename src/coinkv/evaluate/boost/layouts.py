"""Layouts: where in a prompt the text stands that questions share."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from coinkv.errors import InputError
from coinkv.evaluate.boost.preambles import preamble
from coinkv.evaluate.boost.prompts import PromptModel
from coinkv.evaluate.boost.texts import AskedText
from coinkv.evaluate.dataset import EvalRow

Layout = Literal["document_first", "varying_preamble", "two_documents"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


@dataclass(frozen=True)
class AskedPrompt:
    """A prompt and the question in it.

    Attributes:
        row: the question with its answers.
        prompt: the whole prompt as plain text.
        tokens: of the prompt.
    """

    row: EvalRow
    prompt: str
    tokens: int


@dataclass(frozen=True)
class Sitting:
    """Prompts on the same text, or the same two, asked one behind the other.

    The text stands in no other sitting of the layout: at the first prompt every cache is cold, at
    the others it is warm.

    Attributes:
        name: ids of the texts' first questions.
        prompts: in the order in which they are asked.
    """

    name: str
    prompts: tuple[AskedPrompt, ...]


def sittings(
    layout: Layout,
    texts: Sequence[AskedText],
    model: PromptModel,
    *,
    lead: str,
    room: int,
    seed: int,
) -> tuple[Sitting, ...]:
    """The prompts of a layout; the same arguments give the same prompts.

    `document_first`: instructions, text, question, as in the benchmark of arXiv 2608.21362.
    `varying_preamble`: another preamble of 1 to 200 tokens before the text at every question.
    `two_documents`: two texts, about as often in either order, the questions on them in turn. Texts
    are paired as they come; the last of an odd number is left out.

    Args:
        layout: which.
        texts: the texts.
        model: renders prompts and counts tokens.
        lead: first words of the answer, which end every prompt.
        room: tokens left for the answer.
        seed: of all that is drawn.

    Raises:
        InputError: a prompt and its answer do not fit into the context window, or there are no two
            texts for `two_documents`.
    """
    if layout == "two_documents" and len(texts) < 2:
        raise InputError("two_documents needs two texts", hint="ask for 2 documents or more")
    messages = {
        "document_first": _document_first,
        "varying_preamble": _varying_preamble,
        "two_documents": _two_documents,
    }[layout]
    groups = (
        list(zip(texts[0::2], texts[1::2], strict=False))
        if layout == "two_documents"
        else [(text,) for text in texts]
    )
    made = []
    for group in groups:
        name = " ".join(text.rows[0].id for text in group)
        draw = random.Random(f"{seed} {layout} {name}")
        prompts = [
            _asked(row, model.render(message) + lead, model, room)
            for row, message in messages(group, draw, model.count_tokens)
        ]
        made.append(Sitting(name, tuple(prompts)))
    return tuple(made)


_Messages = Iterator[tuple[EvalRow, str]]


def _document_first(
    texts: Sequence[AskedText], draw: random.Random, count_tokens: Callable[[str], int]
) -> _Messages:
    (text,) = texts
    for row in text.rows:
        yield row, f"{_shown(text)}\n\n{_question(row)}"


def _varying_preamble(
    texts: Sequence[AskedText], draw: random.Random, count_tokens: Callable[[str], int]
) -> _Messages:
    (text,) = texts
    used: set[str] = set()
    for row in text.rows:
        while (before := preamble(draw, count_tokens)) in used:
            pass
        used.add(before)
        yield row, f"{before}\n\n{_shown(text)}\n\n{_question(row)}"


def _two_documents(
    texts: Sequence[AskedText], draw: random.Random, count_tokens: Callable[[str], int]
) -> _Messages:
    rows = _in_turn([text.rows for text in texts])
    orders = [texts if number % 2 else texts[::-1] for number in range(len(rows))]
    draw.shuffle(orders)
    for row, order in zip(rows, orders, strict=True):
        yield row, "\n\n".join([*(_shown(text) for text in order), _question(row)])


def _in_turn(columns: Sequence[Sequence[EvalRow]]) -> list[EvalRow]:
    longest = max(len(column) for column in columns)
    return [column[at] for at in range(longest) for column in columns if at < len(column)]


def _shown(text: AskedText) -> str:
    return f"{text.title}\n{text.text}".strip()


def _question(row: EvalRow) -> str:
    return f"Question: {row.question}"


def _asked(row: EvalRow, prompt: str, model: PromptModel, room: int) -> AskedPrompt:
    tokens = model.count_tokens(prompt)
    if tokens + room > model.context_length:
        raise InputError(
            f"the prompt of {row.id} and {room} tokens of answer need {tokens + room} tokens, the "
            f"context window of {model.name} holds {model.context_length}",
            hint="lower --max-document-tokens",
        )
    return AskedPrompt(row, prompt, tokens)
