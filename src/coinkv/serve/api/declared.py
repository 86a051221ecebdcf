"""What the OpenAPI document says of replies: their statuses, types and shapes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from pydantic import BaseModel

from coinkv.serve.api.errors import ErrorReply

_ERRORS: dict[int | str, str] = {
    400: "The request cannot be used as it is.",
    401: "An API key is needed, or this one is not valid.",
    403: "The key or the web page may not do this.",
    404: "There is no such model or index.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "The server is busy, or the client has used up what it may use; see Retry-After.",
    "4XX": "The request cannot be served for another reason.",
    500: "The server failed.",
    503: "The server starts or shuts down; see Retry-After.",
    504: "The request was not done in the time it had.",
    507: "Storage failed.",
}


EVENTS: dict[str, Any] = {
    "text/event-stream": {
        "schema": {
            "type": "object",
            "required": ["data"],
            "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
        }
    }
}
"""Content of a stream; until OpenAPI 3.2 its schema is that of each event."""


def errors_declared() -> dict[int | str, dict[str, Any]]:
    """Every error that any route may answer with; `create_app` declares them for all of them."""
    return {status: {"description": text, "model": ErrorReply} for status, text in _ERRORS.items()}


def reply_declared(
    model: type[BaseModel], *, chunk: type[BaseModel] | None = None
) -> dict[int | str, dict[str, Any]]:
    """A route's replies that are no errors.

    Args:
        model: of a whole reply.
        chunk: of each event, where the reply may be a stream.
    """
    success: dict[str, Any] = {"description": "The reply.", "model": model}
    if chunk is not None:
        success["description"] = (
            f"The reply; with `stream`, events whose data are each a {chunk.__name__} object, "
            "and `[DONE]` at the end."
        )
        success["content"] = deepcopy(EVENTS)  # the framework adds the reply's own to it
    return {200: success}


def with_keys_optional(document: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document of a server without API keys: what needs one with keys takes none."""
    document = deepcopy(document)
    for operations in document["paths"].values():
        for operation in operations.values():
            if "security" in operation:
                operation["security"] = [{}, *operation["security"]]
    return document
