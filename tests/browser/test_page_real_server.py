"""The page before the real server: a tiny model with random weights, so answers are gibberish."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from browser.test_page_asking import ask
from coinkv.model.load import load
from coinkv.model.threads import one_thread
from coinkv.rag.build import BuildOptions, build
from serve.serving import Running, running, settings_for
from small_corpus import CHUNK_TOKENS, quick, write_documents  # noqa: F401 - fixture
from tiny_models import save_tiny_model

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
)
MOST_TOKENS = 1500
INDEXING_MS = 120_000


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of its own, which these tests may change; its answers end only by their limit."""
    folder = tmp_path_factory.mktemp("page")
    config = {"model_type": "llama", "max_position_embeddings": 2048}
    saved = save_tiny_model(folder / "tiny-chat", config, chat_template=TEMPLATE)
    with one_thread():
        backbone = replace(load(str(saved), device="cpu"), end_token_ids=frozenset())
        documents = write_documents(folder / "documents")
        options = BuildOptions(model=backbone, chunk_tokens=CHUNK_TOKENS)
        build(documents, folder / "village", options)
    settings = settings_for(
        folder,
        model=str(saved),
        indexes=(folder / "village",),
        answer_tokens=12,
        most_answer_tokens=MOST_TOKENS,
    )
    with running(settings, backbone) as server:
        yield server


@pytest.fixture
def page(visit: Callable[..., Any], real: Running) -> Any:
    return visit(real.url)


def test_a_question_is_answered_with_its_stages_and_evidence_and_compared(page: Any) -> None:
    page.get_by_text("Compare with standard RAG").click()
    ask(page, "Who built the stone bridge?")
    expect(page.locator(".verdict")).to_contain_text("coinrag")
    answers = page.locator(".turn .answer")
    expect(answers).to_have_count(2)
    expect(answers.first.locator(".facts")).to_have_text(re.compile(r"context of \d+ tokens"))
    stages = page.locator(".timing-row").first.get_by_role("listitem")
    named = {text.split()[0] for text in stages.all_inner_texts()}
    assert {"queue", "embed", "retrieve", "read", "compose", "prefill"} <= named
    expect(page.locator(".chunk-text mark").first).to_be_visible()
    expect(page.get_by_text(re.compile(r"\d+ nuggets in \d+ chunks"))).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_a_prompt_streams_and_stopping_it_frees_its_slot(page: Any, real: Running) -> None:
    page.get_by_label("Ask", exact=True).select_option(index=1)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Most tokens of an answer").fill(str(MOST_TOKENS))
    page.keyboard.press("Escape")
    ask(page, "Tell me of the mill.")
    expect(page.locator(".answer-text")).not_to_have_text("")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    page.wait_for_timeout(500)
    load = real.service.scheduler.load()
    assert (load.queued, load.prefilling, load.decoding) == (0, 0, 0)
    page.get_by_role("link", name="Store").click()
    expect(page.get_by_role("heading", name="Tiers")).to_be_visible()


def test_a_document_is_uploaded_indexed_asked_and_removed(page: Any, tmp_path: Path) -> None:
    file = tmp_path / "kiln.txt"
    file.write_text("The kiln burns lime. Its chimney is 9 metres high.", encoding="utf-8")
    page.get_by_role("link", name="Documents").click()
    page.get_by_label("New index").fill("works")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="works")).to_be_visible()
    page.get_by_label("Choose files").set_input_files(file)
    ready = page.get_by_role("progressbar", name="Ready to be asked")
    expect(ready).to_be_visible(timeout=INDEXING_MS)
    expect(page.get_by_role("row", name="kiln.txt")).to_be_visible()

    page.get_by_role("link", name="Ask it").click()
    ask(page, "How high is the chimney?")
    expect(page.locator(".chunk-text")).to_contain_text("The kiln burns lime.")
    expect(page.get_by_role("button", name="Send")).to_be_visible()

    page.get_by_role("link", name="Documents").click()
    page.get_by_role("button", name="Remove kiln.txt").click()
    page.get_by_role("button", name="Remove the document").click()
    expect(page.get_by_text("No documents yet.")).to_be_visible(timeout=INDEXING_MS)
    expect(page.locator(".state")).to_have_text("empty")
