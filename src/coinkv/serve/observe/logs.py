"""Logs: one pipeline for everything the server says, one access line a request, never any text."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

from coinkv.errors import CoinKVError, InputError
from coinkv.serve.observe.record import RequestRecord
from coinkv.serve.settings import ServeSettings

_LONGEST_LINE = 500
_TOLD = (OSError, MemoryError, RuntimeError, CoinKVError)
"""Errors whose message speaks of the machine. Others may quote what a client has sent."""


class ServerHandler(logging.StreamHandler[TextIO]):
    """The handler of the pipeline, told apart from those of others."""


def configure_logs(settings: ServeSettings, stream: TextIO | None = None) -> None:
    """Send the log lines of the whole process through one pipeline; call it again at will.

    Lines of coinkv and uvicorn are written from `settings.log_level` on, those of other packages
    from warnings on. Start uvicorn with `log_config=None`, or it brings a pipeline of its own.

    Args:
        settings: level and format.
        stream: where lines go; standard output by default.
    """
    stream = stream or sys.stdout
    as_json = settings.log_format == "json"
    as_json |= settings.log_format == "auto" and not stream.isatty()
    handler = ServerHandler(stream)
    handler.addFilter(_is_no_echo)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_common(), _first_line, _failure],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _renderer(as_json, stream),
            ],
        )
    )
    _set_loggers(handler, settings.log_level.upper())


def logger_named(name: str) -> structlog.stdlib.BoundLogger:
    """A logger that takes facts beside the event; silent below warnings until configured."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            *_common(),
            _failure,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger


def access_line(record: RequestRecord) -> None:
    """Write the one line of a request that is over."""
    facts: dict[str, Any] = {
        "client": record.state.get("client"),
        "namespace": record.state.get("namespace"),
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "complete": record.complete,
        "seconds": round(record.seconds, 4),
        "request_id": record.request_id,
    }
    if record.trace_id is not None:
        facts["trace_id"] = record.trace_id
    if record.ttft_seconds is not None:
        facts["ttft_ms"] = round(1000 * record.ttft_seconds, 1)
        facts["prompt_tokens"] = record.prompt_tokens
        facts["cached_tokens"] = record.cached_tokens
        facts["answer_tokens"] = record.answer_tokens
    if record.error is not None:
        facts["error"] = type(record.error).__name__
    _access.log(_level(record), "request", **facts)


def _level(record: RequestRecord) -> int:
    if record.quiet:
        return logging.DEBUG
    if record.status < 500:
        return logging.INFO
    return logging.ERROR if record.status == 500 else logging.WARNING


def _set_loggers(handler: ServerHandler, level: str) -> None:
    from transformers.utils import logging as of_transformers

    root = logging.getLogger()
    root.handlers = [each for each in root.handlers if not isinstance(each, ServerHandler)]
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for name in ("coinkv", "uvicorn"):
        logging.getLogger(name).setLevel(level)
    logging.getLogger("uvicorn.access").disabled = True  # it names paths and query strings
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # not every retry
    logging.captureWarnings(True)
    of_transformers.disable_default_handler()
    of_transformers.enable_propagation()


def _common() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _renderer(as_json: bool, stream: TextIO) -> Processor:
    if as_json:
        return structlog.processors.JSONRenderer(ensure_ascii=False, default=repr)
    return structlog.dev.ConsoleRenderer(colors=stream.isatty())


def _first_line(_logger: Any, _name: str, event: EventDict) -> EventDict:
    """Other packages' lines end at the first line break: asyncio's go on with reprs."""
    event["event"] = str(event["event"]).split("\n", 1)[0][:_LONGEST_LINE]
    return event


def _is_no_echo(record: logging.LogRecord) -> bool:
    """Not uvicorn's line about an exception that the middleware has logged."""
    return not str(record.msg).startswith("Exception in ASGI application")


def _failure(_logger: Any, _name: str, event: EventDict) -> EventDict:
    """Say of an exception where it came from, and its message where that cannot be a client's."""
    given = event.pop("exc_info", None)
    if given is True:
        given = sys.exc_info()[1]
    error = given[1] if isinstance(given, tuple) else given
    if isinstance(error, BaseException):
        event["exception"] = "\n".join(_told(error))
    return event


def _told(error: BaseException) -> Iterator[str]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        kind = type(cause)
        says = isinstance(cause, _TOLD) and not isinstance(cause, InputError)
        message = f": {' '.join(str(cause).split())[:_LONGEST_LINE]}" if says else ""
        yield f"{kind.__module__}.{kind.__qualname__}{message}"
        for frame, line in traceback.walk_tb(cause.__traceback__):
            module = frame.f_globals.get("__name__", "?")
            yield f"  {module}:{line} {frame.f_code.co_name}"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


_access = logger_named("coinkv.access")
