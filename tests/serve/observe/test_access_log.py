"""One line a request, and never a word of what was asked or answered."""

from __future__ import annotations

import asyncio
import io
import logging
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import uvicorn
from fastapi.testclient import TestClient
from log_lines import Lines
from stand_in import SECRET, StandIn, app_over

from coinkv.errors import InputError, StorageError
from coinkv.serve.observe.logs import configure_logs, logger_named
from coinkv.serve.settings import ServeSettings


@pytest.fixture
def client() -> TestClient:
    return TestClient(app_over(StandIn()), raise_server_exceptions=False)


@pytest.fixture
def server(lines: Lines) -> Iterator[str]:
    """The app under uvicorn on loopback, as the server runs it."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # a client may come before the server looks
        config = uvicorn.Config(app_over(StandIn()), log_config=None, lifespan="off")
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, args=([listening],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            running.should_exit = True
            thread.join()


def test_a_request_leaves_one_line_with_what_an_operator_asks_for(
    client: TestClient, lines: Lines
) -> None:
    client.post("/v1/answers/some/name", content="hello", headers={"x-request-id": "r1"})
    (line,) = lines.all
    assert line["event"] == "request"
    assert line["level"] == "info"
    assert line["logger"] == "coinkv.access"
    assert (line["request_id"], line["client"], line["namespace"]) == ("r1", "ann", "law")
    assert (line["method"], line["route"]) == ("POST", "/v1/answers/{name:path}")
    assert (line["status"], line["complete"]) == (200, True)
    assert (line["prompt_tokens"], line["cached_tokens"], line["answer_tokens"]) == (50, 40, 1)
    assert 0 <= line["ttft_ms"] <= 1000 * line["seconds"] + 1
    assert line["timestamp"].endswith("Z")


def test_nothing_of_what_a_client_sends_or_gets_is_logged(client: TestClient, lines: Lines) -> None:
    for path in (
        f"/v1/answers/{SECRET}?key={SECRET}",
        f"/{SECRET}",
        f"/v1/faults?{SECRET}",
        "/v1/streams",
    ):
        client.post(
            path,
            content=SECRET,
            headers={"authorization": f"Bearer {SECRET}", "cookie": SECRET, "x-other": SECRET},
        )
    with pytest.raises(ValueError, match=SECRET):
        TestClient(client.app).post("/v1/broken-streams")
    assert len(lines.named("request")) == 5
    assert SECRET not in lines.text


def test_the_same_holds_under_uvicorn_whatever_comes(server: str, lines: Lines) -> None:
    secret = {"authorization": f"Bearer {SECRET}"}
    with httpx.Client(base_url=server, headers=secret) as client:
        client.post(f"/v1/answers/{SECRET}?q={SECRET}", content=SECRET)
        client.post("/v1/faults", content=SECRET)
        with pytest.raises(httpx.RemoteProtocolError):
            client.post("/v1/broken-streams", content=SECRET)
    port = int(server.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(f"POST /{SECRET} HTTP/9.9\r\n{SECRET}\r\n\r\n".encode())
        raw.recv(1000)
    assert len(lines.named("request")) == 3
    assert SECRET not in lines.text


def test_uvicorns_own_lines_go_the_same_way_and_its_access_lines_nowhere(
    server: str, lines: Lines
) -> None:
    httpx.get(f"{server}/healthz?q={SECRET}")
    loggers = {line["logger"] for line in lines.all}
    assert "uvicorn.error" in loggers
    assert "uvicorn.access" not in loggers
    assert {"event", "level", "timestamp", "logger"} <= lines.all[0].keys()


def test_a_fault_is_told_once_with_where_it_came_from(server: str, lines: Lines) -> None:
    httpx.post(f"{server}/v1/faults", headers={"x-request-id": "r1"})
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{server}/v1/broken-streams", headers={"x-request-id": "r2"})
    told = [line for line in lines.all if "exception" in line]
    assert [line["request_id"] for line in told] == ["r1", "r2"]
    assert told[0]["exception"].startswith("builtins.KeyError\n")
    assert "stand_in:" in told[0]["exception"]
    levels = {line["request_id"]: line["level"] for line in lines.named("request")}
    assert levels == {"r1": "error", "r2": "info"}


def test_a_client_that_leaves_is_told_from_one_that_stays(server: str, lines: Lines) -> None:
    with httpx.stream("GET", f"{server}/v1/endless") as response:
        next(response.iter_bytes())
    for _ in range(6_000):
        if lines.named("request"):
            break
        time.sleep(0.01)
    (line,) = lines.named("request")
    assert (line["status"], line["complete"]) == (200, False)


def test_a_failure_in_a_stream_is_named_by_its_kind(client: TestClient, lines: Lines) -> None:
    client.post("/v1/streams")
    (line,) = lines.named("request")
    assert (line["status"], line["error"]) == (200, "DeadlineError")


def test_probes_are_lines_for_debugging_only(lines: Lines) -> None:
    client = TestClient(app_over(StandIn(ready=False)))
    statuses = [client.get(path).status_code for path in ("/healthz", "/readyz", "/metrics")]
    assert statuses == [200, 503, 200]
    assert {line["level"] for line in lines.named("request")} == {"debug"}


def logged(error: Exception, lines: Lines) -> str:
    try:
        raise error
    except type(error):
        logging.getLogger("coinkv.some.module").exception("it failed")
    return str(lines.named("it failed")[-1]["exception"])


def test_an_errors_message_is_logged_where_it_speaks_of_the_machine(lines: Lines) -> None:
    assert "No space left" in logged(OSError(28, "No space left on device"), lines)
    assert "the disk refuses" in logged(StorageError("the disk refuses"), lines)


@pytest.mark.parametrize(
    "error",
    [ValueError(SECRET), KeyError(SECRET), InputError(SECRET), UnicodeError(SECRET)],
    ids=lambda error: type(error).__name__,
)
def test_an_errors_message_that_may_quote_a_client_is_not(error: Exception, lines: Lines) -> None:
    assert SECRET not in logged(error, lines)
    assert type(error).__name__ in lines.text


def test_the_causes_of_an_error_are_told_in_the_same_way(lines: Lines) -> None:
    try:
        try:
            raise ValueError(SECRET)
        except ValueError as cause:
            raise StorageError("cannot be read") from cause
    except StorageError:
        logger_named("coinkv.x").exception("it failed")
    told = lines.all[-1]["exception"]
    assert told.index("StorageError: cannot be read") < told.index("builtins.ValueError\n")
    assert SECRET not in lines.text


def test_a_task_that_nobody_awaited_does_not_show_its_error(lines: Lines) -> None:
    async def failing() -> None:
        raise ValueError(SECRET)

    async def main() -> None:
        task = asyncio.create_task(failing())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task

    asyncio.run(main())
    assert lines.named("Task exception was never retrieved")
    assert SECRET not in lines.text


def test_other_packages_speak_from_warnings_on_and_in_one_line(lines: Lines) -> None:
    logging.getLogger("httpx").info("HTTP Request: POST http://x/?key=1")
    logging.getLogger("transformers").warning("first\nsecond %s", SECRET)
    assert [line["event"] for line in lines.all] == ["first"]


def test_a_level_hides_what_is_below_it(own_logging: None) -> None:
    stream = io.StringIO()
    configure_logs(ServeSettings(log_level="warning"), stream)
    TestClient(app_over(StandIn())).get("/nowhere")
    logging.getLogger("coinkv.x").warning("mind this")
    assert [line.count("mind this") for line in stream.getvalue().splitlines()] == [1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("chosen", "stream", "as_json"),
    [
        ("auto", io.StringIO(), True),
        ("auto", Terminal(), False),
        ("json", Terminal(), True),
        ("console", io.StringIO(), False),
    ],
)
def test_lines_are_json_where_no_person_reads_them(
    own_logging: None, chosen: str, stream: io.StringIO, as_json: bool
) -> None:
    configure_logs(ServeSettings(log_format=chosen), stream)
    logging.getLogger("coinkv.x").info("hello")
    assert stream.getvalue().startswith("{") is as_json
    assert "hello" in stream.getvalue()


def test_configuring_twice_writes_each_line_once(own_logging: None) -> None:
    streams = io.StringIO(), io.StringIO()
    for stream in streams:
        configure_logs(ServeSettings(), stream)
    logging.getLogger("coinkv.x").info("hello")
    assert [stream.getvalue().count("hello") for stream in streams] == [0, 1]
