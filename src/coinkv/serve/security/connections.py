"""Connections: so many at once, so long for a request's first lines, so long without reading."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from coinkv.serve.security.heads import MOST_FIELD_BYTES, MOST_TARGET_BYTES
from coinkv.serve.security.refusal import Refusal

KEEP_ALIVE_SECONDS = 5
STALL_SECONDS = 0.2
"""A timer that runs so late says that the event loop was held up, and nothing about a client."""


class BoundedH11(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with bounds on what clients can hold without asking anything.

    uvicorn waits without end for the first lines of a request (the slow-loris attack: connections
    by the hundred, each a byte now and then) and for a client to read its reply, and it counts no
    connections. Its other parser, httptools, sets no limit to a header either.
    """

    most_connections: ClassVar[int] = 512
    most_of_a_peer: ClassVar[int] = 128
    """Connections of one address. Loopback is exempt: a proxy on this machine speaks for many."""
    head_seconds: ClassVar[float] = 10.0
    """From a connection's or a request's first byte to the end of the request's header."""
    unread_seconds: ClassVar[float] = 60.0
    """How long a client may read nothing of a reply that fills the buffers in between."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        self._received = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or refuse it: there are too many."""
        super().connection_made(transport)
        # writing pauses as soon as the system takes no more, so what is unread is always timed
        transport.set_write_buffer_limits(high=0)
        if len(self.connections) > self.most_connections or self._peer_has_too_many():
            self._refuse(_TOO_MANY)
        else:
            self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes; the time for a header runs until there is a request."""
        if self.transport.is_closing():
            return
        self._received = True
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._received = False
            _cancel(self._head_timer)
            self._head_timer = None
        elif self._head_timer is None:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        _cancel(self._head_timer)
        _cancel(self._unread_timer)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads slower than we write: it has some time to go on."""
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        """The client has read."""
        _cancel(self._unread_timer)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer to bytes that are no HTTP request."""
        self._refuse(_NOT_HTTP)

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        due = self._head_timer.when() if self._head_timer is not None else 0.0
        self._head_timer = None
        if self.loop.time() - due > STALL_SECONDS:
            self._wait_for_head()  # it is we who are late: what the client said is unread yet
        elif self._received:
            self._refuse(_HEAD_TOO_SLOW)
        else:
            self.transport.close()

    def _wait_for_reader(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(self.unread_seconds, self._reader_is_late)

    def _reader_is_late(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread_bytes:
            self._wait_for_reader()
        else:
            self.transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer in place of the application and close; within a reply of it, close only."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            if self.cycle is not None:
                self.cycle.disconnected = True  # it is heard no more, and hears that it is over
                self.cycle.message_event.set()
            self.transport.write(refusal.to_http())
        self.transport.close()

    def _peer_has_too_many(self) -> bool:
        if self.client is None or ipaddress.ip_address(self.client[0].split("%")[0]).is_loopback:
            return False
        peers = (getattr(each, "client", None) for each in self.connections)
        held = sum(1 for peer in peers if peer is not None and peer[0] == self.client[0])
        return held > self.most_of_a_peer


_TOO_MANY = Refusal(
    503,
    "There are too many connections.",
    "too_many_connections",
    "server_error",
    {"retry-after": "1"},
)
_NOT_HTTP = Refusal(400, "These bytes are no HTTP request.", "not_http")
_HEAD_TOO_SLOW = Refusal(
    408, "The request's header came too slowly.", "header_too_slow", "timeout_error"
)


def connection_options() -> dict[str, Any]:
    """What `uvicorn.Config` is to be given for the server's connections.

    No header but the TCP connection says who a client is (`proxy_headers`), and nothing is upgraded
    to a WebSocket: the server has none.
    """
    return {
        "http": BoundedH11,
        "ws": "none",
        "h11_max_incomplete_event_size": MOST_FIELD_BYTES + MOST_TARGET_BYTES,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        "proxy_headers": False,
        "server_header": False,
    }


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
