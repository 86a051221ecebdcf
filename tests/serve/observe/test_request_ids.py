"""Every response names its request, and the log does by the same name."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient
from log_lines import Lines
from stand_in import SECRET, StandIn, app_over
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import get_contextvars


@pytest.fixture
def client() -> TestClient:
    return TestClient(app_over(StandIn()), raise_server_exceptions=False)


@pytest.mark.parametrize("sane", ["a", "x" * 128, "Az09._-", "550e8400-e29b-41d4-a716"])
def test_a_sane_id_of_the_client_is_kept(client: TestClient, sane: str) -> None:
    assert client.get("/healthz", headers={"x-request-id": sane}).headers["x-request-id"] == sane


@pytest.mark.parametrize(
    "odd", ["", "x" * 129, "a b", "a\tb", "ä".encode(), b"\xff", "a;b", "a\u2028b".encode()]
)
def test_any_other_is_replaced_by_a_fresh_one(client: TestClient, odd: str | bytes) -> None:
    given = client.get("/healthz", headers={"x-request-id": odd}).headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", given)


def test_two_requests_without_an_id_get_different_ones(client: TestClient) -> None:
    ids = {client.get("/healthz").headers["x-request-id"] for _ in range(20)}
    assert len(ids) == 20


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("PUT", "/v1/streams", 405),
        ("POST", "/v1/faults", 500),
        ("POST", "/v1/streams", 200),
        ("GET", "/metrics", 200),
    ],
)
def test_errors_and_streams_have_one_too(
    client: TestClient, method: str, path: str, status: int
) -> None:
    response = client.request(method, path, headers={"x-request-id": "mine"})
    assert response.status_code == status
    assert response.headers.get_list("x-request-id") == ["mine"]


def test_what_other_middleware_refuses_has_one_too() -> None:
    class Refusing:
        def __init__(self, app: ASGIApp) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await PlainTextResponse("no", 401)(scope, receive, send)

    app = app_over(StandIn())
    app.user_middleware.append(app.user_middleware[0].__class__(Refusing))  # the inner one
    response = TestClient(app).get("/healthz")
    assert response.status_code == 401
    assert response.headers["x-request-id"]


def test_an_unexpected_error_is_answered_in_the_format_of_all_errors(client: TestClient) -> None:
    response = client.post("/v1/faults", content=SECRET, headers={"x-request-id": "mine"})
    error = response.json()["error"]
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    assert (error["type"], error["param"], error["code"]) == ("server_error", None, None)
    assert "mine" in error["message"]
    assert SECRET not in response.text


def test_code_in_worker_threads_logs_under_the_id(client: TestClient) -> None:
    bound = client.get("/v1/threads", headers={"x-request-id": "mine"}).json()
    assert bound == {"request_id": "mine"}


def test_the_id_ends_with_its_request(client: TestClient) -> None:
    client.get("/healthz")
    assert "request_id" not in get_contextvars()


def test_the_log_has_the_id_of_the_response(client: TestClient, lines: Lines) -> None:
    given = client.post("/v1/streams").headers["x-request-id"]
    assert [line["request_id"] for line in lines.named("request")] == [given]
