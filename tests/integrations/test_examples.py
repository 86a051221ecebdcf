"""The examples run as they are, in processes of their own that reach no network but loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from small_corpus import DOCUMENTS

EXAMPLES = Path(__file__).parents[2] / "examples"
COST = {
    "langchain_rag": r"\d+ tokens read, \d+ of them reused; first token after \d+ ms",
    "llama_index_query": r"first token after \d+ ms \(embed \d+, retrieve \d+, .*prefill \d+\)",
}


def run(example: str, *arguments: str | Path, offline: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{example}.py", *arguments],
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    attempts = Path(offline["ATTEMPTS"])
    assert not attempts.exists(), attempts.read_text()
    return done.stdout


@pytest.mark.parametrize("example", COST)
def test_an_example_answers_every_question_over_a_folder(
    example, village, chat_folder, tmp_path, offline
):
    questions = ["Who built the stone bridge?", "Who built the old stone bridge?"]
    options = ["--docs", village, "--model", chat_folder, "--index", tmp_path / "index"]
    said = run(example, *options, *questions, offline=offline)
    assert re.findall(r"^> (.*)$", said, re.MULTILINE) == questions
    assert len(re.findall(COST[example], said)) == len(questions)


@pytest.fixture
def served(
    chat_folder: Path, chat_index_folder: Path, tmp_path: Path, offline: dict[str, str]
) -> Iterator[str]:
    """Base URL of a `coinkv serve` over the village, run as a user runs it."""
    options = ["--index", chat_index_folder, "--model", chat_folder, "--port", "0"]
    main = "from coinkv.cli.main import main; main()"
    command = [sys.executable, "-c", main, "serve", *options]
    with subprocess.Popen(
        [*command, "--data-dir", tmp_path / "data"],
        env={**os.environ, **offline, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            for line in server.stdout or ():
                if told := re.match(r"coinkv serves .* at (\S+)$", line):
                    break
            else:
                pytest.fail("the server ended before it listened")
            url = told.group(1)
            while httpx.get(f"{url}/readyz").status_code != 200:
                assert server.poll() is None
                time.sleep(0.1)
            yield url
        finally:
            server.terminate()


def test_the_openai_example_streams_an_answer_its_evidence_and_a_follow_up(
    served: str, offline: dict[str, str]
) -> None:
    questions = ["Who built the stone bridge?", "When did she build it?"]
    said = run("openai_client", "--url", f"{served}/v1", *questions, offline=offline)
    assert re.findall(r"^> (.*)$", said, re.MULTILINE) == questions
    assert len(re.findall(r"first token after \d+ ms, \d+ tokens of the prompt reused", said)) == 2
    places = re.findall(r"/v1/indexes/index/documents/(\S+)#char=(\d+),(\d+) (.*)", said)
    assert len(places) == 6
    for document, start, end, quote in places:
        if document.endswith(".txt"):
            assert DOCUMENTS[document][int(start) : int(end)] == quote


@pytest.mark.slow
def test_the_langchain_example_answers_from_the_demo_documents(tmp_path, offline):
    said = run("langchain_rag", "--index", tmp_path / "index", offline=offline)
    first, second = re.findall(r"(\d+) tokens read, (\d+) of them reused", said)
    assert "1972" in said
    assert int(first[1]) < int(second[1]) < int(second[0])


@pytest.mark.slow
def test_the_llama_index_example_answers_from_the_demo_documents(tmp_path, offline):
    said = run("llama_index_query", "--index", tmp_path / "index", offline=offline)
    assert "1972" in said
    assert "android_robot.md" in said
