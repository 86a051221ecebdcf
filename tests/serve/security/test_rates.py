"""Clients wait when they have used up their minute; the clock is the test's."""

from __future__ import annotations

import pytest
from guarded import client_of_app, code_of

from coinkv.serve.security.keys import Keys
from coinkv.serve.security.rates import Buckets
from coinkv.serve.settings import ServeSettings


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setitem(Buckets.__init__.__kwdefaults__, "clock", clock)
    return clock


def test_a_bucket_holds_a_minutes_worth_and_fills_up_within_a_minute():
    clock = Clock()
    buckets = Buckets(clock=clock)
    buckets.take("a", 60, 60)
    assert buckets.wait_seconds("a", 60) == pytest.approx(1.0)
    assert buckets.wait_seconds("b", 60) == 0.0
    clock.now += 1.0
    assert buckets.wait_seconds("a", 60) == pytest.approx(0.0)
    clock.now += 1000.0
    buckets.take("a", 60, 60)
    assert buckets.wait_seconds("a", 60) == pytest.approx(1.0)


def test_a_debt_is_waited_for():
    clock = Clock()
    buckets = Buckets(clock=clock)
    buckets.take("a", 60, 180)
    assert buckets.wait_seconds("a", 60) == pytest.approx(121.0)
    clock.now += 120.0
    assert buckets.wait_seconds("a", 60) == pytest.approx(1.0)


def test_a_million_clients_take_the_room_of_a_few():
    buckets = Buckets(most=100, clock=Clock())
    for client in range(10_000):
        buckets.take(str(client), 60, 60)
    assert len(buckets) == 100
    assert buckets.wait_seconds("9999", 60) > 0
    assert buckets.wait_seconds("1", 60) == 0


def test_a_client_that_keeps_coming_is_not_forgotten():
    buckets = Buckets(most=100, clock=Clock())
    buckets.take("busy", 60, 600)
    for client in range(10_000):
        buckets.take(str(client), 60, 1)
        assert buckets.wait_seconds("busy", 60) > 0


def test_requests_over_the_limit_wait_and_are_told_how_long(tmp_path, clock):
    client = client_of_app(ServeSettings(data_dir=tmp_path, requests_per_minute=3))
    assert [client.post("/v1/who").status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = client.post("/v1/who")
    assert code_of(refused) == "rate_limit_exceeded"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert refused.headers["retry-after"] == "20"
    clock.now += 20.0
    assert [client.post("/v1/who").status_code for _ in range(2)] == [200, 429]


def test_reading_costs_nothing(tmp_path, clock):
    client = client_of_app(ServeSettings(data_dir=tmp_path, requests_per_minute=1))
    assert client.post("/v1/who").status_code == 200
    assert {client.get("/v1/who").status_code for _ in range(20)} == {200}


def test_what_is_refused_before_does_not_count(tmp_path, clock):
    _, secret = Keys(tmp_path).add("alice", requests_per_minute=1)
    client = client_of_app(ServeSettings(data_dir=tmp_path))
    for _ in range(3):
        assert client.post("/v1/who").status_code == 401
    alice = {"authorization": f"Bearer {secret}"}
    assert client.post("/v1/who", headers=alice).status_code == 200
    assert client.post("/v1/who", headers=alice).status_code == 429


def test_a_keys_own_limit_goes_before_the_servers(tmp_path, clock):
    keys = Keys(tmp_path)
    secrets = [keys.add("few", requests_per_minute=1)[1], keys.add("some")[1]]
    client = client_of_app(ServeSettings(data_dir=tmp_path, requests_per_minute=2))
    answered = []
    for secret in secrets:
        headers = {"authorization": f"Bearer {secret}"}
        replies = [client.post("/v1/who", headers=headers).status_code for _ in range(3)]
        answered.append(replies.count(200))
    assert answered == [1, 2]


def test_tokens_are_charged_after_an_answer_and_felt_by_the_next_request(tmp_path, clock):
    _, secret = Keys(tmp_path).add("alice", tokens_per_minute=600)
    client = client_of_app(ServeSettings(data_dir=tmp_path))
    client.headers["authorization"] = f"Bearer {secret}"
    assert client.post("/v1/spend?tokens=500").status_code == 200
    assert client.post("/v1/spend?tokens=400").status_code == 200
    refused = client.post("/v1/spend?tokens=1")
    assert refused.status_code == 429
    assert "600 tokens" in refused.json()["error"]["message"]
    assert refused.headers["retry-after"] == "31"
    clock.now += 31.0
    assert client.post("/v1/spend?tokens=1").status_code == 200


def test_tokens_without_a_limit_cost_nothing(tmp_path, clock):
    client = client_of_app(ServeSettings(data_dir=tmp_path))
    for _ in range(3):
        assert client.post("/v1/spend?tokens=1000000").status_code == 200
