"""A request becomes a span, its queue, prefill stages and decoding spans below it."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from log_lines import Lines
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from stand_in import SECRET, StandIn, app_over

from coinkv.errors import InputError
from coinkv.serve.observe import traces
from coinkv.serve.observe.install import install
from coinkv.serve.observe.traces import Traces
from coinkv.serve.settings import ServeSettings

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def client(spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(Traces, "to_endpoint", classmethod(lambda cls, _: cls(provider)))
    service = StandIn(ServeSettings(otlp_endpoint="http://collector"))
    return TestClient(app_over(service), raise_server_exceptions=False)


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def parent_of(span: ReadableSpan, spans: dict[str, ReadableSpan]) -> str | None:
    if span.parent is None:
        return None
    return next(n for n, each in spans.items() if each.context.span_id == span.parent.span_id)


def test_the_parts_of_a_question_are_spans_below_the_requests(
    client: TestClient, spans: InMemorySpanExporter
) -> None:
    client.post("/v1/answers/x", headers={"x-request-id": "r1"})
    found = by_name(spans)
    request = found["POST /v1/answers/{name:path}"]
    assert {name: parent_of(span, found) for name, span in found.items()} == {
        request.name: None,
        "queue": request.name,
        "prompt": request.name,
        "decode": request.name,
        "embed": "prompt",
        "retrieve": "prompt",
        "read": "prompt",
        "prefill": "prompt",
    }
    assert request.kind is SpanKind.SERVER
    assert request.attributes is not None
    assert request.attributes["http.route"] == "/v1/answers/{name:path}"
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["coinkv.request_id"] == "r1"
    assert request.attributes["gen_ai.usage.input_tokens"] == 50
    assert request.attributes["gen_ai.usage.output_tokens"] == 1
    assert request.attributes["coinkv.cached_tokens"] == 40


def test_the_parts_follow_each_other_in_time(
    client: TestClient, spans: InMemorySpanExporter
) -> None:
    client.post("/v1/streams")
    found = by_name(spans)
    queue, prompt, plan, prefill = (found[n] for n in ("queue", "prompt", "plan", "prefill"))
    assert queue.end_time == prompt.start_time == plan.start_time
    assert plan.end_time == prefill.start_time
    assert plan.start_time is not None
    assert plan.end_time is not None
    assert plan.end_time - plan.start_time == pytest.approx(0.1e9, abs=1e3)
    assert prefill.end_time == pytest.approx(prompt.end_time, abs=1e3)


def test_no_span_holds_what_a_client_sent_or_got(
    client: TestClient, spans: InMemorySpanExporter
) -> None:
    for path in ("/v1/answers/" + SECRET, "/v1/streams", "/v1/faults", "/" + SECRET):
        client.post(f"{path}?{SECRET}", content=SECRET, headers={"authorization": SECRET})
    told = "".join(span.to_json() for span in spans.get_finished_spans())
    assert len(told) > 1000
    assert SECRET not in told


def test_a_clients_trace_goes_on(client: TestClient, spans: InMemorySpanExporter) -> None:
    client.get("/nowhere", headers={"traceparent": f"{PARENT}-01"})
    (span,) = spans.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"


def test_a_client_that_does_not_sample_gets_no_spans(
    client: TestClient, spans: InMemorySpanExporter
) -> None:
    assert client.post("/v1/streams", headers={"traceparent": f"{PARENT}-00"}).status_code == 200
    assert spans.get_finished_spans() == ()


@pytest.mark.parametrize("odd", ["", "nonsense", f"{PARENT}-zz", "00-" + "0" * 32 + "-1-01"])
def test_an_odd_traceparent_begins_a_trace_of_its_own(
    client: TestClient, spans: InMemorySpanExporter, odd: str
) -> None:
    assert client.get("/nowhere", headers={"traceparent": odd}).status_code == 404
    (span,) = spans.get_finished_spans()
    assert span.parent is None


@pytest.mark.parametrize(("path", "error"), [("/v1/faults", "500"), ("/v1/streams", "Deadline")])
def test_what_fails_is_marked(
    client: TestClient, spans: InMemorySpanExporter, path: str, error: str
) -> None:
    client.post(path)
    span = by_name(spans)[f"POST {path}"]
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert error in str(span.attributes["error.type"])


def test_probes_are_not_traced(client: TestClient, spans: InMemorySpanExporter) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        client.get(path)
    assert spans.get_finished_spans() == ()


def test_log_lines_name_the_trace(
    client: TestClient, spans: InMemorySpanExporter, lines: Lines
) -> None:
    client.post("/v1/faults", headers={"traceparent": f"{PARENT}-01"})
    assert len(lines.all) == 2
    assert {line["trace_id"] for line in lines.all} == {"0af7651916cd43dd8448eb211c80319c"}


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """An OTLP collector on loopback: its URL, and what was posted to it."""
    got: list[tuple[str, bytes]] = []

    class Collecting(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collecting)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("path", ["", "/", "/v1/traces", "/prefix"])
def test_spans_arrive_at_a_collector(
    collector: tuple[str, list[tuple[str, bytes]]], path: str
) -> None:
    url, got = collector
    sending = Traces.to_endpoint(url + path)
    app = FastAPI()
    service = StandIn()
    install(app, service)  # type: ignore[arg-type]
    app.user_middleware[0].kwargs["traces"] = sending
    TestClient(app).get("/nowhere")
    sending.close()
    ((posted_to, body),) = got
    assert posted_to == path.rstrip("/").removesuffix("/v1/traces") + "/v1/traces"
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    service_name = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert service_name["service.name"] == "coinkv"
    assert resource.scope_spans[0].spans[0].name == "GET other"


@pytest.mark.parametrize("odd", ["localhost:4317", "grpc://x", "http://", "x"])
def test_an_endpoint_that_is_no_url_is_refused(odd: str) -> None:
    with pytest.raises(InputError, match="give a URL such as"):
        app_over(StandIn(ServeSettings(otlp_endpoint=odd)))


def test_without_the_extra_the_refusal_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"pip install 'coinkv\[otel\]'"):
        app_over(StandIn(ServeSettings(otlp_endpoint="http://localhost:4318")))


def test_nothing_of_the_extra_is_needed_while_traces_are_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry.")]:
        if name.split(".")[1] in ("sdk", "exporter"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    importlib.reload(traces)
    assert TestClient(app_over(StandIn())).get("/healthz").status_code == 200
