"""Streams of events, over tickets that say what a test has them say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from fastapi import Request

from coinkv.errors import DeadlineError, InputError
from coinkv.serve.api import answers
from coinkv.serve.api.answers import Writer, answer
from coinkv.serve.api.tickets import Tickets
from coinkv.serve.scheduler.events import Done, Event, Failed, Token

PIECE = Token(0, "piece", 1)
DONE = Done(None, 0.0)


class Script:
    """A ticket that tells events, waits where there is a number, and raises what is an error."""

    def __init__(self, *steps: Event | float | Exception) -> None:
        self._steps = steps
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[Event]:
        for step in self._steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                yield step

    def cancel(self) -> None:
        self.cancelled = True


class Texts(Writer):
    """Writes the texts of the tokens."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, number: int, event: Event) -> None:
        if isinstance(event, Token):
            self.texts.append(f"{number}:{event.text}")

    def chunks(self, number: int, event: Event) -> Iterable[dict[str, Any]]:
        if isinstance(event, Token):
            yield {"text": f"{number}:{event.text}"}

    def last_chunks(self) -> Iterable[dict[str, Any]]:
        yield {"last": True}

    def whole(self) -> dict[str, Any]:
        return {"texts": self.texts}

    @property
    def tokens(self) -> int:
        return len(self.texts)


class Client:
    """What a server does for a client that has sent its body, and may leave."""

    def __init__(self, *, leaves_after: int | None = None) -> None:
        self.sent: list[Any] = []
        self.charged: list[int] = []
        self._left = asyncio.Event()
        self._leaves_after = leaves_after
        if leaves_after == 0:
            self._left.set()

    async def receive(self) -> Any:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if self._leaves_after is not None and len(self.bodies) >= self._leaves_after:
            self._left.set()

    @property
    def bodies(self) -> list[bytes]:
        return [m["body"] for m in self.sent if m["type"] == "http.response.body" and m["body"]]

    async def ask(self, *tickets: Script, streamed: bool = True) -> int:
        """The status of the reply; raises what the route would."""
        state = {"charge": self.charged.append}
        scope = {"type": "http", "method": "POST", "headers": [], "state": state}
        request = Request(scope, self.receive)
        heard = Tickets(tickets)  # type: ignore[arg-type]
        reply = await answer(request, heard, Texts(), streamed=streamed, grace_seconds=5)
        await reply(scope, self.receive, self.send)
        return reply.status_code

    def events(self) -> list[Any]:
        data = [body.decode().removeprefix("data: ").strip() for body in self.bodies]
        return [each if each == "[DONE]" else json.loads(each) for each in data]


def test_an_error_after_the_start_is_an_event_of_its_own():
    async def play() -> Client:
        client = Client()
        assert await client.ask(Script(PIECE, Failed(DeadlineError("too late")))) == 200
        return client

    piece, error, done = asyncio.run(play()).events()
    assert piece == {"text": "0:piece"}
    assert error["error"]["type"] == "timeout_error"
    assert done == "[DONE]"


@pytest.mark.parametrize("streamed", [True, False])
def test_an_error_before_the_start_is_raised_for_a_status_of_its_own(streamed):
    async def play() -> None:
        ticket, client = Script(Failed(InputError("too long"))), Client()
        with pytest.raises(InputError, match="too long"):
            await client.ask(ticket, streamed=streamed)
        assert ticket.cancelled
        assert client.sent == []

    asyncio.run(play())


def test_a_fault_of_the_server_is_told_in_the_stream_and_raised_for_the_log():
    async def play() -> Client:
        client = Client()
        with pytest.raises(RuntimeError, match="secret"):
            await client.ask(Script(PIECE, RuntimeError("secret")))
        return client

    piece, error, done = asyncio.run(play()).events()
    assert piece == {"text": "0:piece"}
    assert error["error"]["type"] == "server_error"
    assert "secret" not in error["error"]["message"]
    assert done == "[DONE]"


def test_a_slow_prompt_gets_its_headers_and_signs_of_life_before_its_first_event(monkeypatch):
    monkeypatch.setattr(answers, "PING_SECONDS", 0.01)

    async def play() -> Client:
        client = Client()
        assert await client.ask(Script(0.2, PIECE, DONE)) == 200
        return client

    client = asyncio.run(play())
    assert client.sent[0]["type"] == "http.response.start"
    assert client.bodies[0] == b": ping\n\n"
    rest = [body for body in client.bodies if not body.startswith(b":")]
    assert rest == [
        b'data: {"text":"0:piece"}\n\n',
        b'data: {"last":true}\n\n',
        b"data: [DONE]\n\n",
    ]


def test_a_slow_prompt_that_fails_tells_so_in_the_stream(monkeypatch):
    monkeypatch.setattr(answers, "PING_SECONDS", 0.01)

    async def play() -> Client:
        client = Client()
        assert await client.ask(Script(0.1, Failed(InputError("too long")))) == 200
        return client

    texts = [body for body in asyncio.run(play()).bodies if not body.startswith(b":")]
    assert b"too long" in texts[0]
    assert texts[1:] == [b"data: [DONE]\n\n"]


def test_events_of_several_tickets_come_as_they_are_told():
    async def play(*, streamed: bool) -> Client:
        client = Client()
        await client.ask(
            Script(0.05, PIECE, DONE), Script(PIECE, 0.1, PIECE, DONE), streamed=streamed
        )
        return client

    told = asyncio.run(play(streamed=True)).events()
    assert [each["text"] for each in told[:3]] == ["1:piece", "0:piece", "1:piece"]
    whole = asyncio.run(play(streamed=False))
    assert json.loads(whole.bodies[0]) == {"texts": ["1:piece", "0:piece", "1:piece"]}
    assert whole.charged == [3]


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("leaves_after", [0, 1])
def test_whoever_leaves_gives_up_what_was_asked_for(streamed, leaves_after):
    async def play() -> tuple[Script, Client]:
        leaving = Client(leaves_after=leaves_after if streamed else 0)
        ticket = Script(*[PIECE] * leaves_after, 60.0, DONE)
        async with asyncio.timeout(10):
            await leaving.ask(ticket, streamed=streamed)
        return ticket, leaving

    ticket, client = asyncio.run(play())
    assert ticket.cancelled
    assert len(client.charged) == 1


def test_nothing_is_left_running_when_a_client_leaves():
    async def play() -> int:
        async with asyncio.timeout(10):
            await Client(leaves_after=1).ask(Script(PIECE, 60.0, DONE), Script(60.0, DONE))
        for _ in range(5):
            await asyncio.sleep(0)
        names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
        return sum("shutdown_watcher" not in name for name in names)

    assert asyncio.run(play()) == 1  # the test's own


def test_separators_of_lines_that_are_none_for_events_do_not_cut_one():
    async def play() -> Client:
        client = Client()
        await client.ask(Script(Token(0, "a\u2028b\u0085c\r\nd", 1), DONE))
        return client

    client = asyncio.run(play())
    assert client.events()[0] == {"text": "0:a\u2028b\u0085c\r\nd"}
    assert len(client.bodies[0].decode().splitlines()) == 2
