"""Indexes over HTTP: which there are, how they are, a new one, one less."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from coinkv.serve.api.bodies import JsonRoute
from coinkv.serve.api.declared import errors_declared, reply_declared
from coinkv.serve.api.jobs import JobReply, job_reply
from coinkv.serve.api.schemas.generation import Body, Reply
from coinkv.serve.engines.models import INDEX_PREFIX
from coinkv.serve.library.entries import IndexEntry, IndexState
from coinkv.serve.library.library import Library
from coinkv.serve.library.names import INDEX_NAME
from coinkv.serve.security.access import namespace_of

router = APIRouter(prefix="/v1", tags=["indexes"], route_class=JsonRoute)


class NewIndex(Body):
    """An index to be made."""

    name: Annotated[str, Field(pattern=f"^{INDEX_NAME}$")]


class IndexReply(Reply):
    """An index: what is published, and the job that runs, waits or ended last."""

    id: str
    object: Literal["index"]
    model: str
    state: IndexState
    writable: bool
    removable: bool
    follows: bool
    documents: int
    chunks: int
    nuggets: int
    tokens: int
    kv_bytes: int
    generation: int
    job: JobReply | None
    error: str | None


class IndexList(Reply):
    """The reply of GET /v1/indexes."""

    object: Literal["list"]
    data: list[IndexReply]


class DeletedIndex(Reply):
    """The reply of DELETE /v1/indexes/NAME."""

    id: str
    object: Literal["index"]
    deleted: Literal[True]


@router.get("/indexes", summary="List indexes", responses=reply_declared(IndexList))
def list_indexes(request: Request, namespace: Annotated[str, Depends(namespace_of)]) -> IndexList:
    """The indexes of the key's namespace, by name."""
    entries = _library(request).entries(namespace)
    return IndexList(object="list", data=[_reply(entry) for entry in entries])


@router.post(
    "/indexes",
    summary="Make an index",
    responses={
        200: {"description": "There is one of this name already.", "model": IndexReply},
        201: {"description": "It has been made, and is empty.", "model": IndexReply},
        **errors_declared(),
    },
)
def make_index(
    body: NewIndex,
    request: Request,
    response: Response,
    namespace: Annotated[str, Depends(namespace_of)],
) -> IndexReply:
    """Make an empty index; an upload makes one as well."""
    entry, is_new = _library(request).create(namespace, body.name)
    response.status_code = 201 if is_new else 200
    return _reply(entry)


@router.get("/indexes/{name}", summary="Look an index up", responses=reply_declared(IndexReply))
def get_index(
    name: str, request: Request, namespace: Annotated[str, Depends(namespace_of)]
) -> IndexReply:
    """One of the indexes."""
    return _reply(_library(request).entry(namespace, name))


@router.delete("/indexes/{name}", summary="Delete an index", responses=reply_declared(DeletedIndex))
def delete_index(
    name: str, request: Request, namespace: Annotated[str, Depends(namespace_of)]
) -> DeletedIndex:
    """Delete an index with its documents. Its jobs end; answers under way are finished."""
    _library(request).drop(namespace, name)
    return DeletedIndex(id=name, object="index", deleted=True)


def _reply(entry: IndexEntry) -> IndexReply:
    contents = entry.contents
    return IndexReply(
        id=entry.name,
        object="index",
        model=f"{INDEX_PREFIX}{entry.name}",
        state=entry.state,
        writable=entry.writable,
        removable=entry.removable,
        follows=entry.follows,
        documents=contents.documents,
        chunks=contents.chunks,
        nuggets=contents.nuggets,
        tokens=contents.tokens,
        kv_bytes=contents.kv_bytes,
        generation=contents.generation,
        job=None if entry.job is None else job_reply(entry.job),
        error=entry.error,
    )


def _library(request: Request) -> Library:
    library: Library = request.app.state.service.library
    return library
