"""Connections that ask nothing, ask slowly, ask nonsense, or do not read the answer."""

from __future__ import annotations

import json
import socket
import time

import httpx
import pytest
from guarded import guarded_app, served

from coinkv.serve.security.connections import BoundedH11
from coinkv.serve.settings import ServeSettings
from raw_http import reply_on, until_closed

WHO = b"GET /v1/who HTTP/1.1\r\nhost: localhost\r\n\r\n"
PATIENCE_SECONDS = 60.0

POST = b"POST /v1/length HTTP/1.1\r\nhost: localhost\r\n"


class Hurried(BoundedH11):
    head_seconds = 1.0  # a busy machine needs a part of it between two lines of a test
    unread_seconds = 1.0


class Few(BoundedH11):
    most_connections = 4


class Lonely(BoundedH11):
    most_of_a_peer = 3


@pytest.fixture
def app(tmp_path):
    return guarded_app(ServeSettings(data_dir=tmp_path))


@pytest.fixture
def hurried(app):
    with served(app, Hurried) as server:
        yield server


def error_in(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error["code"]


def wait_until_closed(server):
    """Ask on until the server has no connection but the one it is asked on."""
    ends = time.monotonic() + PATIENCE_SECONDS
    with httpx.Client() as client:
        client.get(f"{server.url}/healthz")
        while server.connections > 1:
            assert time.monotonic() < ends, f"{server.connections} connections are open"
            client.get(f"{server.url}/healthz")


def test_a_connection_that_says_nothing_is_closed_without_a_word(hurried):
    assert hurried.tell(b"") == b""


@pytest.mark.parametrize("begun", [b"G", b"GET / HTTP/1.1\r\n", WHO[:-2]])
def test_a_head_that_does_not_end_is_answered_and_closed(hurried, begun):
    assert error_in(hurried.tell(begun)) == (408, "header_too_slow")


def test_a_head_that_comes_byte_by_byte_gains_no_time(hurried):
    with hurried.open() as connection:
        connection.settimeout(0.05)
        answer = b""
        for byte in WHO * 20:
            try:
                connection.sendall(bytes([byte]) if byte not in b"\r\n" else b"x")
                answer += connection.recv(65_536)
            except TimeoutError:
                continue
            except OSError:
                break
            if answer:
                break
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_second_head_has_its_time_too_and_no_more(hurried):
    with hurried.open() as connection:
        connection.sendall(WHO)
        assert reply_on(connection).startswith(b"HTTP/1.1 200 ")
        connection.sendall(WHO)
        assert reply_on(connection).startswith(b"HTTP/1.1 200 ")
        connection.sendall(WHO[:-2])
        assert error_in(until_closed(connection)) == (408, "header_too_slow")


def test_a_request_that_takes_longer_than_a_head_may_is_answered(hurried):
    head = b"POST /v1/length HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n"
    with hurried.open() as connection, httpx.Client() as client:
        connection.sendall(head)
        connection.settimeout(2 * Hurried.head_seconds)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        assert client.get(f"{hurried.url}/healthz").status_code == 200
        connection.sendall(b"four")
        assert reply_on(connection).endswith(b'{"bytes":4}')


def test_a_client_that_reads_nothing_of_its_answer_is_cut_off(hurried):
    with hurried.open() as connection:
        connection.sendall(b"GET /v1/flood HTTP/1.1\r\nhost: localhost\r\n\r\n")
        wait_until_closed(hurried)
        assert len(until_closed(connection)) < 20_000 * 10_000
    assert hurried.requests == 0


def test_a_client_that_reads_slowly_gets_all_of_its_answer(app):
    class Patient(Hurried):
        unread_seconds = 5.0

    with served(app, Patient) as server, server.open() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
        connection.sendall(b"GET /v1/flood HTTP/1.0\r\nhost: localhost\r\n\r\n")
        received = len(connection.recv(1_000))
        while piece := connection.recv(1_000_000):
            received += len(piece)
    assert received > 20_000 * 10_000


NONSENSE = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
    "no version": b"GET /\r\nhost: localhost\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
    "a space before a colon": b"GET / HTTP/1.1\r\nhost : localhost\r\n\r\n",
    "a NUL in a field": b"GET / HTTP/1.1\r\nhost: localhost\r\nx: a\x00b\r\n\r\n",
    "two lengths": POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\n",
    "a negative length": POST + b"content-length: -1\r\n\r\n",
    "a huge length": POST + b"content-length: " + b"9" * 5000 + b"\r\n\r\n",
    "another encoding": POST + b"transfer-encoding: gzip\r\n\r\n",
    "a bad chunk": POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    "a head without end": b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 100_000,
}


