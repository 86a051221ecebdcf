"""Documents over HTTP: listed, read by ranges, uploaded, removed."""

from __future__ import annotations

from typing import Annotated, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import JSONResponse, Response

from coinkv.errors import InputError
from coinkv.serve.api.declared import errors_declared, reply_declared
from coinkv.serve.api.jobs import JobReply, job_facts, job_reply
from coinkv.serve.api.received import UPLOAD_BODY, received
from coinkv.serve.api.schemas.generation import Reply
from coinkv.serve.library.library import Library
from coinkv.serve.library.names import INDEX_NAME
from coinkv.serve.security.access import namespace_of
from coinkv.serve.service import Service

router = APIRouter(prefix="/v1/indexes/{name}/documents", tags=["documents"])

_MOST_LISTED = 1000
# Threads of their own: uploads that wait for their turn must not keep other routes from running.
_UPLOADS = CapacityLimiter(16)


class DocumentEntry(Reply):
    """A document without its text."""

    id: str
    title: str
    characters: int
    chunks: int


class DocumentList(Reply):
    """The reply of GET /v1/indexes/NAME/documents."""

    object: Literal["list"]
    data: list[DocumentEntry]
    has_more: bool


class DocumentReply(Reply):
    """A document, with the characters from `start` to `end` of its text."""

    id: str
    title: str
    text: str
    start: int
    end: int
    characters: int


@router.get("", summary="List documents", responses=reply_declared(DocumentList))
def list_documents(
    name: str,
    request: Request,
    namespace: Annotated[str, Depends(namespace_of)],
    after: Annotated[str, Query(description="The last id of the page before.")] = "",
    limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 100,
) -> DocumentList:
    """Published documents by id; pages follow one another by `after`."""
    found, has_more = _library(request).documents(namespace, name, after=after, limit=limit)
    entries = [
        DocumentEntry(id=each.key, title=each.title, characters=each.characters, chunks=each.chunks)
        for each in found
    ]
    return DocumentList(object="list", data=entries, has_more=has_more)


@router.post(
    "",
    summary="Add documents",
    response_model=None,
    responses={
        202: {"description": "They are kept, and being indexed.", "model": JobReply},
        **errors_declared(),
    },
    openapi_extra=UPLOAD_BODY,
)
async def add_documents(
    name: Annotated[str, Path(pattern=f"^{INDEX_NAME}$")],
    request: Request,
    namespace: Annotated[str, Depends(namespace_of)],
) -> Response:
    """Add documents, or replace those of the same ids; makes the index if there is none.

    What cannot be read is skipped, with the reason. Questions see the documents as soon as the job
    is done. Uploads that come while one is being indexed share the next job.
    """
    service: Service = request.app.state.service
    library = service.library
    async with received(request, service.settings) as files:
        job = await to_thread.run_sync(library.add, namespace, name, files, limiter=_UPLOADS)
    return JSONResponse(job_facts(job), status_code=202)


@router.get("/{key:path}", summary="Read a document", responses=reply_declared(DocumentReply))
def get_document(
    name: str,
    key: str,
    request: Request,
    namespace: Annotated[str, Depends(namespace_of)],
    start: Annotated[int, Query(ge=0, description="First character.")] = 0,
    end: Annotated[int | None, Query(ge=0, description="One past the last one.")] = None,
) -> DocumentReply:
    """A published document, or the part of it that evidence refers to."""
    document = _library(request).document(namespace, name, key)
    characters = len(document.text)
    last = characters if end is None else min(end, characters)
    if end is not None and start > end:
        raise InputError(f"start is {start}, end is {end}", hint="give an end behind the start")
    first = min(start, last)
    return DocumentReply(
        id=document.key,
        title=document.title,
        text=document.text[first:last],
        start=first,
        end=last,
        characters=characters,
    )


@router.delete(
    "/{key:path}",
    summary="Remove a document",
    status_code=202,
    responses={
        202: {"description": "It is being removed.", "model": JobReply},
        **errors_declared(),
    },
)
def remove_document(
    name: str, key: str, request: Request, namespace: Annotated[str, Depends(namespace_of)]
) -> JobReply:
    """Remove a document; questions see it until the job is done."""
    return job_reply(_library(request).remove(namespace, name, key))


def _library(request: Request) -> Library:
    library: Library = request.app.state.service.library
    return library
