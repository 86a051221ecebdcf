"""The prompt: the model's chat template, split once into the prefix that is cached, the place of
the evidence, and the suffix that is computed for every question.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from coinkv.errors import InputError
from coinkv.model.backbone import Backbone

INSTRUCTIONS = (
    "Answer the question using only the given documents. "
    "Reply with the short answer only, without explanation."
)
_EVIDENCE, _QUESTION = "\u2402evidence\u2403", "\u2402question\u2403"


@dataclass(frozen=True)
class Prompt:
    """Token ids around the evidence: `prefix_ids`, evidence, then `suffix_ids(question)`.

    The instructions stand in the prefix, which is encoded once; the suffix holds the question and
    the assistant's header only, since its length is the time to first token.
    """

    prefix_ids: tuple[int, ...]
    _before_question: tuple[int, ...]
    _after_question: tuple[int, ...]
    _backbone: Backbone

    @property
    def prefix_hash(self) -> str:
        """Hex digest of the prefix: part of the key of blocks that were encoded behind it."""
        return hashlib.sha256(repr(self.prefix_ids).encode()).hexdigest()

    def suffix_ids(self, question: str) -> tuple[int, ...]:
        """Token ids computed live for a question.

        Raises:
            InputError: the question is empty.
        """
        if not question.strip():
            raise InputError("the question is empty", hint="ask something")
        asked = self._backbone.tokenize(" ".join(question.split())).ids
        return self._before_question + asked + self._after_question


def build_prompt(backbone: Backbone, instructions: str = INSTRUCTIONS) -> Prompt:
    """The backbone's chat template around `instructions`, evidence and question.

    A model without a chat template gets plain text ("Question: ... Answer:"). Exactly one
    beginning-of-sequence token stands in front where the tokenizer knows one and uses it.

    Raises:
        InputError: the template loses or reorders the evidence or the question.
    """
    text = _rendered(backbone, instructions)
    before, found_evidence, rest = text.partition(_EVIDENCE)
    between, found_question, after = rest.partition(_QUESTION)
    if not found_evidence or not found_question or _EVIDENCE in rest:
        raise InputError(
            "the chat template does not keep the evidence before the question",
            where=backbone.name,
            hint="use a model whose template renders the user's message as it is",
        )
    return Prompt(
        _with_one_bos(backbone, _template_ids(backbone, before)),
        _template_ids(backbone, between),
        _template_ids(backbone, after),
        backbone,
    )


def _rendered(backbone: Backbone, instructions: str) -> str:
    asked = f"{_EVIDENCE}\n\nQuestion: {_QUESTION}"
    tokenizer = backbone.tokenizer
    if not getattr(tokenizer, "chat_template", None):
        return f"{instructions}\n\n{asked}\nAnswer:"
    system = [{"role": "system", "content": instructions}, {"role": "user", "content": asked}]
    merged = [{"role": "user", "content": f"{instructions}\n\n{asked}"}]
    for messages in (system, merged):
        try:
            text: str = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception:  # noqa: BLE001 - templates raise what they like when a role is unknown
            continue
        if instructions in text:
            return text
    raise InputError(
        "the chat template accepts neither a system message nor a lone user message",
        where=backbone.name,
        hint="use another model, or one without a chat template",
    )


def _template_ids(backbone: Backbone, text: str) -> tuple[int, ...]:
    return tuple(backbone.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _with_one_bos(backbone: Backbone, ids: tuple[int, ...]) -> tuple[int, ...]:
    """Exactly one BOS in front, whether the template wrote it, the tokenizer adds it, or both."""
    bos = getattr(backbone.tokenizer, "bos_token_id", None)
    if bos is None:
        return ids
    added = tuple(backbone.tokenizer("a", verbose=False)["input_ids"])[:1] == (bos,)
    body = ids
    while body[:2] == (bos, bos):
        body = body[1:]
    return (bos, *body) if added and body[:1] != (bos,) else body
