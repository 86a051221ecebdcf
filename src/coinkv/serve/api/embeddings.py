"""Embeddings: the vectors that indexes are searched with."""

from __future__ import annotations

import base64
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from numpy.typing import NDArray
from starlette.responses import JSONResponse

from coinkv.errors import InputError
from coinkv.serve.api.answers import CLIENT_LEFT
from coinkv.serve.api.bodies import JsonRoute
from coinkv.serve.api.declared import reply_declared
from coinkv.serve.api.schemas.embeddings import EmbeddingList, EmbeddingRequest
from coinkv.serve.api.tickets import unless_left
from coinkv.serve.security.access import client_of, namespace_of
from coinkv.serve.service import Service

router = APIRouter(prefix="/v1", tags=["embeddings"], route_class=JsonRoute)


@router.post(
    "/embeddings",
    summary="Embed texts",
    response_model=None,
    responses=reply_declared(EmbeddingList),
)
async def embeddings(
    body: EmbeddingRequest,
    request: Request,
    namespace: Annotated[str, Depends(namespace_of)],
    client: Annotated[str, Depends(client_of)],
) -> Response:
    """Vectors of length 1 of one or more texts."""
    service: Service = request.app.state.service
    models, texts = service.models, body.texts
    info = models.find(namespace, body.model)
    if info.kind != "embedder":
        raise InputError(
            f"{info.id} is no embedder", where="model", hint=f"use {models.embedder_name}"
        )
    if body.dimensions not in (None, models.embedder.dimension):
        raise InputError(
            f"{info.id} gives {models.embedder.dimension} dimensions",
            where="dimensions",
            hint="leave it out",
        )

    def embedded() -> dict[str, Any]:
        vectors = models.embed(texts)
        tokens = sum(len(service.backbone.tokenize(text).ids) for text in texts)
        base64_wanted = body.encoding_format == "base64"
        return _reply(info.id, vectors, tokens, base64_wanted=base64_wanted)

    work = service.scheduler.call(
        client, embedded, deadline_seconds=service.settings.deadline_seconds
    )
    reply = await unless_left(request, work)
    if reply is None:
        return Response(status_code=CLIENT_LEFT)
    request.state.charge(reply["usage"]["total_tokens"])
    return JSONResponse(reply)


def _reply(
    model: str, vectors: NDArray[np.float32], tokens: int, *, base64_wanted: bool
) -> dict[str, Any]:
    return {
        "object": "list",
        "model": model,
        "data": [
            {
                "object": "embedding",
                "index": number,
                "embedding": _base64(vector) if base64_wanted else vector.tolist(),
            }
            for number, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _base64(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
