"""What monitoring asks: does the process live, can it answer, and how is it doing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict

from coinkv.errors import NotReadyError

if TYPE_CHECKING:
    from coinkv.serve.service import Service

router = APIRouter(tags=["health"])


class Alive(BaseModel):
    """The process answers."""

    model_config = ConfigDict(extra="forbid")
    status: Literal["ok"]


class Readiness(BaseModel):
    """Whether requests are taken on, and if not, why."""

    model_config = ConfigDict(extra="forbid")
    ready: bool
    reasons: list[str]


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", summary="Does the process live?")
async def healthz() -> Alive:
    """Answer as long as the event loop turns; restart the process when it does not."""
    return Alive(status="ok")


@router.head("/readyz", include_in_schema=False)
@router.get(
    "/readyz",
    summary="Can the server answer?",
    responses={503: {"model": Readiness, "description": "Not now; the reasons say why."}},
)
async def readyz(request: Request, response: Response) -> Readiness:
    """Tell a load balancer whether to send requests here."""
    service: Service = request.app.state.service
    if service.ready:
        return Readiness(ready=True, reasons=[])
    response.status_code = 503
    return Readiness(ready=False, reasons=[_reason(service)])


def _reason(service: Service) -> str:
    try:
        service.scheduler.load()
    except NotReadyError as error:
        return str(error)
    return "the server is shutting down"


@router.get(
    "/metrics",
    summary="Figures for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(request: Request) -> Response:
    """All figures, in Prometheus' text format or in OpenMetrics where the scraper takes that."""
    text, content_type = request.app.state.metrics.exposed(request.headers.get("accept", ""))
    return Response(text, headers={"content-type": content_type})
