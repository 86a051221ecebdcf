"""What a refused request is told: one error object, before any route has seen the request."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

REFUSALS: dict[int, str] = {
    400: "The request cannot be understood.",
    401: "An API key is needed, or this one is not valid.",
    403: "The key or the web page may not do this.",
    408: "The request came too slowly.",
    413: "The body is too large.",
    414: "The address is too long.",
    421: "The server does not answer under this host name.",
    429: "The client has used up what it may use a minute.",
    431: "The header fields are too many or too large.",
}
"""What a request may be refused with before it reaches its route, by HTTP status."""


@dataclass(frozen=True)
class Refusal:
    """An ASGI application whose one answer is an error, in the format of OpenAI's API.

    Attributes:
        status: HTTP status, one of `REFUSALS`.
        message: what was wrong and what to do, in one line.
        code: the same for programs.
        type: kind of the error, as OpenAI's clients know it.
        headers: further ones of the reply.
    """

    status: int
    message: str
    code: str
    type: str = "invalid_request_error"
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The error object, JSON in UTF-8."""
        error = {"message": self.message, "type": self.type, "param": None, "code": self.code}
        return json.dumps({"error": error}).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the error; the request's body is not read."""
        reply = Response(self.body, self.status, self.headers, "application/json")
        await reply(scope, receive, send)

    def to_http(self) -> bytes:
        """A whole HTTP/1.1 response, for a connection on which no request was understood."""
        phrase = HTTPStatus(self.status).phrase
        fields = {
            "content-type": "application/json",
            "content-length": str(len(self.body)),
            "x-content-type-options": "nosniff",
            **self.headers,
            "connection": "close",
        }
        lines = [f"HTTP/1.1 {self.status} {phrase}", *(f"{k}: {v}" for k, v in fields.items())]
        return "\r\n".join([*lines, "", ""]).encode() + self.body
