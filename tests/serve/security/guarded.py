"""A small application behind the guards, in this process or on a socket of loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, StreamingResponse
from fastapi.testclient import TestClient

from coinkv.serve.security.access import client_of, namespace_of
from coinkv.serve.security.connections import BoundedH11, connection_options
from coinkv.serve.security.install import install
from coinkv.serve.settings import ServeSettings
from raw_http import until_closed


def guarded_app(settings: ServeSettings) -> FastAPI:
    """Routes that tell what they were given, and one that does not look at its body."""
    app = FastAPI()

    @app.get("/v1/who")
    @app.post("/v1/who", operation_id="post_who")
    async def who(request: Request):
        return {"namespace": namespace_of(request), "client": client_of(request)}

    @app.post("/v1/length")
    @app.post("/v1/indexes/{name}/documents")
    async def length(request: Request):
        return {"bytes": len(await request.body())}

    @app.post("/v1/deaf")
    async def deaf():
        return {"heard": False}

    @app.post("/v1/spend")
    async def spend(request: Request, tokens: int):
        request.state.charge(tokens)
        return {"tokens": tokens}

    @app.get("/v1/flood")
    async def flood():
        async def pieces():
            for _ in range(20_000):
                yield b"x" * 10_000

        return StreamingResponse(pieces())

    @app.get("/v1/texts/{key:path}")
    async def text(key: str):
        return {"key": key}

    @app.get("/metrics")
    @app.get("/healthz")
    @app.get("/assets/page.js")
    @app.get("/")
    async def plain():
        return PlainTextResponse("plain")

    app.state.keys = install(app, settings)
    return app


def client_of_app(settings: ServeSettings, **options) -> TestClient:
    """A client whose requests reach the application without a socket."""
    options.setdefault("base_url", "http://localhost:8000")
    return TestClient(guarded_app(settings), **options)


@contextmanager
def served(app: FastAPI, protocol: type[BoundedH11] = BoundedH11) -> Iterator[Server]:
    """The application under uvicorn, on a free port of loopback, in a thread."""
    options = {**connection_options(), "http": protocol}
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, **options)
    running = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=running.run, args=([listener],), daemon=True)
    thread.start()
    server = Server(listener.getsockname()[1], running)
    try:
        server.wait_until_up()
        yield server
    finally:
        running.should_exit = True
        thread.join(10)


class Server:
    """Where the application answers, and its open connections and requests."""

    def __init__(self, port: int, running: uvicorn.Server) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.running = running

    @property
    def connections(self) -> int:
        return len(self.running.server_state.connections)

    @property
    def requests(self) -> int:
        return len(self.running.server_state.tasks)

    def wait_until_up(self) -> None:
        for _ in range(6_000):
            try:
                httpx.get(f"{self.url}/healthz")
                return
            except httpx.TransportError:
                asyncio.run(asyncio.sleep(0.01))
        raise AssertionError("the server did not come up")

    def open(self) -> socket.socket:
        """A connection of one's own; reading from it fails after a minute."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def tell(self, sent: bytes) -> bytes:
        """All that the server answers to some bytes until it closes the connection."""
        with self.open() as connection:
            connection.sendall(sent)
            return until_closed(connection)


def code_of(reply: httpx.Response) -> str:
    """The code in an error object, which must be whole."""
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["code"]
