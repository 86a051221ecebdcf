"""The body of a request: so large and so slow it may be, and what is left of it when it is not."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coinkv.serve.security.refusal import Refusal
from coinkv.serve.settings import ServeSettings

BODY_SECONDS = 20.0
"""How long a client may let us wait for a body, all waits together, whatever it has sent."""
BODY_BYTES_PER_SECOND = 10_000
"""How much it must have sent for each further second."""
LINGER_SECONDS = 2.0
"""How long a reply that came before the end of a body waits for that end."""

_UPLOAD = re.compile(r"/v1/indexes/[^/]+/documents/?")
_LONGEST_NUMBER = 20


class BodyMiddleware:
    """Refuses bodies that are too large (413) or come too slowly (408).

    A body that announces its size is refused before any of it is read, another one as soon as it
    passes the limit. The time counts only while someone waits for the body: a route that reads late
    is not the client's fault.

    A connection that is closed with unread bytes is reset, and the client loses the reply it was
    about to read. So a reply that comes before the body's end is sent at once, with `Connection:
    close`; what still comes is thrown away for a while, and only then the connection is closed.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self.app = app
        self._most = settings.max_body_bytes
        self._most_uploaded = settings.max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, its body watched, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_upload = scope["method"] == "POST" and _UPLOAD.fullmatch(scope["path"])
        limit = max(self._most_uploaded, self._most) if is_upload else self._most
        announced = _announced(scope)
        body = _Body(scope, receive, send, limit, unread=announced != 0)
        if announced is not None and announced > limit:
            await body.refuse(_too_large(limit))
            return
        with suppress(ClientDisconnect):  # refused, or gone: nobody is left to answer
            await self.app(scope, body.receive, body.send)


class _Body:
    """A body on its way in, and the reply to it on its way out."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, limit: int, *, unread: bool
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._limit = limit
        self._unread = unread
        self._received = 0
        self._waited = 0.0
        self._begun = False
        self._refused = False

    async def receive(self) -> Message:
        """The next part of the body, or the client's leaving; that, too, once it is refused."""
        if self._refused:
            return {"type": "http.disconnect"}
        if not self._unread:
            return await self._receive()
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._seconds_left()):
                message = await self._receive()
        except TimeoutError:
            await self.refuse(_TOO_SLOW)
            return {"type": "http.disconnect"}
        finally:
            self._waited += time.monotonic() - began
        self._count(message)
        if self._received > self._limit:
            await self.refuse(_too_large(self._limit))
            return {"type": "http.disconnect"}
        return message

    async def send(self, message: Message) -> None:
        """Pass on a part of the application's reply; nothing of it once the body is refused."""
        if not self._refused:
            await self._reply(message)

    async def refuse(self, refusal: Refusal) -> None:
        """Answer in place of the application, unless it has begun to."""
        self._refused = True
        if not self._begun:
            await refusal(self._scope, self._receive, self._reply)

    async def _reply(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            if self._unread:
                fields = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": fields}
        elif self._unread and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def _linger(self) -> None:
        """Throw away what still comes of the body, for a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while self._unread:
                    self._count(await self._receive())

    def _seconds_left(self) -> float:
        return max(0.0, BODY_SECONDS + self._received / BODY_BYTES_PER_SECOND - self._waited)

    def _count(self, message: Message) -> None:
        self._received += len(message.get("body", b""))
        self._unread = message["type"] == "http.request" and message.get("more_body", False)


def _announced(scope: Scope) -> int | None:
    """Bytes of the body by its Content-Length, 0 without a body, None where it is not said."""
    fields = dict(scope["headers"])
    if b"transfer-encoding" in fields:
        return None
    said = fields.get(b"content-length", b"0")
    if not said.isdigit():
        return None
    return int(said[-_LONGEST_NUMBER:]) if len(said) <= _LONGEST_NUMBER else 10**_LONGEST_NUMBER


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"The body has more than {limit} bytes.", "body_too_large")


_TOO_SLOW = Refusal(
    408,
    f"The body came slower than {BODY_BYTES_PER_SECOND} bytes a second.",
    "body_too_slow",
    "timeout_error",
)
