"""The LLM extractor against a real HTTP server on loopback: answers, failures, resumption."""

from __future__ import annotations

import email.utils
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coinkv.corpus.extract.base import Extractor
from coinkv.corpus.extract.llm import LLMExtractor
from coinkv.errors import EndpointError, InputError, StorageError

Reply = tuple[int, dict[str, str], str]


def answer(content: Any) -> Reply:
    return 200, {}, json.dumps({"choices": [{"message": {"content": content}}]})


def echo(text: str, _: int) -> Reply:
    return answer(json.dumps([text]))


@dataclass
class Endpoint:
    """A chat completions endpoint that answers by `reply(text, how often it was asked for it)`."""

    reply: Callable[[str, int], Reply] = echo
    asked: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    busy: int = 0
    busiest: int = 0
    url: str = ""

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.often: dict[str, int] = defaultdict(int)

    def handle(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Reply:
        text = body["messages"][-1]["content"].removeprefix("Passage:\n")
        with self.lock:
            self.busy += 1
            self.busiest = max(self.busiest, self.busy)
            self.asked.append(text)
            self.bodies.append(body)
            self.headers.append(headers)
            self.times.append(time.monotonic())
            self.often[text] += 1
            often = self.often[text]
        try:
            return self.reply(text, often) if path == "/v1/chat/completions" else (404, {}, "")
        finally:
            with self.lock:
                self.busy -= 1


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, headers, content = endpoint.handle(self.path, dict(self.headers), body)
            if status == 0:  # hang up without an answer
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content.encode())))
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    endpoint.url = f"http://127.0.0.1:{server.server_port}/v1"
    yield endpoint
    server.shutdown()
    server.server_close()


class Fallback(Extractor):
    def __init__(self, mark: str = "fallback") -> None:
        self.mark = mark

    def extract(self, text: str) -> list[str]:
        return [f"{self.mark} {text}"]


def make(endpoint: Endpoint, folder: Path, **options: Any) -> LLMExtractor:
    options = {"fallback": Fallback(), "backoff_seconds": 0.001, "max_retries": 3} | options
    return LLMExtractor(endpoint.url, "small-model", cache_dir=folder, **options)


