"""Probes learn whether the process lives and can answer; the store tells what it keeps."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from stand_in import STORE, StandIn, app_over

from coinkv.errors import NotReadyError
from coinkv.serve.api import store


def test_a_server_that_is_ready_says_so() -> None:
    client = TestClient(app_over(StandIn()))
    assert client.get("/healthz").json() == {"status": "ok"}
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "reasons": []})
    for path in ("/healthz", "/readyz"):
        assert (client.head(path).status_code, client.head(path).content) == (200, b"")


def test_a_server_that_loads_its_model_lives_but_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loading(_: StandIn) -> None:
        raise NotReadyError("the model is being loaded", hint="ask again in a few seconds")

    monkeypatch.setattr(StandIn, "load", loading)
    client = TestClient(app_over(StandIn(ready=False)))
    assert client.get("/healthz").status_code == 200
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["ready"] is False
    assert answer.json()["reasons"] == ["the model is being loaded; ask again in a few seconds"]


def test_a_server_that_shuts_down_is_not_ready() -> None:
    answer = TestClient(app_over(StandIn(ready=False))).get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["the server is shutting down"]


def test_the_store_route_tells_what_the_models_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def of(_: StandIn, namespace: str) -> dict[str, object]:
        asked.append(namespace)
        return STORE

    monkeypatch.setattr(StandIn, "store", of)
    app = app_over(StandIn())
    app.include_router(store.router)
    assert TestClient(app).get("/v1/store").json() == STORE
    assert asked == ["default"]
