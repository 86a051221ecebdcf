"""Prompts as plain text: rendered once, so that every system is given the very same characters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coinkv.errors import InputError
from coinkv.model.backbone import dtype_name
from coinkv.model.load import load
from coinkv.model.prompt import INSTRUCTIONS, rendered


@dataclass(frozen=True)
class PromptModel:
    """What the measuring side knows of the model; its weights are in the workers only.

    Attributes:
        name: the name or path it was loaded by.
        source: what other libraries load it by: a folder, or a hub name.
        fingerprint: of the backbone.
        device: where it computes.
        dtype: what it computes in, as options name it.
        context_length: most tokens of a prompt and its answer.
        end_token_ids: tokens that end an answer.
        render: a user's message to the whole prompt, with exactly one beginning-of-sequence token
            where the tokenizer uses one.
        count_tokens: tokens of a text in which special tokens mean what they spell.
    """

    name: str
    source: str
    fingerprint: str
    device: str
    dtype: str
    context_length: int
    end_token_ids: frozenset[int]
    render: Callable[[str], str]
    count_tokens: Callable[[str], int]


def prompt_model(name: str, *, device: str | None, dtype: str | None) -> PromptModel:
    """Load a model, let the gate judge it, and keep what is needed to write its prompts.

    The gate's verdict is kept on this machine: the workers find it instead of measuring side by
    side.

    Raises:
        ModelNotFoundError: no such model.
        UnsupportedModelError: its KV cannot be moved exactly.
        InputError: its chat template takes no user message.
    """
    backbone = load(name, device=device, dtype=dtype)
    tokenizer = backbone.tokenizer

    def count_tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    _rendered(tokenizer, "a", name)
    return PromptModel(
        name=name,
        source=str(getattr(backbone.model, "name_or_path", "") or name),
        fingerprint=backbone.fingerprint,
        device=backbone.device.type,
        dtype=dtype_name(backbone.dtype),
        context_length=backbone.context_length,
        end_token_ids=backbone.end_token_ids,
        render=lambda message: _rendered(tokenizer, message, name),
        count_tokens=count_tokens,
    )


def _rendered(tokenizer: Any, message: str, name: str) -> str:
    """Instructions and a user's message in the model's template, up to the assistant's turn."""
    if not getattr(tokenizer, "chat_template", None):
        text = f"{INSTRUCTIONS}\n\n{message}\nAnswer:"
    else:
        text = _in_template(tokenizer, message, name)
    bos = tokenizer.bos_token or ""
    adds_bos = bos and tokenizer("a", verbose=False)["input_ids"][:1] == [tokenizer.bos_token_id]
    return bos + text if adds_bos and not text.startswith(bos) else text


def _in_template(tokenizer: Any, message: str, name: str) -> str:
    system = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": message}]
    merged = [{"role": "user", "content": f"{INSTRUCTIONS}\n\n{message}"}]
    for messages in (system, merged):
        try:
            text = rendered(tokenizer, messages)
        except Exception:  # noqa: BLE001 - templates raise what they like when a role is unknown
            continue
        if message in text and INSTRUCTIONS in text:
            return text
    raise InputError(
        "the chat template takes neither a system message nor a lone user message",
        where=name,
        hint="use a model whose template renders the user's message as it is",
    )
