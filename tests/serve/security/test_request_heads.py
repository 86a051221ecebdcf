"""First lines of requests that go no further, and header fields of every reply."""

from __future__ import annotations

import pytest
from guarded import client_of_app, code_of
from starlette.websockets import WebSocketDisconnect

from coinkv.serve.security.heads import MOST_FIELDS, MOST_TARGET_BYTES
from coinkv.serve.security.replies import CONTENT_SECURITY_POLICY
from coinkv.serve.settings import ServeSettings


@pytest.fixture
def client(tmp_path):
    return client_of_app(ServeSettings(data_dir=tmp_path))


def test_too_many_fields_are_refused(client):
    some = {f"x-{n}": "a" for n in range(MOST_FIELDS - 10)}
    assert client.get("/v1/who", headers=some).status_code == 200
    many = {f"x-{n}": "a" for n in range(MOST_FIELDS)}
    refused = client.get("/v1/who", headers=many)
    assert (refused.status_code, code_of(refused)) == (431, "header_too_large")


def test_fields_that_are_too_large_together_are_refused(client):
    assert client.get("/v1/who", headers={"x-a": "a" * 15_000}).status_code == 200
    two = {"x-a": "a" * 9_000, "x-b": "b" * 9_000}
    assert client.get("/v1/who", headers=two).status_code == 431


@pytest.mark.parametrize("where", ["/v1/texts/{}", "/v1/who?q={}"])
def test_an_address_that_is_too_long_is_refused(client, where):
    assert client.get(where.format("a" * (MOST_TARGET_BYTES - 100))).status_code == 200
    refused = client.get(where.format("a" * MOST_TARGET_BYTES))
    assert (refused.status_code, code_of(refused)) == (414, "address_too_long")


@pytest.mark.parametrize(
    "part", ["%00", "%0a", "%1b[31m", "%7f", "%c2%85", "%ff", "%c0%af", "%ed%a0%80"]
)
def test_a_path_that_is_no_text_is_refused(client, part):
    refused = client.get(f"/v1/texts/a{part}b")
    assert (refused.status_code, code_of(refused)) == (400, "path_not_text")


@pytest.mark.parametrize("key", ["日本　語", "می‌خواهم", "a b", "‮txt.exe", "%", "../x"])
def test_a_path_in_any_script_is_not(client, key):
    from urllib.parse import quote

    assert client.get(f"/v1/texts/{quote(key, safe='')}").json() == {"key": key}


def test_a_request_with_both_kinds_of_length_is_refused(client):
    both = {"content-length": "5", "transfer-encoding": "chunked"}
    refused = client.post("/v1/length", headers=both, content=b"12345")
    assert (refused.status_code, code_of(refused)) == (400, "ambiguous_length")


def test_every_reply_tells_browsers_to_take_nothing_from_elsewhere(client):
    for path in ("/", "/v1/who", "/nowhere", "/v1/texts/%00"):
        headers = client.get(path).headers
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
    for unsafe in ("unsafe-inline", "unsafe-eval", "*", "http"):
        assert unsafe not in CONTENT_SECURITY_POLICY


def test_what_the_api_says_is_kept_by_no_cache(client):
    for path in ("/v1/who", "/v1/nowhere"):
        assert client.get(path).headers["cache-control"] == "no-store"
    assert "cache-control" not in client.get("/assets/page.js").headers


def test_no_websocket_is_opened(client):
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/who"):
        pass
