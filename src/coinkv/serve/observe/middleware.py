"""Every request gets an id, and is counted, logged and traced when it is over."""

from __future__ import annotations

import json
import re
import time
import uuid
from typing import Any, cast

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coinkv.serve.observe.logs import access_line, logger_named
from coinkv.serve.observe.metrics import Metrics
from coinkv.serve.observe.record import CURRENT, RequestRecord
from coinkv.serve.observe.traces import Traces

REQUEST_ID = "x-request-id"
PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
_SANE = re.compile(r"[A-Za-z0-9._-]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_log = logger_named(__name__)


class ObservedRequests:
    """Pure ASGI middleware, the outermost: what others refuse is observed, too.

    An exception that nobody expected is logged here, once, and answered with 500.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, traces: Traces | None) -> None:
        self._app = app
        self._metrics = metrics
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = _record(scope)
        span = None
        if self._traces is not None and not record.quiet:
            span = self._traces.start(record, Headers(scope=scope))
        current = CURRENT.set(record)
        names = {"request_id": record.request_id}
        if record.trace_id is not None:
            names["trace_id"] = record.trace_id
        try:
            with structlog.contextvars.bound_contextvars(**names):
                await self._answered(record, scope, receive, send)
        finally:
            CURRENT.reset(current)
            record.ended_at = time.perf_counter()
            record.route = getattr(scope.get("route"), "path", "other")
            self._metrics.request(record)
            access_line(record)
            if self._traces is not None and span is not None:
                self._traces.finish(span, record)

    async def _answered(
        self, record: RequestRecord, scope: Scope, receive: Receive, send: Send
    ) -> None:
        started = False

        async def observed(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                record.status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = record.request_id
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                record.complete = True

        try:
            await self._app(scope, receive, observed)
        except Exception:
            _log.exception("a request failed of a fault in the server")
            if started:  # too late for a status: the server closes the connection
                raise
            await _apologise(record, observed)


def _record(scope: Scope) -> RequestRecord:
    state = cast("dict[str, Any]", scope.setdefault("state", {}))
    given = Headers(scope=scope).get(REQUEST_ID, "")
    record = RequestRecord(
        request_id=given if _SANE.fullmatch(given) else uuid.uuid4().hex,
        method=scope["method"] if scope["method"] in _METHODS else "other",
        quiet=scope["path"] in PROBES,
        state=state,
    )
    state["request_id"] = record.request_id
    return record


async def _apologise(record: RequestRecord, send: Send) -> None:
    message = f"the server failed; its log says why under request id {record.request_id}"
    error = {"message": message, "type": "server_error", "param": None, "code": None}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": body})
