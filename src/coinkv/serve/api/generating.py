"""From the body of a generating request to what the scheduler is given."""

from __future__ import annotations

from collections.abc import Sequence

from coinkv.errors import InputError
from coinkv.model.decode import Sampling
from coinkv.serve.api.schemas.generation import GenerationRequest
from coinkv.serve.settings import ServeSettings


def samplings_of(
    body: GenerationRequest, asked_tokens: int | None, settings: ServeSettings, field: str
) -> list[Sampling]:
    """How each choice is decoded; choice number i takes the seed of the first, plus i.

    Args:
        body: the request.
        asked_tokens: most tokens of an answer, if the body says so.
        settings: the server's limits.
        field: the body's field that says it.

    Raises:
        InputError: it asks for longer answers than the server gives.
    """
    if asked_tokens is not None and asked_tokens > settings.most_answer_tokens:
        raise InputError(
            f"at most {settings.most_answer_tokens} tokens of an answer may be asked for",
            where=field,
        )
    return [
        Sampling(
            max_tokens=settings.answer_tokens if asked_tokens is None else asked_tokens,
            temperature=float(body.temperature or 0),
            top_p=1.0 if body.top_p is None else float(body.top_p),
            stop=body.stops,
            seed=None if body.seed is None else (body.seed + number) % 2**64,
        )
        for number in range(body.n or 1)
    ]


def deadline_of(body: GenerationRequest, settings: ServeSettings) -> float:
    """Seconds a request has: what it says, but no more than the server gives."""
    return min(body.deadline_seconds or settings.deadline_seconds, settings.deadline_seconds)


def only_for(whom: str, body: GenerationRequest, fields: Sequence[str]) -> None:
    """Refuse fields that this model has no use for.

    Raises:
        InputError: one of them is given.
    """
    for field in fields:
        if getattr(body, field) is not None:
            raise InputError(f"it is only for {whom}", where=field, hint="leave it out")
