"""Jobs over HTTP: how an upload or a removal goes, asked once or watched as it happens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.responses import Response

from coinkv.serve.api.declared import EVENTS, errors_declared, reply_declared
from coinkv.serve.api.schemas.generation import Reply
from coinkv.serve.library.jobs import Job, JobKind, JobState
from coinkv.serve.library.library import Library
from coinkv.serve.security.access import namespace_of

router = APIRouter(prefix="/v1", tags=["jobs"])

MOST_LISTED = 1000
"""Most documents and skipped files that a job names: every event repeats them."""

_EVENT = {"done": "done", "failed": "failed"}


class SkippedFile(Reply):
    """A file of which nothing was taken, and why."""

    file: str
    reason: str


class JobReply(Reply):
    """A job as it is now; times are seconds since 1970. Of many documents the first are named."""

    id: str
    object: Literal["indexing.job"]
    index: str
    kind: JobKind
    state: JobState
    stage: str
    done: int
    total: int
    documents: list[str]
    error: str | None
    created: int
    finished: int | None
    skipped: list[SkippedFile]


@router.get("/jobs/{job_id}", summary="Look a job up", responses=reply_declared(JobReply))
async def get_job(
    job_id: str, request: Request, namespace: Annotated[str, Depends(namespace_of)]
) -> JobReply:
    """A job that has not ended, or one of the last that have."""
    return job_reply(_library(request).job(namespace, job_id))


@router.get(
    "/jobs/{job_id}/events",
    summary="Watch a job",
    response_model=None,
    responses={
        200: {
            "description": "Events `progress`, and at the end one `done` or `failed`; the data of "
            "each are a job. The first event comes at once.",
            "content": EVENTS,
        },
        **errors_declared(),
    },
)
async def watch_job(
    job_id: str, request: Request, namespace: Annotated[str, Depends(namespace_of)]
) -> Response:
    """The job whenever it changes, up to its end. A watcher that is slow is told less often."""
    library = _library(request)
    library.job(namespace, job_id)  # a 404 must come before the stream begins
    return EventSourceResponse(_events(library, namespace, job_id), sep="\n")


async def _events(library: Library, namespace: str, job_id: str) -> AsyncIterator[ServerSentEvent]:
    async with aclosing(library.watch(namespace, job_id)) as jobs:
        async for job in jobs:
            event = _EVENT.get(job.state, "progress")
            yield ServerSentEvent(json.dumps(job_facts(job)), event=event, sep="\n")


def job_facts(job: Job) -> dict[str, Any]:
    """A job as clients get it, JSON-ready."""
    return {
        "id": job.id,
        "object": "indexing.job",
        "index": job.index,
        "kind": job.kind,
        "state": job.state,
        "stage": job.stage,
        "done": job.done,
        "total": job.total,
        "documents": list(job.documents[:MOST_LISTED]),
        "error": job.error,
        "created": job.created,
        "finished": job.finished,
        "skipped": [asdict(each) for each in job.skipped[:MOST_LISTED]],
    }


def job_reply(job: Job) -> JobReply:
    """A job as a reply, or as a part of one."""
    return JobReply.model_validate(job_facts(job))


def _library(request: Request) -> Library:
    library: Library = request.app.state.service.library
    return library
