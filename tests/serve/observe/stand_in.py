"""A service without a model, and an app over it whose routes say what a scheduler would."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import torch
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from coinkv.errors import DeadlineError, StorageError
from coinkv.serve.api import health
from coinkv.serve.observe.install import install
from coinkv.serve.observe.metrics import Metrics
from coinkv.serve.scheduler.events import Began, Done, Failed, Token
from coinkv.serve.scheduler.limits import Load
from coinkv.serve.scheduler.task import Begun
from coinkv.serve.settings import ServeSettings

SECRET = "xyzzy-the-clients-own-words"


def begun(**changes: Any) -> Begun:
    """A prompt of 50 tokens, 40 of them reused."""
    given: dict[str, Any] = {
        "cache": None,
        "logits": torch.zeros(1, 4),
        "prompt_tokens": 50,
        "cached_tokens": 40,
        "ttft_seconds": 0.3,
        "stages_seconds": {"plan": 0.1, "prefill": 0.2},
        "facts": {"reuse": {"exact": 30, "moved": 10, "repaired": 4, "computed": 6}},
    }
    return Begun(**given | changes)


def question(**changes: Any) -> Begun:
    facts = {"method": "coinrag", "question": SECRET, "evidence": [SECRET]}
    stages = {"embed": 0.1, "retrieve": 0.05, "read": 0.05, "prefill": 0.1}
    return begun(**{"facts": facts, "stages_seconds": stages} | changes)


MEMORY = {"blocks": 3, "bytes": 300, "budget_bytes": 1000, "hits": 7, "evictions": 1}
DISK = {"blocks": 9, "bytes": 900, "budget_bytes": None, "hits": 2, "evictions": 0}
STORE: dict[str, Any] = {
    "tiers": [{"name": "memory", **MEMORY}, {"name": "disk", **DISK}],
    "misses": 4,
    "hit_rate": 9 / 13,
    "damaged": 1,
    "runs": 9,
    "exact_runs": 8,
    "tokens": 500,
    "prompts": 12,
    "reuse": {"exact": 30, "moved": 10, "repaired": 4, "computed": 6},
    "reuse_rate": 0.8,
    "indexes": [{"id": "law", "documents": 3, "chunks": 6, "kv_bytes": 1_000}],
}


@dataclass
class StandIn:
    """Has of a `Service` what observing it needs."""

    settings: ServeSettings = field(default_factory=lambda: ServeSettings(model="tiny"))
    metrics: Metrics = field(default_factory=Metrics)
    ready: bool = True
    backbone_name: str = "tiny"
    broken_store: bool = False
    states: tuple[str, ...] = ("running", "waiting", "waiting")

    @property
    def scheduler(self) -> StandIn:
        return self

    models = library = scheduler

    def load(self) -> Load:
        return Load(5, 2, 1, 3, 4096, 16)

    def store(self, namespace: str) -> dict[str, Any]:
        if self.broken_store:
            raise StorageError("the disk refuses")
        return STORE

    def jobs(self) -> list[Any]:
        return [_Job(state) for state in self.states]


@dataclass(frozen=True)
class _Job:
    state: str


def app_over(service: StandIn) -> FastAPI:
    app = FastAPI()
    app.state.service = service
    app.include_router(health.router)

    @app.post("/v1/answers/{name:path}")
    async def answers(name: str, request: Request) -> dict[str, str]:
        request.state.client, request.state.namespace = "ann", "law"
        body = await request.body()
        _tell(service, Began(0.01, question()))
        _tell(service, Token(0, SECRET, 5), Token(0, SECRET, None), Done(SECRET, 0.02))
        return {"answer": body.decode(errors="replace") + name}

    @app.post("/v1/streams")
    async def streams() -> StreamingResponse:
        async def pieces() -> Any:
            _tell(service, Began(0.01, begun()))
            yield f"data: {json.dumps(SECRET)}\n\n"
            await asyncio.sleep(0)
            _tell(service, Failed(DeadlineError("not done in 1 s")))
            yield "data: [DONE]\n\n"

        return StreamingResponse(pieces(), media_type="text/event-stream")

    @app.get("/v1/endless")
    async def endless() -> StreamingResponse:
        async def pieces() -> Any:
            while True:
                yield "data: more\n\n"
                await asyncio.sleep(0.01)

        return StreamingResponse(pieces())

    @app.post("/v1/faults")
    async def faults(request: Request) -> None:
        raise KeyError((await request.body()).decode())

    @app.post("/v1/broken-streams")
    async def broken_streams() -> StreamingResponse:
        async def pieces() -> Any:
            yield "data: one\n\n"
            raise ValueError(SECRET)

        return StreamingResponse(pieces())

    @app.get("/v1/threads")
    def threads() -> dict[str, Any]:
        import structlog

        return dict(structlog.contextvars.get_contextvars())

    install(app, service)  # type: ignore[arg-type]
    return app


def _tell(service: StandIn, *events: Any) -> None:
    for event in events:
        service.metrics.heard(event)
