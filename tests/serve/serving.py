"""A real server on loopback, in a thread of the test, over a tiny model."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from coinkv.model.backbone import Backbone
from coinkv.serve.security.connections import connection_options
from coinkv.serve.service import Service
from coinkv.serve.settings import ServeSettings

START_SECONDS = 60.0


@dataclass(frozen=True)
class Running:
    """A server that answers at `url`, and what it shares with the test."""

    url: str
    service: Service
    loop: asyncio.AbstractEventLoop


@contextlib.contextmanager
def running(settings: ServeSettings, backbone: Backbone) -> Iterator[Running]:
    """Serve inside the block; gracefully ended behind it."""
    from coinkv.serve.app import create_app

    service = Service(settings, backbone)
    config = uvicorn.Config(
        create_app(service),
        host="127.0.0.1",
        port=0,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
        **connection_options(),
    )
    server = uvicorn.Server(config)
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="test-server")
    thread.start()
    try:
        _wait_until(lambda: bool(server.started and service.ready), service)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Running(f"http://127.0.0.1:{port}", service, loops[0])
    finally:
        server.should_exit = True
        thread.join(30)


def _wait_until(ready: object, service: Service) -> None:
    ends = time.monotonic() + START_SECONDS
    while not ready():  # type: ignore[operator]
        if service.failure is not None:
            raise service.failure
        if time.monotonic() > ends:
            raise TimeoutError("the server did not start")
        time.sleep(0.01)


def settings_for(folder: Path, **chosen: object) -> ServeSettings:
    """Settings that keep everything in a folder of the test, and are small."""
    given = {
        "data_dir": folder / "data",
        "memory_bytes": 50_000_000,
        "disk_bytes": None,
        "repair": "selective",
        "port": 0,
    }
    return ServeSettings(**{**given, **chosen})  # type: ignore[arg-type]
