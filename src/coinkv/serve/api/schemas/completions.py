"""The body of a text completion, its reply, and the chunks of its stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from coinkv.serve.api.schemas.generation import (
    FinishReason,
    GenerationRequest,
    Reply,
    Timing,
    Usage,
)

MOST_PROMPTS = 32
MOST_LOGPROBS = 5

TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, fail_fast=True)
]
Prompts = Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
IdPrompts = Annotated[list[TokenIds], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    prompt: str | TokenIds | Prompts | IdPrompts = Field(
        description="A text, token ids, or a list of either: one answer (or n) for each."
    )
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None
    suffix: Literal[""] | None = None
    moderation: Any = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts: texts or token ids."""
        match self.prompt:
            case str() as text:
                return [text]
            case [int(), *_] as ids:
                return [[token for token in ids if isinstance(token, int)]]
            case several:
                return [each for each in several if isinstance(each, str | list)]


class CompletionLogprobs(Reply):
    r"""Tokens of an answer: lists of the same length.

    Tokens that are no whole characters are written `bytes:\xe2\x80`; an offset is the number of
    characters of the choice's text before the token.
    """

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Reply):
    """One of the answers; several prompts' answers stand in the prompts' order."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class Completion(Reply):
    """The reply of POST /v1/completions, and each chunk of its stream.

    `coinkv` is an object for one prompt, a list of them for several; in a stream it comes with the
    first chunk of a choice.
    """

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    coinkv: Timing | list[Timing] | None = None
