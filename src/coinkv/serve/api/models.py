"""What a client may name: models and methods."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Request

from coinkv.methods.registry import method_class, method_names
from coinkv.serve.api.declared import reply_declared
from coinkv.serve.api.schemas.listings import (
    MethodEntry,
    MethodList,
    Model,
    ModelAdapter,
    ModelList,
)
from coinkv.serve.engines.models import ModelInfo
from coinkv.serve.security.access import namespace_of
from coinkv.serve.service import Service

router = APIRouter(prefix="/v1", tags=["models"])


@router.get("/models", summary="List models", responses=reply_declared(ModelList))
def list_models(request: Request, namespace: Annotated[str, Depends(namespace_of)]) -> ModelList:
    """The backbone, the indexes as `coinrag/NAME`, the embedder, and other names for them."""
    service: Service = request.app.state.service
    return ModelList(object="list", data=[_model(info) for info in service.models.list(namespace)])


@router.get("/models/{name:path}", summary="Look a model up", responses=reply_declared(Model))
def get_model(
    name: str, request: Request, namespace: Annotated[str, Depends(namespace_of)]
) -> Model:
    """One of the models."""
    service: Service = request.app.state.service
    return _model(service.models.find(namespace, name))


@router.get("/methods", summary="List methods", responses=reply_declared(MethodList))
def list_methods(request: Request, _namespace: Annotated[str, Depends(namespace_of)]) -> MethodList:
    """How questions may be answered: values of the field `method`."""
    service: Service = request.app.state.service
    return MethodList(
        object="list",
        data=[
            MethodEntry(
                id=name,
                object="method",
                note=_note(name),
                default=name == service.settings.method,
            )
            for name in method_names()
        ],
    )


def _note(name: str) -> str:
    """The first sentence of a method's documentation."""
    paragraph = (method_class(name).__doc__ or name).strip().split("\n\n")[0]
    return " ".join(paragraph.split())


def _model(info: ModelInfo) -> Model:
    return Model(
        id=info.id,
        object="model",
        created=info.created,
        owned_by="coinkv",
        kind=info.kind,
        index=info.index,
        adapter=None if info.adapter is None else ModelAdapter(**asdict(info.adapter)),
    )
