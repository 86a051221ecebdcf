"""Entries: what clients get to know of an index, made from its shelf and its jobs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from coinkv.serve.library.contents import Contents
from coinkv.serve.library.jobs import Job, JobBoard
from coinkv.serve.library.shelf import Shelf

IndexState = Literal["empty", "building", "ready", "failed"]


@dataclass(frozen=True)
class IndexEntry:
    """What clients get to know of an index.

    Attributes:
        name: its name.
        state: `ready` as soon as something is published, also while a job runs; `failed` when what
            is published cannot be used.
        writable: whether documents can be added and removed.
        removable: whether it can be deleted: not what the server's settings say is to be served.
        follows: a folder of documents decides, at the next start, which of its documents it has.
        contents: totals over what is published.
        job: the job that runs or waits, else the last one that ended.
        error: why the state is `failed`.
    """

    name: str
    state: IndexState
    writable: bool
    removable: bool
    follows: bool
    contents: Contents
    job: Job | None
    error: str | None


def entry_of(shelf: Shelf, board: JobBoard, *, follows: bool) -> IndexEntry:
    """The entry of an index as it is now, which may follow the settings' folder of documents."""
    job = None
    for job_id in (*shelf.jobs, shelf.last_job):
        with suppress(KeyError):  # forgotten
            job = board.find(job_id or "")
            break
    return IndexEntry(
        name=shelf.record.name,
        state=_state(shelf, job),
        writable=shelf.writable,
        removable=not (shelf.record.folder or follows),
        follows=follows,
        contents=shelf.contents,
        job=job,
        error=None if shelf.error is None else str(shelf.error),
    )


def _state(shelf: Shelf, job: Job | None) -> IndexState:
    if shelf.error is not None:
        return "failed"
    if shelf.contents.documents:
        return "ready"
    if job is not None and not job.ended and job.kind != "remove":
        return "building"
    return "empty"
