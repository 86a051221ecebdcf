"""Probabilities of tokens, in the formats of chat and of text completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coinkv.serve.api.tokens import Offsets, TokenTexts
from coinkv.serve.scheduler.events import ChosenLogprob, TokenLogprob

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON has not; OpenAI's API writes it so."""


def chat_logprobs(texts: TokenTexts, chosen: Sequence[ChosenLogprob]) -> dict[str, Any]:
    """OpenAI's `logprobs` object of a chat choice, or of a chunk of one."""
    content = [
        {
            **_entry(texts, each.chosen),
            "top_logprobs": [_entry(texts, top) for top in each.top],
        }
        for each in chosen
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    texts: TokenTexts, chosen: Sequence[ChosenLogprob], offsets: Offsets
) -> dict[str, Any]:
    """OpenAI's `logprobs` object of a text completion's choice, or of a chunk of one.

    Args:
        texts: of the model's tokens.
        chosen: the tokens.
        offsets: of this choice; goes on from chunk to chunk.
    """
    spelled = [texts.of(each.chosen.token_id) for each in chosen]
    return {
        "tokens": [text for text, _ in spelled],
        "token_logprobs": [_finite(each.chosen.logprob) for each in chosen],
        "top_logprobs": [_likeliest(texts, each) for each in chosen],
        "text_offset": [offsets.next(spelling) for _, spelling in spelled],
    }


def _likeliest(texts: TokenTexts, each: ChosenLogprob) -> dict[str, float]:
    """By text; the chosen token is among them even if others are likelier."""
    likeliest: dict[str, float] = {}
    for top in (*each.top, each.chosen):
        likeliest.setdefault(texts.of(top.token_id)[0], _finite(top.logprob))
    return likeliest


def _entry(texts: TokenTexts, token: TokenLogprob) -> dict[str, Any]:
    text, spelled = texts.of(token.token_id)
    return {"token": text, "logprob": _finite(token.logprob), "bytes": spelled}


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
