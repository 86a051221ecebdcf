"""The way of an answer to its client: all at once, or chunk by chunk as it is decoded."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from typing import Any

import anyio
from fastapi import Request
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from coinkv.errors import CoinKVError
from coinkv.serve.api.errors import Failure, failure_of
from coinkv.serve.api.tickets import Tickets, unless_left
from coinkv.serve.scheduler.events import Event, Failed

PING_SECONDS = 15
"""Between signs of life of a stream; also the longest that its headers wait for an event."""
CLIENT_LEFT = 499
"""Status of a reply that nobody gets, as in nginx; for the log."""


class Writer(ABC):
    """Turns the events of a request into chunks, and at the end into a whole reply."""

    @abstractmethod
    def note(self, number: int, event: Event) -> None:
        """Take in an event of a ticket."""

    @abstractmethod
    def chunks(self, number: int, event: Event) -> Iterable[dict[str, Any]]:
        """What a stream says of an event that was just noted."""

    @abstractmethod
    def last_chunks(self) -> Iterable[dict[str, Any]]:
        """What a stream says when all events are noted."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The reply without a stream, when all events are noted."""

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Tokens of prompts and answers so far."""


async def answer(
    request: Request, tickets: Tickets, writer: Writer, *, streamed: bool, grace_seconds: float
) -> Response:
    """The reply to a request, given up as soon as its client leaves.

    A stream begins with the first event, so that a prompt that fails still gets a status of its
    own; a prompt that takes longer than `PING_SECONDS` gets its headers before.

    Args:
        request: whose body has been read.
        tickets: of its prompts; closed here.
        writer: of its format.
        streamed: as events, or as one object.
        grace_seconds: how long a stream may go on when the server shuts down.

    Raises:
        CoinKVError: the request failed.
    """
    handed_over = False
    try:
        if not streamed:
            reply = await unless_left(request, _gathered(tickets, writer))
            return Response(status_code=CLIENT_LEFT) if reply is None else JSONResponse(reply)
        if await unless_left(request, tickets.wait(PING_SECONDS)) is None:
            return Response(status_code=CLIENT_LEFT)
        handed_over = True
        return AnswerStream(request, tickets, writer, grace_seconds)
    finally:
        if not handed_over:
            _settle(request, tickets, writer)


async def _gathered(tickets: Tickets, writer: Writer) -> dict[str, Any]:
    async for number, event in tickets:
        if isinstance(event, Failed):
            raise event.error
        writer.note(number, event)
    return writer.whole()


def _settle(request: Request, tickets: Tickets, writer: Writer) -> None:
    """Free what the request holds, and charge its client for what was computed."""
    tickets.close()
    request.state.charge(writer.tokens)


class AnswerStream(EventSourceResponse):
    """An answer as server-sent events; settles the request however it ends."""

    def __init__(
        self, request: Request, tickets: Tickets, writer: Writer, grace_seconds: float
    ) -> None:
        self._settled = request, tickets, writer
        super().__init__(
            _events(tickets, writer),
            ping=PING_SECONDS,
            ping_message_factory=lambda: ServerSentEvent(comment="ping", sep="\n"),
            sep="\n",
            # else the library ends every stream as soon as the server is told to stop
            shutdown_event=anyio.Event(),
            shutdown_grace_period=grace_seconds,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            _settle(*self._settled)


async def _events(tickets: Tickets, writer: Writer) -> AsyncIterator[bytes]:
    try:
        async for number, event in tickets:
            if isinstance(event, Failed):
                raise event.error
            writer.note(number, event)
            for chunk in writer.chunks(number, event):
                yield _event(chunk)
        for chunk in writer.last_chunks():
            yield _event(chunk)
        yield b"data: [DONE]\n\n"
    except CoinKVError as error:
        yield _event(failure_of(error).body())
        yield b"data: [DONE]\n\n"
    except Exception:
        yield _event(Failure(500, "server_error", "the server failed; its log says why").body())
        yield b"data: [DONE]\n\n"
        raise


def _event(chunk: dict[str, Any]) -> bytes:
    # in ASCII: some clients take U+2028 and its like for the end of a line
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"
