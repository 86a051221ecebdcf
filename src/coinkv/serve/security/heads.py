"""The head of a request: one that is too large, or means two things at once, goes no further."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from coinkv.serve.security.refusal import Refusal

MOST_FIELDS = 100
MOST_FIELD_BYTES = 16_384
MOST_TARGET_BYTES = 8_192

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TARGET_TOO_LONG = Refusal(
    414, f"The address has more than {MOST_TARGET_BYTES} bytes.", "address_too_long"
)
_FIELDS_TOO_LARGE = Refusal(
    431,
    f"The header has more than {MOST_FIELDS} fields or {MOST_FIELD_BYTES} bytes.",
    "header_too_large",
)
_TWO_LENGTHS = Refusal(
    400, "Content-Length and Transfer-Encoding exclude each other.", "ambiguous_length"
)
_NOT_TEXT = Refusal(400, "The path is not UTF-8 text without control characters.", "path_not_text")


class HeadMiddleware:
    """Refuses requests by their first lines.

    Both kinds of length at once are a request that a proxy in front may end at another byte than we
    do (request smuggling, RFC 9112 section 6.1). Control characters in a path (NUL, line ends) mean
    something to file systems, logs and headers, and nothing to any route.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        refusal = _judged(scope) if scope["type"] == "http" else None
        await (refusal or self.app)(scope, receive, send)


def _judged(scope: Scope) -> Refusal | None:
    raw_path = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
    if len(raw_path) + len(scope["query_string"]) > MOST_TARGET_BYTES:
        return _TARGET_TOO_LONG
    fields = scope["headers"]
    size = sum(len(name) + len(value) for name, value in fields)
    if len(fields) > MOST_FIELDS or size > MOST_FIELD_BYTES:
        return _FIELDS_TOO_LARGE
    names = {name for name, _ in fields}
    if {b"content-length", b"transfer-encoding"} <= names:
        return _TWO_LENGTHS
    try:
        path = unquote_to_bytes(raw_path).decode("utf-8")
    except UnicodeDecodeError:
        return _NOT_TEXT
    return _NOT_TEXT if _CONTROL.search(path) else None
