"""What the real server tells of the requests it has really answered."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

Figures = dict[str, float]


def figures(server: str, **labels: str) -> Figures:
    """Samples of the scrape that have these labels, summed over their other ones."""
    found: Figures = {}
    for family in parsed(httpx.get(f"{server}/metrics").text):
        for sample in family.samples:
            if labels.items() <= sample.labels.items():
                found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def grown(before: Figures, after: Figures, name: str) -> float:
    return after.get(name, 0) - before.get(name, 0)


def ask(server: str, kind: str) -> dict[str, Any]:
    """Have the server answer a question to its index, or any prompt."""
    ids = [model["id"] for model in httpx.get(f"{server}/v1/models").json()["data"]]
    path, model = "/v1/completions", ids[0]
    fields: dict[str, Any] = {"prompt": "Who keeps the mill?"}
    if kind == "question":
        path, model = "/v1/chat/completions", next(i for i in ids if i.startswith("coinrag/"))
        fields = {"messages": [{"role": "user", "content": "Who keeps the mill?"}]}
    fields |= {"model": model, "max_tokens": 5}
    response = httpx.post(server + path, json=fields, timeout=60)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def settled(server: str, kind: str, outcome: str, count: float) -> Figures:
    """The figures once so many requests have ended: the last bookkeeping is behind the reply."""
    for _ in range(6_000):
        if figures(server, kind=kind, outcome=outcome).get("coinkv_tasks_total", 0) >= count:
            break
        time.sleep(0.01)
    return figures(server, kind=kind)


@pytest.mark.parametrize("kind", ["question", "boost"])
def test_an_answer_moves_every_figure_of_its_kind(server: str, kind: str) -> None:
    before = figures(server, kind=kind)
    ended = figures(server, kind=kind, outcome="done").get("coinkv_tasks_total", 0)
    usage = ask(server, kind)["usage"]
    after = settled(server, kind, "done", ended + 1)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert grown(before, after, "coinkv_submitted_total") == 1
    assert grown(before, after, "coinkv_ttft_seconds_count") == 1
    assert grown(before, after, "coinkv_prompt_tokens_total") == usage["prompt_tokens"]
    assert grown(before, after, "coinkv_cached_tokens_total") == cached
    assert grown(before, after, "coinkv_kv_tokens_total") == usage["prompt_tokens"]
    assert grown(before, after, "coinkv_answer_tokens_total") >= usage["completion_tokens"]
    stages = grown(before, after, "coinkv_stage_seconds_sum")
    assert stages == pytest.approx(grown(before, after, "coinkv_ttft_seconds_sum"), rel=1e-6)


def test_every_stage_of_a_real_request_has_a_name_of_its_own(server: str) -> None:
    ask(server, "question")
    ask(server, "boost")
    assert figures(server, stage="other").get("coinkv_stage_seconds_count", 0) == 0
    assert figures(server, stage="prefill")["coinkv_stage_seconds_count"] >= 2


def test_passes_store_and_load_are_there(server: str) -> None:
    ask(server, "boost")
    after = figures(server)
    assert after["coinkv_step_seconds_count"] > 0
    assert after["coinkv_scheduler_slots"] > 0
    assert after["coinkv_ready"] == 1
    assert figures(server, tier="memory")["coinkv_store_bytes"] > 0
    assert figures(server, state="running")["coinkv_indexing_jobs"] == 0


def test_the_store_route_fits_its_schema(server: str) -> None:
    kept = httpx.get(f"{server}/v1/store")
    assert kept.status_code == 200, kept.text
    assert {tier["name"] for tier in kept.json()["tiers"]} == {"memory", "disk"}
    assert kept.json()["indexes"][0]["id"] == "index"
    assert figures(server, route="/v1/store")["coinkv_http_requests_total"] >= 1


def test_a_refusal_is_counted_by_its_route_and_type(server: str) -> None:
    of = {"type": "invalid_request_error", "in_stream": "no"}
    before = figures(server, **of).get("coinkv_errors_total", 0)
    assert httpx.post(f"{server}/v1/chat/completions", json={"model": 5}).status_code == 400
    assert figures(server, **of)["coinkv_errors_total"] == before + 1


def test_every_response_has_an_id_even_those_that_no_route_gave(server: str) -> None:
    for method, path, fields in (
        ("GET", "/nowhere", {}),
        ("GET", "/healthz", {"host": "evil.example"}),
        ("POST", "/v1/chat/completions", {"origin": "http://evil.example"}),
    ):
        response = httpx.request(method, server + path, headers=fields)
        assert response.status_code >= 400
        assert response.headers["x-request-id"]
