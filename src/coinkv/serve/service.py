"""The service: the model, the scheduler and the indexes that all routes share."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from coinkv.config import DEFAULT_EMBEDDER
from coinkv.errors import CoinKVError, InputError, NotReadyError
from coinkv.model.backbone import Backbone
from coinkv.model.load import load
from coinkv.model.turns import Turns
from coinkv.rag.adapters import LoadedAdapter, load_adapter
from coinkv.rag.index import Index
from coinkv.serve.engines.models import Models
from coinkv.serve.engines.paced import PacedEmbedders
from coinkv.serve.library.library import Library
from coinkv.serve.observe.metrics import Metrics
from coinkv.serve.scheduler.limits import Limits
from coinkv.serve.scheduler.scheduler import Scheduler
from coinkv.serve.security.keys import DEFAULT_NAMESPACE
from coinkv.serve.settings import ServeSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Parts:
    """What a service consists of once its model is loaded."""

    backbone: Backbone
    scheduler: Scheduler
    models: Models
    library: Library


class Service:
    """Starts in the background: the server listens, and says so, while the model is loaded.

    Args:
        settings: how the server is run.
        backbone: a model that is loaded already, in place of the one that the settings name.

    Attributes:
        settings: how the server is run.
        metrics: what has been counted; the observer of the scheduler.
        failure: why the start failed, if it did.
    """

    def __init__(self, settings: ServeSettings, backbone: Backbone | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.failure: CoinKVError | None = None
        self._given = backbone
        self._parts: Parts | None = None
        self._closing = False
        self._starting: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """The model is loaded, and the server is not shutting down."""
        return self._parts is not None and not self._closing

    @property
    def parts(self) -> Parts:
        """What the service consists of.

        Raises:
            NotReadyError: the model is being loaded, or could not be.
        """
        if self._parts is None:
            if self.failure is not None:
                raise NotReadyError(f"the server could not start: {self.failure}")
            raise NotReadyError("the model is being loaded", hint="ask again in a few seconds")
        return self._parts

    @property
    def backbone(self) -> Backbone:
        """The model."""
        return self.parts.backbone

    @property
    def scheduler(self) -> Scheduler:
        """Runs the requests."""
        return self.parts.scheduler

    @property
    def models(self) -> Models:
        """What answers, by name."""
        return self.parts.models

    @property
    def library(self) -> Library:
        """The indexes."""
        return self.parts.library

    def start(self) -> None:
        """Load the model and open the indexes in the background; call it on the event loop."""
        self._starting = asyncio.create_task(self._start())

    async def started(self) -> None:
        """Wait until the service is ready.

        Raises:
            CoinKVError: it could not start.
        """
        if self._starting is not None:
            await self._starting
        if self.failure is not None:
            raise self.failure

    async def drain(self) -> None:
        """Take nothing more on, and let what streams end, as long as the settings allow."""
        self._closing = True
        if self._parts is not None:
            await self._parts.scheduler.drain(self.settings.shutdown_seconds)

    async def close(self) -> None:
        """End everything; the indexes and the reusable KV are whole at any moment."""
        self._closing = True
        if self._starting is not None:
            await asyncio.wait([self._starting])
        parts, self._parts = self._parts, None
        if parts is not None:
            await asyncio.to_thread(_close, parts)

    async def _start(self) -> None:
        try:
            self._parts = await asyncio.to_thread(self._made)
            _log.info("ready: %s is loaded", self.settings.model)
        except CoinKVError as error:
            self.failure = error
            _log.error("the server could not start: %s", error)

    def _made(self) -> Parts:
        settings = self.settings
        with ExitStack() as on_error:

            def open_index(folder: Path) -> Index:
                return Index.open(folder, model=backbone, embedder_named=embedders.named)

            library = Library(
                settings,
                open_index=open_index,
                busy=lambda: scheduler.load().busy,
                on_published=lambda: _log.info("an index is published: questions see it"),
            )
            on_error.callback(library.close)
            library.claim()
            turns = Turns(settings.pass_tokens, self._told)
            given = self._given or load(
                settings.model,
                device=settings.device,
                dtype=settings.dtype,
                max_context=settings.max_context,
            )
            backbone = replace(given, turns=turns, pass_tokens=settings.pass_tokens)
            embedders = PacedEmbedders(turns)
            embedder = embedders.named(DEFAULT_EMBEDDER)
            adapter = _adapter(settings, backbone)
            models = Models(settings, backbone, embedder, DEFAULT_EMBEDDER, library, adapter)
            models.warm(DEFAULT_NAMESPACE)
            scheduler = Scheduler(turns, _limits(settings), self.metrics)
            library.start()
            on_error.pop_all()
        return Parts(backbone, scheduler, models, library)

    def _told(self, streams: bool, tokens: int, seconds: float) -> None:
        self.metrics.step("decode" if streams else "prefill", tokens, seconds)


def _adapter(settings: ServeSettings, backbone: Backbone) -> LoadedAdapter | None:
    """The adapter that answers questions over an index, loaded once for all of them.

    Raises:
        InputError: it does not fit, or wants chunks encoded with it, which indexing does not do.
    """
    if settings.adapter is None:
        return None
    adapter = load_adapter(backbone, settings.adapter)
    if adapter is None:
        return None
    if adapter.scope == "all":
        raise InputError(
            "this adapter was trained for chunks encoded with it (scope all), and the server's "
            "indexes are encoded without",
            where=settings.adapter,
            hint="use one of scope live, or ask with: coinkv ask --adapter",
        )
    _log.info("questions over an index are answered with the adapter %s", adapter.used.name)
    return adapter


def _limits(settings: ServeSettings) -> Limits:
    return Limits(
        slots=settings.slots,
        prefills=settings.prefills,
        queue=settings.queue,
        live_tokens=settings.live_tokens,
    )


def _close(parts: Parts) -> None:
    parts.scheduler.close()
    parts.library.close()
    parts.models.close()
