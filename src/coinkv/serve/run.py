"""Run: a server process, from its settings to its graceful end."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Callable

import uvicorn

from coinkv.errors import InputError
from coinkv.methods.registry import method_named
from coinkv.model.shipped import adapter_folder
from coinkv.rag.adapters import DEFAULT_ADAPTER
from coinkv.repair.strategies import require_strategy
from coinkv.serve.app import create_app
from coinkv.serve.observe.logs import configure_logs
from coinkv.serve.security.access import require_safe_binding
from coinkv.serve.security.connections import connection_options
from coinkv.serve.security.keys import Keys
from coinkv.serve.service import Service
from coinkv.serve.settings import ServeSettings

_LAST_WORDS_SECONDS = 5


class _Server(uvicorn.Server):
    """A server that tells its service when to end, so that streams come to their end first."""

    def __init__(
        self, config: uvicorn.Config, service: Service, on_listening: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._service, self._on_listening = service, on_listening
        self._frozen = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        if self.started:
            self._on_listening()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end. A server without a model is of no use."""
        if self._service.ready and not self._frozen:
            # a request with a large body makes many objects, and each collection would go through
            # all that a loaded model consists of (measured: 0.5 s in place of 3 for 2.6 MB)
            gc.collect()
            gc.freeze()
            self._frozen = True
        return self._service.failure is not None or await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more, and close what is open once it has been answered."""
        draining = asyncio.create_task(self._service.drain())
        await super().shutdown(sockets)
        await draining


def run_server(
    settings: ServeSettings, on_listening: Callable[[str], None], service: Service | None = None
) -> None:
    """Serve until SIGINT or SIGTERM; a second one ends at once.

    Args:
        settings: how to serve.
        on_listening: told the base URL once connections are taken.
        service: what to serve; by default what the settings say.

    Raises:
        InputError: the address cannot be had, or would let anybody in.
        CoinKVError: the model could not be loaded; the server has ended.
    """
    require_safe_binding(settings, Keys(settings.data_dir))
    _require_usable(settings)
    configure_logs(settings)
    service = service or Service(settings)
    listener = _bound(settings)
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    config = uvicorn.Config(
        create_app(service),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=int(settings.shutdown_seconds) + _LAST_WORDS_SECONDS,
        **connection_options(),
    )
    server = _Server(config, service, lambda: on_listening(f"http://{host}:{port}"))
    for asked_to_end in (signal.SIGINT, signal.SIGTERM):
        # uvicorn ends gracefully, then raises the signal again for whoever listened before it
        signal.signal(asked_to_end, lambda *_: None)
    server.run(sockets=[listener])
    if service.failure is not None:
        raise service.failure


def _require_usable(settings: ServeSettings) -> None:
    """Refuse what can be seen to be wrong before anybody is told that the server listens.

    Raises:
        InputError: there is no such method, adapter, repair strategy or folder.
    """
    method_named(settings.method, settings.method_options)
    if settings.adapter not in (None, DEFAULT_ADAPTER):
        adapter_folder(settings.adapter)
    require_strategy(settings.repair)
    for folder in (*settings.indexes, *(() if settings.docs is None else (settings.docs,))):
        if not folder.expanduser().exists():
            raise InputError("there is no such folder", where=folder, hint="check the path")


def _bound(settings: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen there: {error.strerror or error}",
            where=f"{settings.host}:{settings.port}",
            hint="choose another address with --host, or another port with --port",
        ) from error
    return listener
