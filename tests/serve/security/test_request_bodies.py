"""Bodies that are too large or too slow, and what becomes of the connection they came on."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest
from guarded import client_of_app, code_of, guarded_app, served

from coinkv.serve.security import body
from coinkv.serve.security.body import BodyMiddleware
from coinkv.serve.settings import ServeSettings
from raw_http import head_on, reply_on, until_closed


@pytest.fixture
def settings(tmp_path):
    return ServeSettings(data_dir=tmp_path, max_body_bytes=1000, max_upload_bytes=500_000)


@pytest.fixture
def server(settings):
    with served(guarded_app(settings)) as server:
        yield server


class Endless:
    """A file that never ends."""

    mode = "rb"

    def __init__(self, chunk):
        self.chunk = chunk

    def read(self, _):
        return self.chunk


def in_pieces(count, size=100):
    for _ in range(count):
        yield b"x" * size


def test_a_body_within_the_limit_arrives_whole(settings):
    client = client_of_app(settings)
    assert client.post("/v1/length", content=b"x" * 1000).json() == {"bytes": 1000}
    assert client.post("/v1/length", content=in_pieces(10)).json() == {"bytes": 1000}
    assert client.post("/v1/length").json() == {"bytes": 0}


def test_a_body_over_the_limit_is_refused_by_its_length_before_it_is_read(server):
    head = b"POST /v1/length HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1001\r\n\r\n"
    with server.open() as connection:
        connection.sendall(head)  # and nothing of the body
        answer = head_on(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize("length", ["1001", "9" * 19, "9" * 20])
def test_whatever_length_is_announced(settings, length):
    refused = client_of_app(settings).post(
        "/v1/length", content=b"x", headers={"content-length": length}
    )
    assert (refused.status_code, code_of(refused)) == (413, "body_too_large")


def test_a_body_of_unknown_length_is_refused_as_soon_as_it_is_too_long(server):
    refused = httpx.post(f"{server.url}/v1/length", content=in_pieces(11))
    assert (refused.status_code, code_of(refused)) == (413, "body_too_large")
    head = b"POST /v1/length HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with server.open() as connection:
        connection.sendall(head + b"3e9\r\n" + b"x" * 1001)  # it goes on, but not now
        assert head_on(connection).startswith(b"HTTP/1.1 413 ")


def test_uploads_have_a_limit_of_their_own(settings):
    client = client_of_app(settings)
    upload = "/v1/indexes/mine/documents"
    assert client.post(upload, content=b"x" * 500_000).json() == {"bytes": 500_000}
    assert client.post(upload, content=b"x" * 500_001).status_code == 413
    assert client.post(upload, content=in_pieces(51, 10_000)).status_code == 413
    for other in (f"{upload}/key", "/v1/indexes/documents", f"/v1{upload}"):
        assert client.post(other, content=b"x" * 1001).status_code == 413, other
    assert client.put(upload, content=b"x" * 1001).status_code == 413


def test_a_client_that_sends_all_before_it_reads_still_gets_the_reply(server):
    # more than the buffers of a connection hold: an early close would reset it
    for content in (b"x" * 20_000_000, in_pieces(2_000, 10_000)):
        refused = httpx.post(f"{server.url}/v1/length", content=content)
        assert (refused.status_code, code_of(refused)) == (413, "body_too_large")


def test_a_client_that_waits_to_be_told_to_send_is_told_not_to(server):
    head = b"POST /v1/length HTTP/1.1\r\nhost: localhost\r\n"
    asking = b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n"
    with server.open() as connection:
        connection.sendall(head + asking % 1001)
        assert head_on(connection).startswith(b"HTTP/1.1 413 ")
    with server.open() as connection:
        connection.sendall(head + asking % 4)
        assert head_on(connection).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"four")
        assert reply_on(connection).endswith(b'{"bytes":4}')


def test_a_reply_before_the_end_of_a_body_ends_the_connection(server):
    head = b"POST %s HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    for path in (b"/v1/deaf", b"/nowhere"):
        with server.open() as connection:
            connection.sendall(head % path + b"4\r\nsome\r\n")
            reply = head_on(connection)
            assert b"connection: close" in reply.lower()
            connection.sendall(b"4\r\nmore\r\n0\r\n\r\n")
            rest = reply.partition(b"\r\n\r\n")[2] + until_closed(connection)
            assert b"HTTP/" not in rest  # nothing read what followed as another request


def test_a_body_that_goes_on_for_ever_after_the_reply_is_cut_off(server, monkeypatch):
    monkeypatch.setattr(body, "LINGER_SECONDS", 0.2)
    head = b"POST /v1/deaf HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with server.open() as connection:
        connection.sendall(head)
        chunk = b"2710\r\n" + b"x" * 10_000 + b"\r\n"
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            connection.sendfile(Endless(chunk))


def test_a_request_without_a_body_keeps_its_connection(server):
    with httpx.Client(base_url=server.url) as client:
        for _ in range(3):
            assert "connection" not in client.get("/v1/who").headers
            assert "connection" not in client.post("/v1/length", content=b"x").headers
        assert server.connections == 1


def test_a_body_that_comes_too_slowly_is_refused(server, monkeypatch):
    monkeypatch.setattr(body, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(body, "LINGER_SECONDS", 0.2)
    head = b"POST /v1/length HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n"
    answer = server.tell(head + b"some")  # and then nothing
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_too_slow"


def test_a_client_that_leaves_in_the_middle_of_a_body_leaves_nothing_behind(server, caplog):
    head = b"POST /v1/length HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n"
    for _ in range(5):
        with server.open() as connection:
            connection.sendall(head + b"some")
    ends = time.monotonic() + 60
    with httpx.Client() as client:
        while server.requests:
            client.get(f"{server.url}/healthz")
            assert time.monotonic() < ends, f"{server.requests} requests are open"
    assert "Traceback" not in caplog.text
    assert "Exception" not in caplog.text


def test_the_time_for_a_body_counts_only_while_it_is_waited_for(monkeypatch, settings):
    monkeypatch.setattr(body, "BODY_SECONDS", 0.3)
    told = []

    async def late_reader(scope, receive, send):
        await receive()
        await asyncio.sleep(0.4)
        message = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": message["body"]})

    parts = iter(
        [
            {"type": "http.request", "body": b"a", "more_body": True},
            {"type": "http.request", "body": b"b", "more_body": False},
        ]
    )

    async def receive():
        return next(parts)

    async def send(message):
        told.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/x",
        "headers": [(b"content-length", b"2")],
    }
    asyncio.run(BodyMiddleware(late_reader, settings)(scope, receive, send))
    assert [message.get("status", message.get("body")) for message in told] == [200, b"b"]


def test_the_wait_for_a_clients_leaving_has_no_end(monkeypatch, settings):
    monkeypatch.setattr(body, "BODY_SECONDS", 0.0)
    heard = []

    async def listener(scope, receive, send):
        heard.append((await receive())["type"])
        heard.append((await receive())["type"])

    parts = iter(["http.request", "http.disconnect"])

    async def receive():
        await asyncio.sleep(0.05)
        return {"type": next(parts)}

    async def send(message):
        heard.append(message)

    scope = {"type": "http", "method": "GET", "path": "/v1/x", "headers": []}
    asyncio.run(BodyMiddleware(listener, settings)(scope, receive, send))
    assert heard == ["http.request", "http.disconnect"]
