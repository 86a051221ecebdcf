"""Fixtures of tests that talk to the server of `chatting`: name this module in `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from chatting import ALIASES, CHAT, CONTEXT, MOST_TOKENS, TEMPLATE, wait_until
from serving import Running, running, settings_for

from coinkv.model.load import load
from coinkv.model.threads import one_thread
from coinkv.rag.build import BuildOptions, build
from small_corpus import CHUNK_TOKENS, write_documents
from tiny_models import save_tiny_model


@pytest.fixture(scope="session")
def chat_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The server, for tests that only ask it."""
    folder = tmp_path_factory.mktemp("chatting")
    model = {"model_type": "llama", "max_position_embeddings": CONTEXT}
    with one_thread():
        saved = save_tiny_model(folder / CHAT, model, chat_template=TEMPLATE)
        backbone = replace(load(str(saved), device="cpu"), end_token_ids=frozenset())
        documents = write_documents(folder / "documents")
        options = BuildOptions(model=backbone, chunk_tokens=CHUNK_TOKENS)
        build(documents, folder / "index", options)
    settings = settings_for(
        folder,
        model=str(saved),
        indexes=(folder / "index",),
        aliases=ALIASES,
        answer_tokens=12,
        most_answer_tokens=MOST_TOKENS,
    )
    with running(settings, backbone) as server:
        yield server


@pytest.fixture
def chat_server(chat_running: Running) -> Iterator[str]:
    """Its base URL; no test leaves work behind."""
    yield chat_running.url
    wait_until(lambda: not chat_running.service.scheduler.load().busy)


@pytest.fixture
def http(chat_server: str) -> Iterator[httpx.Client]:
    """A client of it."""
    with httpx.Client(base_url=chat_server, timeout=60) as client:
        yield client


@pytest.fixture
def outcomes(chat_running: Running, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How the requests of this test left the scheduler."""
    seen: list[str] = []
    observer = chat_running.service.metrics
    ended = observer.ended

    def note(kind: str, outcome: Any, seconds: float) -> None:
        seen.append(outcome)
        ended(kind, outcome, seconds)

    monkeypatch.setattr(observer, "ended", note)
    return seen