def test_it_asks_for_verbatim_spans_at_temperature_zero(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda *_: answer('["one fact", "another"]')
    extractor = make(endpoint, tmp_path, api_key="secret", max_nuggets=17, max_words=23)
    assert extractor.extract("A passage.") == ["one fact", "another"]
    (body,) = endpoint.bodies
    assert (body["model"], body["temperature"]) == ("small-model", 0)
    prompt = body["messages"][0]["content"]
    assert all(part in prompt for part in ("17", "23", "character by character", "overlap", "[]"))
    assert endpoint.headers[0]["Authorization"] == "Bearer secret"
    assert extractor.counts == {"requests": 1, "retries": 0, "cached": 0, "malformed": 0}


def test_the_key_comes_from_the_environment_and_none_is_needed(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(endpoint, tmp_path).extract("one")
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    make(endpoint, tmp_path).extract("two")
    assert "Authorization" not in endpoint.headers[0]
    assert endpoint.headers[1]["Authorization"] == "Bearer from-environment"


@pytest.mark.parametrize(
    ("content", "candidates"),
    [
        ("[]", []),
        (' \n["a"]\n', ["a"]),
        ('```json\n["a", "b"]\n```', ["a", "b"]),
        ('Here you are:\n```\n["a"]\n```\nDone.', ["a"]),
        ('{"nuggets": ["a"], "count": 1}', ["a"]),
        ('<think>["no"]</think>\n["a"]', ["a"]),
    ],
)
def test_answers_in_known_wrappings_are_understood(
    endpoint: Endpoint, tmp_path: Path, content: str, candidates: list[str]
) -> None:
    endpoint.reply = lambda *_: answer(content)
    extractor = make(endpoint, tmp_path)
    assert extractor.extract("text") == candidates
    assert extractor.counts["malformed"] == 0


@pytest.mark.parametrize(
    "content",
    ["I cannot do that.", '["a", ', '["a", 3]', '{"a": ["x"], "b": ["y"]}', '"a"', "", None, "null",
     [{"type": "text"}], "[" * 50_000],
)  # fmt: skip
def test_a_malformed_answer_is_counted_and_left_to_the_fallback_and_not_kept(
    endpoint: Endpoint, tmp_path: Path, content: Any
) -> None:
    endpoint.reply = lambda _, often: answer(content) if often == 1 else answer('["good"]')
    extractor = make(endpoint, tmp_path)
    assert extractor.extract("text") == ["fallback text"]
    assert extractor.counts["malformed"] == 1
    assert extractor.extract("text") == ["good"]
    assert extractor.counts["malformed"] == 1


def test_no_more_candidates_than_asked_for_are_taken(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda *_: answer(json.dumps(["a", "b", "c"]))
    assert make(endpoint, tmp_path, max_nuggets=2).extract("text") == ["a", "b"]


def test_blank_texts_are_not_sent(endpoint: Endpoint, tmp_path: Path) -> None:
    assert list(make(endpoint, tmp_path).extract_all(["", " \n"])) == [[], []]
    assert endpoint.asked == []


def test_a_busy_endpoint_is_asked_again_not_before_it_wishes(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.reply = lambda text, often: (
        (429, {"Retry-After": "0.3"}, "slow down") if often == 1 else echo(text, often)
    )
    extractor = make(endpoint, tmp_path)
    assert extractor.extract("text") == ["text"]
    first, second = endpoint.times
    assert second - first >= 0.3
    assert (extractor.counts["requests"], extractor.counts["retries"]) == (2, 1)


def test_a_retry_date_is_honoured(endpoint: Endpoint, tmp_path: Path) -> None:
    when = email.utils.formatdate(time.time() + 2, usegmt=True)
    endpoint.reply = lambda text, often: (
        (503, {"Retry-After": when}, "") if often == 1 else echo(text, often)
    )
    begun = time.time()
    make(endpoint, tmp_path).extract("text")
    # HTTP dates have whole seconds, so the date lies 1 to 2 seconds ahead.
    assert time.time() >= email.utils.parsedate_to_datetime(when).timestamp() > begun


def test_an_endpoint_that_asks_to_wait_for_hours_is_given_up(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.reply = lambda *_: (429, {"Retry-After": "7200"}, "")
    with pytest.raises(EndpointError, match="7200 seconds"):
        make(endpoint, tmp_path).extract("text")
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize("failure", [(500, {}, "oops"), (0, {}, "")], ids=["500", "hung up"])
def test_a_failing_endpoint_is_given_up_after_the_retries(
    endpoint: Endpoint, tmp_path: Path, failure: Reply
) -> None:
    endpoint.reply = lambda *_: failure
    extractor = make(endpoint, tmp_path, max_retries=2)
    with pytest.raises(EndpointError) as caught:
        extractor.extract("text")
    assert len(endpoint.asked) == 3
    assert endpoint.url in str(caught.value)
    assert extractor.counts["retries"] == 2


def test_a_failure_that_passes_is_survived(endpoint: Endpoint, tmp_path: Path) -> None:
    failures = {1: (502, {}, "bad gateway"), 2: (0, {}, "")}
    endpoint.reply = lambda text, often: failures.get(often) or echo(text, often)
    assert make(endpoint, tmp_path).extract("text") == ["text"]


def test_a_time_out_is_retried(endpoint: Endpoint, tmp_path: Path) -> None:
    release = threading.Event()

    def reply(text: str, often: int) -> Reply:
        if often == 1:
            release.wait(5)
        return echo(text, often)

    endpoint.reply = reply
    assert make(endpoint, tmp_path, timeout_seconds=0.2).extract("text") == ["text"]
    release.set()
    assert len(endpoint.asked) == 2


def test_an_unreachable_endpoint_is_an_endpoint_error(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.url = "http://127.0.0.1:9/v1"
    with pytest.raises(EndpointError, match="127"):
        make(endpoint, tmp_path, max_retries=1).extract("text")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 301])
def test_a_refusal_ends_at_once_with_what_to_do(
    endpoint: Endpoint, tmp_path: Path, status: int
) -> None:
    endpoint.reply = lambda *_: (status, {}, "the model\nis unknown")
    with pytest.raises(EndpointError) as caught:
        make(endpoint, tmp_path, api_key="secret").extract("text")
    assert len(endpoint.asked) == 1
    assert str(status) in str(caught.value)
    assert caught.value.hint
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("content", ["<html>", '{"choices": []}', "[]", '{"choices": [1]}'])
def test_an_answer_in_another_protocol_is_an_endpoint_error(
    endpoint: Endpoint, tmp_path: Path, content: str
) -> None:
    endpoint.reply = lambda *_: (200, {}, content)
    with pytest.raises(EndpointError, match="chat completions"):
        make(endpoint, tmp_path).extract("text")


def test_answers_come_in_order_and_the_concurrency_is_never_exceeded(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    def reply(text: str, often: int) -> Reply:
        time.sleep(0.03 if int(text) % 3 == 0 else 0.005)
        return echo(text, often)

    endpoint.reply = reply
    texts = [str(number) for number in range(40)]
    assert list(make(endpoint, tmp_path, concurrency=3).extract_all(texts)) == [[t] for t in texts]
    assert endpoint.busiest == 3


def test_the_same_text_twice_is_paid_for_once(endpoint: Endpoint, tmp_path: Path) -> None:
    results = list(make(endpoint, tmp_path).extract_all(["a", "a", "b", "a"]))
    assert results == [["a"], ["a"], ["b"], ["a"]]
    assert sorted(endpoint.asked) == ["a", "b"]
    results[0].append("changed by the caller")
    assert results[1] == ["a"]


def test_an_interrupted_run_resumes_without_paying_again(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    texts = [str(number) for number in range(30)]
    endpoint.reply = lambda text, often: (401, {}, "") if text == "17" else echo(text, often)
    taken: list[list[str]] = []
    with pytest.raises(EndpointError):
        taken.extend(make(endpoint, tmp_path, concurrency=2).extract_all(texts))
    assert taken == [[text] for text in texts[:17]]
    answered = [text for text in endpoint.asked if text != "17"]
    endpoint.reply, endpoint.asked = echo, []
    again = make(endpoint, tmp_path, concurrency=2)
    assert list(again.extract_all(texts)) == [[text] for text in texts]
    assert not set(endpoint.asked) & set(answered)
    assert again.counts["cached"] == len(answered)


def test_leaving_a_run_early_keeps_what_was_answered_and_asks_no_more(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    texts = [str(number) for number in range(100)]
    run = make(endpoint, tmp_path, concurrency=2).extract_all(texts)
    assert next(run) == ["0"]
    run.close()
    answered = len(endpoint.asked)
    assert answered < 50
    time.sleep(0.05)
    assert len(endpoint.asked) == answered
    endpoint.asked = []
    list(make(endpoint, tmp_path).extract_all(texts))
    assert len(endpoint.asked) == len(texts) - answered


def test_leaving_a_run_does_not_wait_for_its_retries(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda text, often: (
        echo(text, often) if text == "a" else (429, {"Retry-After": "500"}, "")
    )
    run = make(endpoint, tmp_path, concurrency=2).extract_all(["a", "b"])
    assert next(run) == ["a"]
    run.close()
    assert endpoint.asked.count("b") <= 1


def test_kept_answers_are_never_mixed_between_models_prompts_and_texts(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    make(endpoint, tmp_path).extract("text")
    LLMExtractor(
        endpoint.url, "other-model", cache_dir=tmp_path, fallback=Fallback()
    ).extract("text")  # fmt: skip
    make(endpoint, tmp_path, max_words=9).extract("text")
    make(endpoint, tmp_path).extract("text ")
    assert len(endpoint.asked) == 4
    make(endpoint, tmp_path, fallback=Fallback("other")).extract("text")
    assert len(endpoint.asked) == 4


def test_the_identity_follows_model_prompt_and_fallback_and_hides_the_key(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    base = make(endpoint, tmp_path, api_key="secret")
    assert base.identity == make(endpoint, tmp_path / "other", concurrency=2).identity
    assert "secret" not in base.identity
    others = [
        make(endpoint, tmp_path, fallback=Fallback("other")),
        make(endpoint, tmp_path, max_words=9),
        make(endpoint, tmp_path, max_nuggets=9),
    ]
    assert len({extractor.identity for extractor in [base, *others]}) == 4


def test_a_damaged_kept_answer_is_asked_for_again(endpoint: Endpoint, tmp_path: Path) -> None:
    make(endpoint, tmp_path).extract("text")
    (kept,) = tmp_path.rglob("*.json")
    for damage in (b'["te', b"", b"\xff\xfe", b"{}"):
        kept.write_bytes(damage)
        assert make(endpoint, tmp_path).extract("text") == ["text"]
        assert json.loads(kept.read_text()) == ["text"]
    assert len(endpoint.asked) == 5
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [kept]


def test_a_folder_that_cannot_be_written_is_a_storage_error(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="file"):
        make(endpoint, tmp_path / "file").extract("text")


@pytest.mark.parametrize(
    "url", ["", "localhost:8000/v1", "ftp://host/v1", "http://", "http://user:word@host/v1"]
)
def test_a_base_url_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(InputError):
        LLMExtractor(url, "model", cache_dir=tmp_path, fallback=Fallback())


@pytest.mark.parametrize(
    "option", [{"concurrency": 0}, {"max_retries": -1}, {"timeout_seconds": 0}, {"max_nuggets": 0}]
)
def test_numbers_out_of_range_are_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        LLMExtractor("http://host/v1", "m", cache_dir=tmp_path, fallback=Fallback(), **option)
