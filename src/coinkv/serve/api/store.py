"""What is kept: reusable KV by tier, how often it was of use, and the indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict

from coinkv.serve.api.errors import ErrorReply
from coinkv.serve.security.access import namespace_of

if TYPE_CHECKING:
    from coinkv.serve.service import Service

router = APIRouter(prefix="/v1", tags=["store"])


class TierReply(BaseModel):
    """A place where reusable KV is kept; all namespaces share its budget."""

    model_config = ConfigDict(extra="forbid")
    name: str
    blocks: int
    bytes: int
    budget_bytes: int | None
    hits: int
    evictions: int


class ReuseReply(BaseModel):
    """Tokens of the namespace's prompts by where their KV came from."""

    model_config = ConfigDict(extra="forbid")
    exact: int
    moved: int
    repaired: int
    computed: int


class KeptIndex(BaseModel):
    """What an index holds, and the bytes of its KV."""

    model_config = ConfigDict(extra="forbid")
    id: str
    documents: int
    chunks: int
    kv_bytes: int


class StoreReply(BaseModel):
    """What is kept. `misses` found nothing in any tier; rates are shares from 0 to 1."""

    model_config = ConfigDict(extra="forbid")
    tiers: list[TierReply]
    misses: int
    hit_rate: float
    damaged: int
    runs: int
    exact_runs: int
    tokens: int
    prompts: int
    reuse: ReuseReply
    reuse_rate: float
    indexes: list[KeptIndex]


@router.get(
    "/store",
    summary="What is kept, and how often it was of use",
    responses={
        503: {"model": ErrorReply, "description": "The model is being loaded."},
        507: {"model": ErrorReply, "description": "The disk cannot be read."},
    },
)
def store(request: Request, namespace: Annotated[str, Depends(namespace_of)]) -> StoreReply:
    """The reusable KV and the indexes of a namespace."""
    service: Service = request.app.state.service
    return StoreReply.model_validate(service.models.store(namespace))
