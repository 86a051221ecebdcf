"""Traces by option: a request as a span, its queue, prefill stages and decoding as child spans."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from coinkv.errors import InputError
from coinkv.serve.observe.record import Prompted, RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

_PATH = "/v1/traces"
_TIMEOUT_SECONDS = 3
"""Of one batch, retries included; the server's end waits for two where no collector answers."""
_Facts = dict[str, str | int | float | bool]


class Traces:
    """Spans of requests; the child spans are made when the request is over, from its record.

    Args:
        provider: where spans go.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("coinkv.serve")
        self._parents = TraceContextTextMapPropagator()

    @classmethod
    def to_endpoint(cls, endpoint: str) -> Traces:
        """Send spans to a collector, OTLP over HTTP, in the background.

        What OpenTelemetry's own environment variables say (sampler, headers, resource) goes.

        Args:
            endpoint: such as `http://localhost:4318`; `/v1/traces` is added where it is missing.

        Raises:
            InputError: it is no URL, or the extra `otel` is not installed.
        """
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            hint = "give a URL such as http://localhost:4318"
            raise InputError(f"{endpoint!r} is no URL", where="otlp_endpoint", hint=hint)
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            hint = "install it with pip install 'coinkv[otel]'"
            raise InputError(
                "traces need OpenTelemetry", where="otlp_endpoint", hint=hint
            ) from error
        url = endpoint if parts.path.endswith(_PATH) else endpoint.rstrip("/") + _PATH
        name = os.environ.get("OTEL_SERVICE_NAME", "coinkv")
        provider = TracerProvider(resource=Resource.create({"service.name": name}))
        exporter = OTLPSpanExporter(endpoint=url, timeout=_TIMEOUT_SECONDS)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider)

    def start(self, record: RequestRecord, headers: Mapping[str, str]) -> Span:
        """Begin the span of a request, as a child of the client's where it names one."""
        from opentelemetry.trace import SpanKind, format_trace_id

        span = self._tracer.start_span(
            record.method,
            context=self._parents.extract(headers),
            kind=SpanKind.SERVER,
            start_time=record.started_ns,
        )
        record.trace_id = format_trace_id(span.get_span_context().trace_id)
        return span

    def finish(self, span: Span, record: RequestRecord) -> None:
        """End the span of a request, and make those of its parts."""
        from opentelemetry.trace import Status, StatusCode

        if span.is_recording():
            span.update_name(f"{record.method} {record.route}")
            span.set_attributes(_of_request(record))
            if record.status >= 500 or record.error is not None:
                span.set_status(Status(StatusCode.ERROR))
            for prompt in record.prompts:
                self._prompted(span, record, prompt)
            for answer in record.answers:
                start = answer.ended_at - answer.decode_seconds
                self._part("decode", span, _ns(record, start), _ns(record, answer.ended_at))
        span.end(_ns(record, record.ended_at))

    def close(self) -> None:
        """Send what is left, and stop."""
        self._provider.shutdown()

    def _prompted(self, within: Span, record: RequestRecord, prompt: Prompted) -> None:
        """The wait for a slot, then the prompt with its stages, in the order they were begun."""
        start = prompt.ended_at - sum(prompt.stages_seconds.values())
        waited = _ns(record, start - prompt.queue_seconds)
        self._part("queue", within, waited, _ns(record, start))
        ends = _ns(record, prompt.ended_at)
        whole = self._part("prompt", within, _ns(record, start), ends, _of_prompt(prompt))
        for stage, seconds in prompt.stages_seconds.items():
            self._part(stage, whole, _ns(record, start), _ns(record, start + seconds))
            start += seconds

    def _part(
        self, name: str, within: Span, start_ns: int, end_ns: int, facts: _Facts | None = None
    ) -> Span:
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(within)
        span = self._tracer.start_span(name, context, start_time=start_ns, attributes=facts)
        span.end(end_ns)
        return span


def _of_request(record: RequestRecord) -> _Facts:
    facts: _Facts = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "coinkv.request_id": record.request_id,
        "coinkv.complete": record.complete,
    }
    if record.ttft_seconds is not None:
        facts["gen_ai.usage.input_tokens"] = record.prompt_tokens
        facts["gen_ai.usage.output_tokens"] = record.answer_tokens
        facts["coinkv.cached_tokens"] = record.cached_tokens
        facts["coinkv.ttft_ms"] = 1000 * record.ttft_seconds
    if record.error is not None:
        facts["error.type"] = type(record.error).__name__
    elif record.status >= 500:
        facts["error.type"] = str(record.status)
    return facts


def _of_prompt(prompt: Prompted) -> _Facts:
    facts: _Facts = {
        "coinkv.prompt_tokens": prompt.prompt_tokens,
        "coinkv.cached_tokens": prompt.cached_tokens,
    }
    if prompt.method is not None:
        facts["coinkv.method"] = prompt.method
    facts |= {f"coinkv.reuse.{source}": tokens for source, tokens in prompt.reuse.items()}
    return facts


def _ns(record: RequestRecord, moment: float) -> int:
    """A moment of `time.perf_counter` in nanoseconds since 1970."""
    return record.started_ns + round(1e9 * (moment - record.started_at))
