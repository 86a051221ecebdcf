"""Nuggets from a language model behind a real HTTP endpoint, from build to answer."""

from __future__ import annotations

import dataclasses
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from coinkv.corpus.extract.llm import LLMExtractor
from coinkv.corpus.extract.sentences import SentenceExtractor
from coinkv.errors import (
    EndpointError,
)
from coinkv.rag.ask import CoinRAG
from coinkv.rag.build import build
from coinkv.rag.index import Index
from small_corpus import QUESTIONS


class Endpoint(ThreadingHTTPServer):
    """A chat completions endpoint that marks the first four words of every passage."""

    def __init__(self, fails_after: int = 10**9) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.fails_after = fails_after
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        passage = body["messages"][-1]["content"].removeprefix("Passage:\n")
        self.server.asked.append(passage)
        ok = len(self.server.asked) <= self.server.fails_after
        spans = json.dumps([" ".join(passage.split()[:4]), "this stands nowhere in it"])
        content = json.dumps({"choices": [{"message": {"content": spans}}]}).encode()
        self.send_response(200 if ok else 401)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Endpoint()
    yield server
    server.shutdown()
    server.server_close()


def llm(endpoint, tmp_path):
    return LLMExtractor(
        endpoint.url,
        "marker",
        cache_dir=tmp_path / "extractions",
        fallback=SentenceExtractor(),
        concurrency=2,
        max_retries=0,
    )


def test_nuggets_of_a_language_model_reach_the_answers(village, tmp_path, options, endpoint):
    marked = dataclasses.replace(options, extractor=llm(endpoint, tmp_path))
    report = build(village, tmp_path / "index", marked)
    assert report.extractor_counts["requests"] == len(set(endpoint.asked)) == report.chunks
    assert report.nuggets["exact"] == report.nuggets["abandoned"] == report.chunks
    answer = CoinRAG(Index.open(tmp_path / "index", model=options.model)).ask(QUESTIONS[0])
    assert len(answer.evidence) == 5
    assert all(len(piece.text.split()) == 4 for piece in answer.evidence)


def test_a_paid_extraction_that_breaks_off_is_not_paid_again(village, tmp_path, options, endpoint):
    endpoint.fails_after = 6
    marked = dataclasses.replace(options, extractor=llm(endpoint, tmp_path))
    with pytest.raises(EndpointError, match="401"):
        build(village, tmp_path / "index", marked)
    answered = set(endpoint.asked[:6])
    endpoint.asked.clear()
    endpoint.fails_after = 10**9
    again = dataclasses.replace(options, extractor=llm(endpoint, tmp_path))
    report = build(village, tmp_path / "index", again)
    assert not answered & set(endpoint.asked)
    assert len(endpoint.asked) == report.chunks - 6
