"""What is wrong with a body that does not fit its schema, as one sentence about one field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from coinkv.serve.api.schemas.generation import TOO_MANY_FIELDS

_NOT_HONOURED = frozenset(
    {
        "audio",
        "best_of",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "modalities",
        "moderation",
        "prediction",
        "presence_penalty",
        "reasoning_effort",
        "response_format",
        "suffix",
        "tool_calls",
        "tool_choice",
        "tools",
        "verbosity",
        "web_search_options",
    }
)
"""Fields of OpenAI's API that are accepted only at values that change nothing."""


@dataclass(frozen=True)
class Fault:
    """What was wrong, and the path of the field that is to blame (none for a whole body)."""

    message: str
    param: str | None


def fault_of(errors: Sequence[Any], body: Any) -> Fault:
    """The error that says most. Of a value that may be of several kinds, pydantic tells what keeps
    it from being each of them: the nearest kind is one that it is of, or else the one that leads
    deepest into the body.

    Args:
        errors: pydantic's, at least one.
        body: the parsed body.
    """
    paths = [tuple(_path(error, body)) for error in errors]
    ranks = [
        (not error["type"].endswith("_type"), len(path))
        for error, path in zip(errors, paths, strict=True)
    ]
    nearest = ranks.index(max(ranks))
    error, path = errors[nearest], paths[nearest]
    if error["type"] == TOO_MANY_FIELDS and not path:
        return Fault("the body has too many fields", None)
    if not path:
        what = "there is no body" if error["type"] == "missing" else "the body is no JSON object"
        return Fault(f"{what}; send one, with content-type application/json", None)
    param = path[0] + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path[1:])
    return Fault(f"{param}: {_sentence(error, str(path[-1]))}", param)


def _path(error: Any, body: Any) -> Iterator[Any]:
    """The part of an error's location that leads through the body, without names of unions."""
    where, here = error["loc"][1:], body
    if error["loc"][0] != "body":
        yield from where
        return
    for part in where:
        if _holds(here, part):
            here = here[part]
            yield part
        elif error["type"] == "missing" and part == where[-1]:
            yield part


def _holds(here: Any, part: Any) -> bool:
    if isinstance(here, dict):
        return part in here
    return isinstance(here, list) and isinstance(part, int) and part < len(here)


def _sentence(error: Any, name: str) -> str:
    if error["type"] == "extra_forbidden":
        return "there is no such field; leave it out"
    if error["type"] == "missing":
        return "it is missing"
    if name in _NOT_HONOURED:
        return "this server cannot honour it; leave it out"
    message: str = error["msg"]
    return message[:1].lower() + message[1:]
