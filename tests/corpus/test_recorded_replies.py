"""What two small models really replied, said again by a server to the extractor."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest

from coinkv.corpus.align import Alignment, align
from coinkv.corpus.chunks import Chunk
from coinkv.corpus.documents import read_documents
from coinkv.corpus.extract.llm import LLMExtractor
from coinkv.corpus.extract.sentences import SentenceExtractor

RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "fixtures" / "extraction_replies.jsonl")
    .read_text("utf-8")
    .splitlines()
]
BECOMES = {
    "a JSON list": {},
    "a JSON list that a limit of 256 tokens cut off": {"mended": 1, "cut_off": 1},
    "a fenced JSON list": {},
    "no fact": {"empty": 1},
    "one word until the limit": {"malformed": 1},
    "the passage retold": {"malformed": 1},
    "one sentence until the limit": {"malformed": 1},
    "the instructions, as bullets": {"malformed": 1},
}


class Endpoint(ThreadingHTTPServer):
    """Says one reply to everybody."""

    said: dict[str, Any]
    asked = 0


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        message = {"role": "assistant", "content": self.server.said["reply"]}
        choice = {"message": message, "finish_reason": self.server.said["finish_reason"]}
        content = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def documents() -> dict[str, str]:
    with as_file(files("coinkv.cli") / "demo_data" / "docs") as folder:
        return {document.key: document.text for document in read_documents(folder)}


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Endpoint(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def extractor(endpoint: Endpoint, folder: Path) -> LLMExtractor:
    url = f"http://127.0.0.1:{endpoint.server_address[1]}/v1"
    return LLMExtractor(url, "model", cache_dir=folder, fallback=SentenceExtractor())


def passage_of(row: dict[str, Any], documents: dict[str, str]) -> str:
    return documents[row["document"]][row["start"] : row["end"]]


def aligned(passage: str, candidates: list[str]) -> Alignment:
    """Coverage is counted in characters."""
    ids = tuple(map(ord, passage))
    characters = tuple((at, at + 1) for at in range(len(passage)))
    return align(candidates, Chunk("", 0, "", (), ids, characters, passage, 0, len(passage)))


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row["name"])
def test_a_reply_becomes_what_it_is_worth(
    row: dict[str, Any], documents: dict[str, str], endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.said = row
    asking = extractor(endpoint, tmp_path)
    passage = passage_of(row, documents)
    candidates = asking.extract(passage)
    counts = {name: n for name, n in asking.counts.items() if n and name != "requests"}
    assert counts == BECOMES[row["name"]]
    if counts.get("malformed"):
        assert candidates == SentenceExtractor().extract(passage)
    elif not counts.get("empty"):
        found = aligned(passage, candidates)
        assert found.exact > found.abandoned


def test_behind_the_cut_sentences_go_on(
    documents: dict[str, str], endpoint: Endpoint, tmp_path: Path
) -> None:
    whole, cut = json.loads(RECORDED[0]["reply"]), RECORDED[1]
    passage = passage_of(cut, documents)
    endpoint.said = cut
    candidates = extractor(endpoint, tmp_path).extract(passage)
    named = whole[: cut["reply"].count('",\n')]
    assert candidates[: len(named)] == named
    assert candidates[-1] == SentenceExtractor().extract(passage)[-1]
    assert aligned(passage, candidates).coverage > aligned(passage, named).coverage


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row["name"])
def test_a_usable_reply_is_asked_for_once_cut_off_or_not(
    row: dict[str, Any], documents: dict[str, str], endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.said = row
    passage = passage_of(row, documents)
    first = extractor(endpoint, tmp_path).extract(passage)
    again = extractor(endpoint, tmp_path)
    assert again.extract(passage) == first
    assert endpoint.asked == (2 if "malformed" in BECOMES[row["name"]] else 1)
    assert again.counts.get("cut_off", 0) == BECOMES[row["name"]].get("cut_off", 0)
