"""A ticket: how a request hears what becomes of it, on its own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from coinkv.errors import DeadlineError
from coinkv.serve.scheduler.events import Done, Event, Failed
from coinkv.serve.scheduler.observer import Observer, Outcome

if TYPE_CHECKING:
    from coinkv.serve.scheduler.job import Job


class Ticket:
    """Iterate once for the events of a request; the last is `Done` or `Failed`.

    Made on the event loop that submits, and used there, but for `tell`.

    Args:
        give_up: takes the request out of the scheduler.
        observer: hears every event as the request takes it.
        deadline_seconds: after so long the request fails.
    """

    def __init__(
        self,
        give_up: Callable[[Job, Outcome], None],
        observer: Observer,
        deadline_seconds: float | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._give_up, self._observer = give_up, observer
        self._job: Job | None = None
        self._deadline_seconds = deadline_seconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self, job: Job) -> None:
        """The request is taken on: the clock of its deadline begins."""
        self._job = job
        if self._deadline_seconds is not None:
            self._timer = self._loop.call_later(self._deadline_seconds, self._expire)

    def tell(self, event: Event) -> None:
        """Pass an event on, from any thread."""
        with suppress(RuntimeError):  # the event loop has ended, and with it who would listen
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def cancel(self) -> None:
        """Give the request up: nobody listens any more."""
        self._leave("cancelled")

    async def __aiter__(self) -> AsyncIterator[Event]:
        try:
            while True:
                event = await self._events.get()
                self._observer.heard(event)
                yield event
                if isinstance(event, Done | Failed):
                    return
        finally:
            self._leave("cancelled")  # of no effect on a request that has ended

    def _expire(self) -> None:
        what = f"the request was not done within {self._deadline_seconds:g} s"
        hint = "ask for a shorter answer, or give it more time with deadline_seconds"
        self._events.put_nowait(Failed(DeadlineError(what, hint=hint)))
        self._leave("deadline")

    def _leave(self, outcome: Outcome) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._job is not None:
            self._give_up(self._job, outcome)