@pytest.fixture(scope="module")
def plain_server(tmp_path_factory):
    with served(guarded_app(ServeSettings(data_dir=tmp_path_factory.mktemp("data")))) as server:
        yield server


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_answered_with_an_error_object(plain_server, caplog, kind):
    answer = plain_server.tell(NONSENSE[kind])
    assert answer.count(b"HTTP/1.1 ") == 1
    assert error_in(answer) == (400, "not_http")
    assert "Traceback" not in caplog.text


def test_requests_sent_at_once_are_answered_in_their_order(plain_server):
    three = [b"GET /v1/texts/%d HTTP/1.1\r\nhost: localhost\r\n\r\n" % n for n in range(2)]
    last = b"GET /v1/texts/2 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    answer = plain_server.tell(b"".join([*three, last]))
    assert answer.count(b"HTTP/1.1 200 ") == 3
    places = [answer.index(b'{"key":"%d"}' % n) for n in range(3)]
    assert places == sorted(places)


def test_nothing_behind_a_request_of_two_lengths_is_taken_for_a_request(plain_server):
    smuggled = (
        b"POST /v1/length HTTP/1.1\r\nhost: localhost\r\ncontent-length: 6\r\n"
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\nX" + WHO
    )
    answer = plain_server.tell(smuggled)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert error_in(answer) == (400, "ambiguous_length")


def test_an_upgrade_to_a_websocket_is_not_made(plain_server):
    upgrade = WHO[:-2] + (
        b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with plain_server.open() as connection:
        connection.sendall(upgrade)
        assert reply_on(connection).startswith(b"HTTP/1.1 200 ")


def test_more_connections_than_there_may_be_are_refused(app):
    with served(app, Few) as server:
        wait_until_closed(server)
        held = [server.open() for _ in range(4)]
        for connection in held:
            connection.sendall(WHO)
            assert reply_on(connection).startswith(b"HTTP/1.1 200 ")
        assert error_in(server.tell(b"")) == (503, "too_many_connections")
        held.pop().close()
        ends = time.monotonic() + PATIENCE_SECONDS
        while httpx.get(f"{server.url}/healthz").status_code != 200:
            assert time.monotonic() < ends, "the place was not given to another"
        for connection in held:
            connection.close()


def test_one_address_may_not_take_all_connections_unless_it_is_this_machine(app, monkeypatch):
    with served(app, Lonely) as server:
        held = [server.open() for _ in range(5)]
        for connection in held:
            connection.sendall(WHO)
            assert reply_on(connection).startswith(b"HTTP/1.1 200 ")
            connection.close()
        wait_until_closed(server)
        monkeypatch.setattr(
            "uvicorn.protocols.http.h11_impl.get_remote_addr", lambda _: ("192.0.2.7", 1)
        )
        held = [server.open() for _ in range(3)]
        for connection in held:
            connection.sendall(WHO)
            assert reply_on(connection).startswith(b"HTTP/1.1 200 ")
        assert error_in(server.tell(b"")) == (503, "too_many_connections")
        for connection in held:
            connection.close()


def test_the_peer_is_the_connections_whatever_a_header_says(plain_server):
    told = {"x-forwarded-for": "10.0.0.1", "x-forwarded-proto": "https"}
    told = httpx.get(f"{plain_server.url}/v1/who", headers=told).json()
    assert told["client"] == "127.0.0.1"
