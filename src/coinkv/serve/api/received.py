"""Uploads as they come in: files of a form, or documents as JSON, never more than is allowed."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from email.message import Message
from typing import IO, Annotated, Any

from anyio import to_thread
from fastapi import Request
from pydantic import Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from coinkv.errors import InputError
from coinkv.serve.api.invalid import fault_of
from coinkv.serve.api.schemas.generation import Body
from coinkv.serve.library.names import require_document_key, unique_key
from coinkv.serve.library.uploads import UploadedFile
from coinkv.serve.settings import ServeSettings

_FIELD = "files"
_ROWS = "documents.jsonl"
_IN_MEMORY = 1 << 20


class NewDocument(Body):
    """A document to be added; without an id it is known by its title."""

    id: str | None = None
    title: str = ""
    text: Annotated[str, Field(min_length=1)]


class NewDocuments(Body):
    """Documents to be added."""

    documents: Annotated[list[NewDocument], Field(min_length=1)]


UPLOAD_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [_FIELD],
                    "properties": {
                        _FIELD: {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "string", "format": "binary"},
                        }
                    },
                }
            },
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["documents"],
                    "additionalProperties": False,
                    "properties": {
                        "documents": {
                            "type": "array",
                            "minItems": 1,
                            "items": NewDocument.model_json_schema(),
                        }
                    },
                }
            },
        },
    }
}
"""The upload's body for the OpenAPI document: it is read here, not by the framework."""


@asynccontextmanager
async def received(request: Request, settings: ServeSettings) -> AsyncIterator[list[UploadedFile]]:
    """The files of an upload, there inside the block; at least one.

    Raises:
        HTTPException: 413 as soon as it is known to be too large, or to have too many files; 415
            where it is neither a form nor JSON; 400 where it is malformed.
        InputError: it holds no file, or documents that cannot be used.
    """
    header = Message()
    header["content-type"] = request.headers.get("content-type", "none/none")
    body = _counted(request, settings.max_upload_bytes)
    if header.get_content_type() == "multipart/form-data":
        files = await _form_files(request, body, settings.max_files)
    elif header.get_content_type() == "application/json":
        raw = b"".join([part async for part in body])
        files = await to_thread.run_sync(_json_files, raw)
    else:
        raise HTTPException(415, "send files as multipart/form-data, or application/json")
    try:
        yield files
    finally:
        for file in files:
            file.content.close()


async def _counted(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    """The body as it comes, up to a limit: what is beyond it is never read."""
    count = 0
    async for part in request.stream():
        count += len(part)
        if count > most:
            raise HTTPException(413, f"the upload is larger than {most} bytes; split it")
        yield part


async def _form_files(
    request: Request, body: AsyncGenerator[bytes, None], most: int
) -> list[UploadedFile]:
    parser = MultiPartParser(request.headers, body, max_files=most, max_fields=0)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            raise HTTPException(413, f"the upload has more than {most} files; split it") from error
        plain = error.message.startswith("Too many fields")
        why = "a part has no file name" if plain else error.message
        raise HTTPException(400, f"the form cannot be read: {why}") from error
    except (ValueError, LookupError) as error:  # of a charset that is none for text
        raise HTTPException(400, "the form cannot be read: its charset") from error
    files: list[UploadedFile] = []
    for name, part in form.multi_items():
        if not isinstance(part, UploadFile):
            continue
        if name != _FIELD:
            raise HTTPException(400, f"{name[:80]}: there is no such field; send {_FIELD!r}")
        if part.filename or part.size:  # a browser's form without a choice has one without either
            files.append(UploadedFile(part.filename or "", part.file))
    if not files:
        raise InputError("the upload has no files", hint=f"send them in the field {_FIELD!r}")
    return files


def _json_files(raw: bytes) -> list[UploadedFile]:
    """Documents sent as JSON, as the one file of rows that they might as well have come in."""
    try:
        documents = NewDocuments.model_validate_json(raw).documents
    except ValidationError as error:
        raise HTTPException(400, _fault(raw, error)) from error
    file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - the caller's
    for row in _rows(documents):
        file.write(json.dumps(row).encode() + b"\n")
    return [UploadedFile(_ROWS, file)]


def _rows(documents: Sequence[NewDocument]) -> list[Mapping[str, str]]:
    """Rows with an id each: the client's own as it is, else one made from title or text."""
    own = [require_document_key(each.id) for each in documents if each.id is not None]
    taken = set(own)
    if len(taken) < len(own):
        raise InputError("two documents have the same id", hint="give each its own, or none")
    rows: list[Mapping[str, str]] = []
    for document in documents:
        if document.id is None:
            digest = hashlib.sha256(document.text.encode()).hexdigest()[:12]
            key = unique_key(document.title.strip() or f"document-{digest}", taken)
            taken.add(key)
        else:
            key = require_document_key(document.id)
        rows.append({"id": key, "title": document.title, "text": document.text})
    return rows


def _fault(raw: bytes, error: ValidationError) -> str:
    errors = error.errors(include_url=False, include_context=False)
    if errors[0]["type"] == "json_invalid":
        return f"the body is no JSON: {errors[0]['msg']}"
    located = [{**each, "loc": ("body", *each["loc"])} for each in errors]
    return fault_of(located, json.loads(raw)).message
