"""Which names the server answers under, and which web pages may make it do something."""

from __future__ import annotations

import pytest
from guarded import client_of_app, code_of

from coinkv.serve.settings import ServeSettings


@pytest.fixture
def settings(tmp_path):
    return ServeSettings(data_dir=tmp_path)


def answers(settings, host, **headers):
    reply = client_of_app(settings).post("/v1/who", headers={"host": host, **headers})
    if reply.status_code == 421:
        assert code_of(reply) == "wrong_host"
    return reply.status_code


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8000", "LOCALHOST", "127.0.0.1:1", "127.0.0.2", "[::1]:80", "[::1]"],
)
def test_a_loopback_server_answers_under_loopback_names(settings, host):
    assert answers(settings, host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evil.example:8000",
        "192.168.0.1",
        "[2001:db8::1]",
        "localhost@evil.example",
        "evil.example@localhost",
        "localhost/evil",
        "localhost evil",
        "localhost#",
        "[::1",
        "::1",
        "",
        "2130706433",
        "localhost:port",
        "ｌocalhost".encode("latin-1", "replace").decode("latin-1"),
    ],
)
def test_a_loopback_server_answers_under_no_other_name(settings, host):
    assert answers(settings, host) == 421


def test_a_request_with_two_hosts_is_refused(settings):
    twice = [("host", "localhost"), ("host", "localhost")]
    assert client_of_app(settings).get("/v1/who", headers=twice).status_code == 421


def test_the_settings_add_names(tmp_path):
    settings = ServeSettings(data_dir=tmp_path, allowed_hosts=("Rag.Example.",))
    assert answers(settings, "rag.example:443") == 200
    assert answers(settings, "www.rag.example") == 421
    assert answers(ServeSettings(data_dir=tmp_path, allowed_hosts=("*",)), "any.example") == 200
    assert answers(ServeSettings(data_dir=tmp_path, allowed_hosts=("*",)), "") == 421


def test_a_public_server_answers_under_its_address_and_any_other_but_under_no_name(tmp_path):
    settings = ServeSettings(data_dir=tmp_path, host="0.0.0.0", open_access=True)
    for host in ("192.168.0.1:8000", "[2001:db8::1]", "localhost", "0.0.0.0:8000"):
        assert answers(settings, host) == 200, host
    assert answers(settings, "evil.example") == 421
    named = ServeSettings(data_dir=tmp_path, host="box.example", open_access=True)
    assert answers(named, "box.example:8000") == 200


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost:9000", "http://localhost", "", "file://"],
)
def test_a_foreign_web_page_may_not_post(settings, origin):
    client = client_of_app(settings)
    for method in ("POST", "DELETE", "PUT", "OPTIONS"):
        refused = client.request(method, "/v1/who", headers={"origin": origin})
        assert refused.status_code == 403, method
        assert code_of(refused) == "foreign_origin"
        assert "access-control-allow-origin" not in refused.headers


def test_a_foreign_web_page_may_read_what_its_browser_then_keeps_from_it(settings):
    reply = client_of_app(settings).get("/v1/who", headers={"origin": "https://evil.example"})
    assert reply.status_code == 200
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("localhost:8000", "http://LOCALHOST:8000"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("localhost", "http://localhost:80"),
        ("localhost", "https://localhost"),
        ("localhost:443", "https://localhost"),
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_the_servers_own_page_may_post(settings, host, origin):
    assert answers(settings, host, origin=origin) == 200


@pytest.mark.parametrize(
    ("host", "origin"),
    [("localhost:80", "https://localhost"), ("localhost", "http://localhost:8000")],
)
def test_a_page_at_another_port_is_a_foreign_one(settings, host, origin):
    assert answers(settings, host, origin=origin) == 403


def test_a_rebound_name_is_no_way_in(settings):
    rebound = {"origin": "http://evil.example:8000"}
    assert answers(settings, "evil.example:8000", **rebound) == 421


def test_pages_that_the_settings_name_may_call_and_read(tmp_path):
    page = "https://app.example"
    client = client_of_app(ServeSettings(data_dir=tmp_path, cors_origins=(page,)))
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "x-any"}
    allowed = client.options("/v1/who", headers={"origin": page, **asks})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == page
    assert "x-any" in allowed.headers["access-control-allow-headers"]
    reply = client.post("/v1/who", headers={"origin": page})
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == page
    for other in ("https://app.example.evil", "http://app.example", "https://app.example:8443"):
        assert client.post("/v1/who", headers={"origin": other}).status_code == 403
        refused = client.options("/v1/who", headers={"origin": other, **asks})
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers


def test_a_page_that_may_call_can_read_why_it_is_refused(tmp_path):
    page = "https://app.example"
    settings = ServeSettings(data_dir=tmp_path, cors_origins=(page,), max_body_bytes=10)
    reply = client_of_app(settings).post("/v1/length", headers={"origin": page}, content=b"x" * 11)
    assert (reply.status_code, code_of(reply)) == (413, "body_too_large")
    assert reply.headers["access-control-allow-origin"] == page


def test_every_page_may_call_where_the_settings_say_so(tmp_path):
    client = client_of_app(ServeSettings(data_dir=tmp_path, cors_origins=("*",)))
    reply = client.post("/v1/who", headers={"origin": "https://any.example"})
    assert reply.headers["access-control-allow-origin"] == "*"
