"""What is told to the metrics comes out of `/metrics`, under labels that no client can make up."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parsed
from stand_in import SECRET, StandIn, app_over, begun, question

from coinkv.errors import NotReadyError, StorageError
from coinkv.serve.observe.metrics import Metrics
from coinkv.serve.scheduler.observer import Observer

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(metrics: Metrics) -> Samples:
    text = metrics.exposed("")[0].decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parsed(text)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples_of(metrics).get((name, frozenset(labels.items())))


def labels_of(metrics: Metrics) -> set[str]:
    return {text for _, labels in samples_of(metrics) for _, text in labels}


def test_ttft_is_the_wait_and_the_prompt_together() -> None:
    metrics = Metrics()
    metrics.began("boost", begun(), 0.7)
    of = {"kind": "boost", "method": "kvboost"}
    assert value(metrics, "coinkv_ttft_seconds_sum", **of) == pytest.approx(1.0)
    assert value(metrics, "coinkv_ttft_seconds_bucket", le="1.5", **of) == 1
    assert value(metrics, "coinkv_ttft_seconds_bucket", le="0.75", **of) == 0


def test_the_stages_of_a_question_add_up_to_its_ttft() -> None:
    metrics = Metrics()
    metrics.began("question", question(), 0.7)
    stages = {
        dict(labels)["stage"]: seconds
        for (name, labels), seconds in samples_of(metrics).items()
        if name == "coinkv_stage_seconds_sum"
    }
    assert stages.keys() == {"queue", "embed", "retrieve", "read", "prefill"}
    of = {"kind": "question", "method": "coinrag"}
    ttft = value(metrics, "coinkv_ttft_seconds_sum", **of)
    assert ttft == pytest.approx(sum(stages.values()))


def test_tokens_are_told_by_where_their_kv_came_from() -> None:
    metrics = Metrics()
    metrics.began("boost", begun(), 0)
    metrics.began("question", question(), 0)
    kv = {
        (dict(labels)["kind"], dict(labels)["source"]): tokens
        for (name, labels), tokens in samples_of(metrics).items()
        if name == "coinkv_kv_tokens_total"
    }
    assert kv == {
        ("boost", "exact"): 30,
        ("boost", "moved"): 10,
        ("boost", "repaired"): 4,
        ("boost", "computed"): 6,
        ("question", "composed"): 40,
        ("question", "computed"): 10,
    }
    for kind in ("boost", "question"):
        assert value(metrics, "coinkv_prompt_tokens_total", kind=kind) == 50
        assert value(metrics, "coinkv_cached_tokens_total", kind=kind) == 40


def test_blocks_that_had_to_be_recomputed_are_counted() -> None:
    metrics = Metrics()
    facts = {"method": "coinrag", "blocks_missing": 3, "blocks_damaged": 1}
    metrics.began("question", question(facts=facts), 0)
    assert value(metrics, "coinkv_blocks_missing_total") == 3
    assert value(metrics, "coinkv_blocks_damaged_total") == 1


def test_names_that_the_server_does_not_know_share_one_label() -> None:
    metrics = Metrics()
    stages = {SECRET: 0.1, "prefill": 0.1}
    metrics.began("question", question(facts={"method": SECRET}, stages_seconds=stages), 0)
    assert SECRET not in labels_of(metrics)
    of = {"kind": "question", "method": "other"}
    assert value(metrics, "coinkv_ttft_seconds_count", **of) == 1
    assert value(metrics, "coinkv_stage_seconds_count", stage="other", **of) == 1


def test_every_stage_that_the_library_names_has_a_label_of_its_own() -> None:
    metrics = Metrics()
    known = ("tokenize", "plan", "embed", "retrieve", "read", "compose", "prefill", "prepare")
    metrics.began("question", question(stages_seconds=dict.fromkeys(known, 0.1)), 0)
    assert set(known) <= labels_of(metrics)


def test_a_requests_way_through_the_scheduler_is_counted() -> None:
    metrics = Metrics()
    metrics.queued("boost")
    metrics.token("boost", 2)
    metrics.token("boost", 1)
    metrics.ended("boost", "deadline", 3.0)
    assert value(metrics, "coinkv_submitted_total", kind="boost") == 1
    assert value(metrics, "coinkv_answer_tokens_total", kind="boost") == 3
    assert value(metrics, "coinkv_tasks_total", kind="boost", outcome="deadline") == 1
    assert value(metrics, "coinkv_task_seconds_sum", kind="boost") == 3


def test_passes_are_measured_by_their_kind() -> None:
    metrics = Metrics()
    metrics.step("decode", 7, 0.08)
    metrics.step("prefill", 128, 0.4)
    assert value(metrics, "coinkv_step_tokens_sum", step="decode") == 7
    assert value(metrics, "coinkv_step_tokens_bucket", step="prefill", le="128.0") == 1
    assert value(metrics, "coinkv_step_seconds_sum", step="prefill") == 0.4


def test_nothing_is_lost_when_many_threads_tell_at_once() -> None:
    metrics = Metrics()

    def tell() -> None:
        for _ in range(200):
            metrics.token("boost", 1)
            metrics.began("boost", begun(), 0)

    threads = [threading.Thread(target=tell) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(metrics, "coinkv_answer_tokens_total", kind="boost") == 1600
    assert value(metrics, "coinkv_prompt_tokens_total", kind="boost") == 1600 * 50


def test_an_observer_by_itself_does_nothing_and_metrics_answer_to_all_it_has() -> None:
    told = [name for name in vars(Observer) if not name.startswith("_")]
    assert set(told) <= set(vars(Metrics))
    observer = Observer()
    observer.queued("boost")
    observer.began("boost", begun(), 0.1)
    observer.ended("boost", "done", 0.2)
    assert vars(observer) == {}


@pytest.fixture
def service() -> StandIn:
    return StandIn()


@pytest.fixture
def client(service: StandIn) -> TestClient:
    return TestClient(app_over(service), raise_server_exceptions=False)


def test_requests_are_counted_by_route_and_never_by_path(
    client: TestClient, service: StandIn
) -> None:
    client.post(f"/v1/answers/{SECRET}")
    client.post("/v1/answers/another")
    client.get(f"/{SECRET}")
    client.request("BREW", "/healthz")
    of = {"method": "POST", "route": "/v1/answers/{name:path}", "status": "200"}
    assert value(service.metrics, "coinkv_http_requests_total", **of) == 2
    of = {"method": "GET", "route": "other", "status": "404"}
    assert value(service.metrics, "coinkv_http_requests_total", **of) == 1
    assert {SECRET, "BREW"} & labels_of(service.metrics) == set()


def test_failed_requests_are_counted_by_type_and_by_when(
    client: TestClient, service: StandIn
) -> None:
    client.get("/nowhere")
    client.post("/v1/faults")
    client.post("/v1/streams")
    client.get("/healthz")
    errors = {
        (dict(labels)["type"], dict(labels)["in_stream"]): count
        for (name, labels), count in samples_of(service.metrics).items()
        if name == "coinkv_errors_total"
    }
    assert errors == {
        ("not_found_error", "no"): 1,
        ("server_error", "no"): 1,
        ("timeout_error", "yes"): 1,
    }


def test_the_servers_state_is_read_when_it_is_scraped(client: TestClient, service: StandIn) -> None:
    client.get("/healthz")

    def now(name: str, **labels: str) -> float | None:
        return value(service.metrics, f"coinkv_{name}", **labels)

    assert now("scheduler_requests", state="queued") == 5
    assert now("scheduler_requests", state="decoding") == 3
    assert now("scheduler_slots") == 16
    assert now("store_bytes", tier="memory") == 300
    assert now("store_budget_bytes", tier="memory") == 1000
    assert now("store_budget_bytes", tier="disk") is None
    assert now("store_hits_total", tier="memory") == 7
    assert now("store_misses_total", tier="memory") == 2 + 4  # the disk was asked, then nothing
    assert now("store_misses_total", tier="disk") == 4
    assert now("store_damaged_total") == 1
    assert now("indexing_jobs", state="waiting") == 2
    assert now("indexing_jobs", state="failed") == 0
    assert now("ready") == 1
    service.ready, service.states = False, ()
    assert now("ready") == 0
    assert now("indexing_jobs", state="waiting") == 0


@pytest.mark.parametrize("error", [StorageError("broken"), NotReadyError("loading")])
def test_a_state_that_cannot_be_read_leaves_the_other_figures(
    service: StandIn, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(_: Any, __: str) -> None:
        raise error

    monkeypatch.setattr(StandIn, "store", failing)
    client = TestClient(app_over(service))
    text = client.get("/metrics").text
    assert "coinkv_ready 1.0" in text
    assert "coinkv_store_bytes{" not in text


def test_two_apps_in_one_process_count_apart() -> None:
    one, two = StandIn(), StandIn()
    TestClient(app_over(one)).get("/healthz")
    app_over(two)
    of = {"method": "GET", "route": "/healthz", "status": "200"}
    assert value(one.metrics, "coinkv_http_requests_total", **of) == 1
    assert value(two.metrics, "coinkv_http_requests_total", **of) is None


def test_a_scrape_has_the_figures_of_the_process_in_the_format_asked_for(
    client: TestClient,
) -> None:
    plain = client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=")
    names = {family.name for family in parsed(plain.text)}
    assert {"process_resident_memory_bytes", "process_open_fds", "coinkv_ready"} <= names
    modern = client.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    assert "coinkv_ready" in {family.name for family in openmetrics(modern.text)}


def test_health_routes_are_in_the_openapi_document() -> None:
    app: FastAPI = app_over(StandIn())
    paths = app.openapi()["paths"]
    assert {"/healthz", "/readyz", "/metrics"} <= paths.keys()
    assert {"200", "503"} <= paths["/readyz"]["get"]["responses"].keys()
