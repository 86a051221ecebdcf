"""Errors as clients get them: OpenAI's format, and one HTTP status for each kind of error."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import PurePath
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.responses import Response

from coinkv.errors import (
    BusyError,
    CoinKVError,
    ContextLengthError,
    DeadlineError,
    DocumentNotFoundError,
    IndexNotFoundError,
    InputError,
    JobNotFoundError,
    ModelNotFoundError,
    NotReadyError,
    StorageError,
)
from coinkv.serve.api.invalid import fault_of
from coinkv.serve.api.schemas.fields import FIELDS

RETRY_SECONDS = 5
"""When to ask again what a server that starts or ends cannot answer now."""
_MOST_CHARACTERS = 1000


class ErrorDetail(BaseModel):
    """What was wrong: a sentence, its kind, the field that is to blame if one is, and a code."""

    model_config = ConfigDict(extra="forbid")
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """The body of every reply that is an error."""

    model_config = ConfigDict(extra="forbid")
    error: ErrorDetail


@dataclass(frozen=True)
class Failure:
    """An error on its way to a client.

    Attributes:
        status: HTTP status.
        kind: OpenAI's `type`.
        message: what was wrong and what to do, one line.
        param: path of the field of the body that is to blame.
        code: OpenAI's `code`, for programs.
        headers: of the reply.
    """

    status: int
    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The error object: a reply's body, or an event of a stream that has begun."""
        message = " ".join(self.message.split())[:_MOST_CHARACTERS]
        param = None if self.param is None else self.param[:_MOST_CHARACTERS]
        return {"error": {"message": message, "type": self.kind, "param": param, "code": self.code}}

    def response(self) -> Response:
        """The reply; in ASCII, since a message may repeat what is no Unicode text."""
        body = json.dumps(self.body())
        return Response(body, self.status, dict(self.headers), "application/json")


_KINDS: Sequence[tuple[type[CoinKVError], int, str, str | None]] = (
    (ModelNotFoundError, 404, "not_found_error", "model_not_found"),
    (IndexNotFoundError, 404, "not_found_error", "index_not_found"),
    (DocumentNotFoundError, 404, "not_found_error", "document_not_found"),
    (JobNotFoundError, 404, "not_found_error", "job_not_found"),
    (ContextLengthError, 400, "invalid_request_error", "context_length_exceeded"),
    (InputError, 400, "invalid_request_error", None),
    (BusyError, 429, "rate_limit_error", "rate_limit_exceeded"),
    (NotReadyError, 503, "server_error", "not_ready"),
    (DeadlineError, 504, "timeout_error", "deadline_exceeded"),
    (StorageError, 507, "server_error", "storage_failed"),
    (CoinKVError, 500, "server_error", None),
)
_BY_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
}


def failure_of(error: CoinKVError) -> Failure:
    """What a client is told of an error. `where` is its `param` if it names a field of a body."""
    status, kind, code = next(row[1:] for row in _KINDS if isinstance(error, row[0]))
    headers = {}
    if isinstance(error, BusyError):
        headers["Retry-After"] = str(max(1, round(error.retry_after_seconds)))
    elif isinstance(error, NotReadyError):
        headers["Retry-After"] = str(RETRY_SECONDS)
    param = error.where if error.where in FIELDS else None
    return Failure(status, kind, _told(error), param, code, headers)


def _told(error: CoinKVError) -> str:
    """An error in one line; where on this machine something lies is no client's business."""
    if error.where is None or not PurePath(error.where).is_absolute():
        return str(error)
    return str(CoinKVError(error.what, where=PurePath(error.where).name, hint=error.hint))


def install_errors(app: FastAPI) -> None:
    """Have every error leave the application in OpenAI's format."""
    app.add_exception_handler(CoinKVError, _coinkv_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)


async def _coinkv_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, CoinKVError):
        raise error
    return failure_of(error).response()


async def _invalid(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    fault = fault_of(error.errors(), error.body)
    return Failure(400, "invalid_request_error", fault.message, fault.param).response()


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    kind = _BY_STATUS.get(error.status_code, "invalid_request_error")
    message = str(error.detail)
    if message == HTTPStatus(error.status_code).phrase:  # the framework's own word for it
        message = f"{message}: {request.method} {request.url.path}"
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers |= _allowed(request)
    return Failure(error.status_code, kind, message, headers=headers).response()


def _allowed(request: Request) -> dict[str, str]:
    """The methods of all routes of a path: the framework names those of the first one only."""
    paths = FastAPI.openapi(request.app)["paths"]  # built once
    operations = paths.get(getattr(request.scope.get("route"), "path_format", None), {})
    return {"Allow": ", ".join(sorted(operations)).upper()} if operations else {}
