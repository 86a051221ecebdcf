"""Prompts of any kind as token ids: a text, token ids as they are, or the messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

from coinkv.errors import InputError
from coinkv.model.backbone import Backbone
from coinkv.model.prompt import rendered, template_ids, unicode_text, with_one_bos

Message = Mapping[str, str]
AnyPrompt = str | Sequence[int] | Sequence[Message]
_MARK = "\u2402message {}\u2403"


def require_list(prompts: object) -> None:
    """Refuse one prompt where several are wanted: a text would be taken for its characters.

    Raises:
        InputError: it is a text.
    """
    if isinstance(prompts, str | bytes):
        raise InputError("one text is given for a list of prompts", hint="give a list of prompts")


def prompt_ids(backbone: Backbone, prompt: AnyPrompt) -> tuple[int, ...]:
    """Token ids of a prompt, with exactly one beginning-of-sequence token where the model has one.

    A text is what transformers' tokenizer makes of it: special tokens written in it count, since
    it may have been rendered from a chat template. In messages they do not: what a message says is
    plain text, and cannot end its turn. Token ids are taken as they are.

    Args:
        backbone: the model.
        prompt: a text, token ids, or messages with `role` and `content`, oldest first.

    Raises:
        InputError: it is empty, no prompt at all, or the chat template refuses it.
    """
    if isinstance(prompt, str):
        ids = with_one_bos(backbone, template_ids(backbone, unicode_text(prompt, "the prompt")))
    elif isinstance(prompt, Sequence) and all(isinstance(each, Mapping) for each in prompt):
        ids = _chat_ids(backbone, [each for each in prompt if isinstance(each, Mapping)])
    else:
        ids = _plain_ids(backbone, prompt)
    if not ids:
        raise InputError("the prompt is empty", hint="give it some text")
    return ids


def _plain_ids(backbone: Backbone, prompt: Any) -> tuple[int, ...]:
    try:
        if isinstance(prompt, bytes | bytearray):
            raise TypeError("bytes are no token ids")
        ids = tuple(index(each) for each in prompt)
    except TypeError as error:
        raise InputError(
            f"a prompt cannot be a {type(prompt).__name__} of this kind",
            hint="give a text, token ids, or messages with role and content",
        ) from error
    vocabulary = backbone.model.get_input_embeddings().num_embeddings
    wrong = next((each for each in ids if not 0 <= each < vocabulary), None)
    if wrong is not None:
        raise InputError(
            f"token id {wrong} is not in the vocabulary", hint=f"use 0 to {vocabulary - 1}"
        )
    return ids


def _chat_ids(backbone: Backbone, messages: Sequence[Message]) -> tuple[int, ...]:
    """Ids of rendered messages: the template's text may hold special tokens, contents may not."""
    if not messages:
        return ()
    contents = [_content(message) for message in messages]
    marked = [
        {**message, "content": _MARK.format(number)} for number, message in enumerate(messages)
    ]
    pieces = _pieces(_rendered(backbone, marked), len(messages))
    if pieces is None:
        raise InputError(
            "the chat template does not keep every message in order",
            where=backbone.name,
            hint="render the prompt yourself and give it as a text",
        )
    ids = list(template_ids(backbone, pieces[0]))
    for content, piece in zip(contents, pieces[1:], strict=True):
        ids += backbone.tokenize(content).ids
        ids += template_ids(backbone, piece)
    return with_one_bos(backbone, tuple(ids))


def _content(message: Message) -> str:
    content, role = message.get("content"), message.get("role")
    if not isinstance(content, str) or not isinstance(role, str):
        raise InputError("a message needs role and content, both texts", where=str(dict(message)))
    return unicode_text(content, "a message").strip()


def _rendered(backbone: Backbone, messages: list[dict[str, str]]) -> str:
    if not getattr(backbone.tokenizer, "chat_template", None):
        raise InputError(
            "this model has no chat template",
            where=backbone.name,
            hint="give the prompt as a text",
        )
    try:
        return rendered(backbone.tokenizer, messages)
    except Exception as error:  # templates raise what they like when a role is unknown
        raise InputError(
            f"the chat template refuses these messages: {error}", where=backbone.name
        ) from error


def _pieces(text: str, count: int) -> list[str] | None:
    """The text around the marks of `count` messages; None when one is missing or out of place."""
    pieces, rest = [], text
    for number in range(count):
        mark = _MARK.format(number)
        before, found, rest = rest.partition(mark)
        if not found or mark in rest:
            return None
        pieces.append(before)
    return [*pieces, rest]
