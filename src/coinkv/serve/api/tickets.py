"""Tickets of one request, heard together for as long as its client listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar

from fastapi import Request

from coinkv.serve.scheduler.events import Event, Failed
from coinkv.serve.scheduler.ticket import Ticket

T = TypeVar("T")


class Tickets:
    """Iterate once for `(number of the ticket, event)`, in the order in which events come.

    Made and used on one event loop. `close` it whatever happens: it gives up what is not done.

    Args:
        tickets: of the prompts of one request.
    """

    def __init__(self, tickets: Sequence[Ticket]) -> None:
        self._tickets = tickets
        self._heard: asyncio.Queue[tuple[int, Event] | BaseException | None] = asyncio.Queue()
        self._first: list[tuple[int, Event]] = []
        self._listeners = [
            asyncio.create_task(self._listen(number, ticket))
            for number, ticket in enumerate(tickets)
        ]

    async def _listen(self, number: int, ticket: Ticket) -> None:
        try:
            async for event in ticket:
                self._heard.put_nowait((number, event))
            self._heard.put_nowait(None)
        except Exception as error:  # noqa: BLE001 - raised where the events are read
            self._heard.put_nowait(error)

    async def wait(self, seconds: float) -> bool:
        """Wait for the first event, but no longer than this; whether one came.

        Raises:
            CoinKVError: the first event is a failure.
        """
        try:
            first = await asyncio.wait_for(self._next(), seconds)
        except TimeoutError:
            return False
        if first is not None:
            self._first.append(first)
            if isinstance(first[1], Failed):
                raise first[1].error
        return True

    async def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        for each in self._first:
            yield each
        ended = 0
        while ended < len(self._tickets):
            heard = await self._next()
            if heard is None:
                ended += 1
            else:
                yield heard

    async def _next(self) -> tuple[int, Event] | None:
        """The next event; None when a ticket has no more."""
        heard = await self._heard.get()
        if isinstance(heard, BaseException):
            raise heard
        return heard

    def close(self) -> None:
        """Give up what is not done: its slots are free within one step."""
        for ticket in self._tickets:
            ticket.cancel()
        for listener in self._listeners:
            listener.cancel()


async def unless_left(request: Request, work: Awaitable[T]) -> T | None:
    """The outcome of some work, or None as soon as the client has left.

    Args:
        request: whose body has been read.
        work: what is waited for; cancelled when the client leaves.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for each in (working, leaving):
            each.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
