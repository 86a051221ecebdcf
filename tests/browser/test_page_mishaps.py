"""Mishaps: each says what is wrong, and offers the way out that fits."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from browser.scripted_content import ANSWER, entry, job
from browser.scripted_server import Script
from browser.test_page_asking import NUMBERED, ask


@pytest.fixture(autouse=True)
def refusals_are_expected(watch: Any) -> None:
    watch.refusals_expected = True


def test_a_busy_server_is_asked_again_after_a_countdown(page: Any, script: Script) -> None:
    script.refusals = [(429, "too many requests wait", {"retry-after": "2"})]
    ask(page)
    button = page.get_by_role("button", name="Try again")
    expect(page.get_by_role("alert")).to_contain_text("as much to do as it takes on")
    expect(button).to_be_disabled()
    expect(button).to_have_text("Try again in 1 s")
    expect(button).to_have_text("Try again")
    button.click()
    expect(page.locator(".answer-text")).to_have_text(NUMBERED)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_server_with_keys_asks_for_one_and_keeps_it_in_the_tab_only(
    visit: Any, site: str, script: Script
) -> None:
    script.keys = ("right",)
    page = visit(site)
    expect(page.get_by_role("heading", name="This server needs an API key")).to_be_visible()
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_text("It does not know the key that was given")).to_be_visible()
    page.get_by_label("API key").fill("right")
    page.get_by_role("button", name="Use this key").click()
    ask(page)
    expect(page.locator(".answer-text")).to_have_text(NUMBERED)
    assert page.evaluate("Object.values(sessionStorage)") == ["right"]
    assert "right" not in str(page.evaluate("Object.values(localStorage)"))
    assert set(script.keys_seen) == {"", "wrong", "right"}


def test_a_key_that_is_refused_in_the_middle_is_asked_for_in_place(
    page: Any, script: Script
) -> None:
    script.refusals = [(401, "this key is not valid", {})]
    ask(page)
    page.get_by_role("alert").get_by_label("API key").fill("new")
    page.get_by_role("button", name="Use this key").click()
    expect(page.locator(".answer-text")).to_have_text(NUMBERED)
    assert script.keys_seen[-1] == "new"


def test_while_the_first_index_is_built_its_progress_is_shown_and_then_it_can_be_asked(
    visit: Any, site: str, script: Script
) -> None:
    script.pace_seconds = 0.2
    script.indexes = [entry("law", state="building", job=job(index="law"))]
    page = visit(site)
    expect(page.get_by_role("heading", name="law is being encoded")).to_be_visible()
    expect(page.get_by_role("progressbar", name="Encoding chunks")).to_be_visible()
    page.get_by_label("Question").fill("Who?")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    expect(page.get_by_role("heading", name="Ask your documents")).to_be_visible()
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".answer-text")).to_have_text(NUMBERED)


def test_a_503_says_why_and_can_be_tried_again(page: Any, script: Script) -> None:
    script.refusals = [(503, "the index is not built yet", {"retry-after": "1"})]
    ask(page)
    expect(page.get_by_role("alert")).to_contain_text("The index is not built yet.")
    page.get_by_role("button", name="Try again", exact=True).click()
    expect(page.locator(".answer-text")).to_have_text(NUMBERED)


def test_a_stream_that_breaks_leaves_what_came_and_can_be_asked_again(
    page: Any, script: Script
) -> None:
    script.break_after = 4
    ask(page)
    expect(page.get_by_role("alert")).to_contain_text("The connection broke")
    expect(page.locator(".answer-text")).to_have_text("It was 🌾 Benjamin")
    script.break_after = None
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".answer-text")).to_have_text(NUMBERED)


def test_an_error_inside_a_stream_is_told_as_one(page: Any) -> None:
    chunk = '{"choices": [{"index": 0, "delta": {"content": "Half"}}]}'
    error = '{"error": {"message": "the server shuts down"}}'
    body = f"data: {chunk}\n\ndata: {error}\n\ndata: [DONE]\n\n"
    page.route("**/chat/completions", lambda route: route.fulfill(body=body))
    ask(page)
    expect(page.get_by_role("alert")).to_contain_text("The server shuts down.")
    expect(page.locator(".answer-text")).to_have_text("Half")


def test_a_request_that_never_arrives_can_be_sent_again(page: Any) -> None:
    page.route("**/chat/completions", lambda route: route.abort())
    ask(page)
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
    page.unroute("**/chat/completions")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".answer-text")).to_have_text(NUMBERED)


def test_a_server_that_is_gone_is_found_again_when_it_is_back(visit: Any, site: str) -> None:
    page = visit(site)
    expect(page.get_by_role("heading", name="Ask your documents")).to_be_visible()
    page.route("**/v1/**", lambda route: route.abort())
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.get_by_role("alert")).to_contain_text("goes on trying to reach it")
    page.unroute("**/v1/**")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_an_empty_library_invites_to_upload(visit: Any, site: str, script: Script) -> None:
    script.indexes = []
    page = visit(site)
    expect(page.get_by_role("heading", name="Start with a few documents")).to_be_visible()
    expect(page.get_by_text("Choose files")).to_be_visible()
    ask(page)  # the model alone, meanwhile
    expect(page.locator(".answer-text")).to_have_text(ANSWER)
    assert script.asked[0]["model"] == "smollm2-135m-instruct"
