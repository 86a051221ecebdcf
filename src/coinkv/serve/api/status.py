"""The server's own state, for the page and for whoever looks after it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Request

import coinkv
from coinkv.serve.api.declared import reply_declared
from coinkv.serve.api.schemas.listings import Limits, LoadReply, Status
from coinkv.serve.engines.models import public_name
from coinkv.serve.security.access import namespace_of
from coinkv.serve.service import Service
from coinkv.serve.settings import ServeSettings

router = APIRouter(prefix="/v1", tags=["status"])


@router.get("/status", summary="Look at the server", responses=reply_declared(Status))
def status(request: Request, _namespace: Annotated[str, Depends(namespace_of)]) -> Status:
    """Model, version, limits and load; while the model is loaded, without what it decides."""
    service: Service = request.app.state.service
    known = service.ready
    return Status(
        object="status",
        version=coinkv.__version__,
        model=public_name(service.settings.model),
        context_length=service.backbone.context_length if known else None,
        embedder=service.models.embedder_name if known else None,
        ready=known,
        needs_key=request.app.state.needs_key(),
        load=LoadReply(**asdict(service.scheduler.load())) if known else None,
        limits=_limits(service.settings),
    )


def _limits(settings: ServeSettings) -> Limits:
    return Limits(**{name: getattr(settings, name) for name in Limits.model_fields})
