"""Asking: the answer streams, can be stopped, continued, and compared."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from browser.scripted_content import ANSWER, CITED
from browser.scripted_server import Script

QUESTION = "Who conducted experiments on the use of gypsum as a fertilizer?"
NUMBERED = ANSWER.replace(CITED, f"{CITED}12")
"""The answer with the numbers of the evidence behind what it supports."""


def ask(page: Any, question: str = QUESTION) -> None:
    page.get_by_label("Question").fill(question)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.keyboard.press("Enter")


def test_an_answer_is_on_the_page_word_by_word_before_it_is_complete(
    page: Any, script: Script
) -> None:
    script.pace_seconds = 0.25
    ask(page)
    answer = page.locator(".answer-text")
    expect(answer).to_have_text("It was 🌾 Benjamin")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    script.pace_seconds = 0
    expect(answer).to_have_text(NUMBERED)
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_the_figures_tell_what_the_answer_was_made_of_and_by_what(page: Any) -> None:
    ask(page)
    figures = page.locator(".facts")
    expect(figures).to_contain_text("context of 312 tokens · 24 computed live")
    expect(figures).to_contain_text("adapter made-for-nuggets")


@pytest.mark.parametrize("by", ["button", "Escape"])
def test_an_answer_can_be_stopped_and_the_server_hears_of_it(
    page: Any, script: Script, by: str
) -> None:
    script.pace_seconds = 0.2
    ask(page)
    expect(page.locator(".answer-text")).to_contain_text("It was")
    if by == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    expect(page.get_by_text("Stopped.")).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    said = page.locator(".answer-text").inner_text()
    assert said.startswith("It was")
    assert "gypsum" not in said
    page.wait_for_timeout(600)
    assert script.left == 1
    assert page.locator(".answer-text").inner_text() == said


def test_shift_enter_breaks_the_line_and_enter_sends(page: Any, script: Script) -> None:
    field = page.get_by_label("Question")
    field.press_sequentially("One")
    page.keyboard.press("Shift+Enter")
    field.press_sequentially("two")
    expect(field).to_have_value("One\ntwo")
    assert script.asked == []
    page.keyboard.press("Enter")
    expect(field).to_have_value("")
    expect(page.locator(".answer-text")).to_have_text(NUMBERED)
    assert script.asked[0]["messages"] == [{"role": "user", "content": "One\ntwo"}]


def test_a_blank_question_is_not_sent(page: Any, script: Script) -> None:
    page.get_by_label("Question").fill("  \n ")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    assert script.asked == []


def test_earlier_turns_go_along_and_the_condensed_question_is_shown(
    page: Any, script: Script
) -> None:
    ask(page)
    expect(page.locator(".answer-text")).to_have_text(NUMBERED)
    expect(page.get_by_text("Asked as")).to_have_count(0)
    ask(page, "And where?")
    expect(page.get_by_text("Asked as")).to_contain_text("And where? (gypsum)")
    assert [m["content"] for m in script.asked[1]["messages"]] == [QUESTION, ANSWER, "And where?"]
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".turn")).to_have_count(0)
    ask(page, "Who?")
    expect(page.locator(".answer-text")).to_have_text(NUMBERED)
    assert len(script.asked[2]["messages"]) == 1


def test_the_time_to_the_first_token_is_named_stage_by_stage(page: Any) -> None:
    ask(page)
    timing = page.get_by_role("region", name="Time to the first token")
    expect(timing.locator(".timing-total")).to_have_text("191 ms")
    stages = [" ".join(text.split()) for text in timing.get_by_role("listitem").all_inner_texts()]
    assert stages == [
        "queue 0.4 ms",
        "prepare 0.3 ms",
        "embed 21 ms",
        "retrieve 0.9 ms",
        "read 4.2 ms",
        "compose 6.1 ms",
        "prefill 158 ms",
    ]
    bar = timing.locator(".stack")
    share = bar.locator(".stage-prefill").bounding_box()["width"] / bar.bounding_box()["width"]
    assert share == pytest.approx(158 / 191.3, abs=0.02)


def test_a_comparison_asks_both_one_after_the_other_and_draws_them_on_one_scale(
    page: Any, script: Script
) -> None:
    script.pace_seconds = 0.1
    page.get_by_text("Compare with standard RAG").click()
    ask(page)
    expect(page.locator(".answer-text")).to_contain_text("Benjamin")
    expect(page.get_by_text("Asked when the first answer is complete")).to_be_visible()
    assert len(script.asked) == 1
    script.pace_seconds = 0
    expect(page.locator(".verdict")).to_have_text(
        "41.6× sooner with coinrag than with standard_rag"
    )
    expect(page.locator(".answer-text")).to_have_text([NUMBERED, NUMBERED])
    assert [body.get("method") for body in script.asked] == [None, "standard_rag"]
    assert script.asked[0]["messages"] == script.asked[1]["messages"]
    width = "bar => bar.lastChild.getBoundingClientRect().right - bar.getBoundingClientRect().left"
    short, long = (bar.evaluate(width) for bar in page.locator(".timing .stack").all())
    assert long / short == pytest.approx(41.6, rel=0.05)


def test_the_model_alone_is_asked_any_prompt_and_compared_with_no_reuse(
    page: Any, script: Script
) -> None:
    page.get_by_label("Ask", exact=True).select_option("smollm2-135m-instruct")
    page.get_by_text("Compare without reuse").click()
    ask(page, "Any prompt")
    expect(page.locator(".answer-text")).to_have_text([ANSWER, ANSWER])
    split = page.get_by_role("figure").first
    expect(split).to_contain_text("exact 25")
    expect(split).to_contain_text("moved 1,342")
    assert [body["model"] for body in script.asked] == ["smollm2-135m-instruct"] * 2
    assert [body.get("reuse") for body in script.asked] == [None, "none"]
    expect(page.get_by_role("region", name="Evidence")).to_have_count(0)


def test_settings_are_sent_with_the_question_and_survive_a_reload(
    page: Any, script: Script
) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Method").select_option("standard_rag")
    page.get_by_label("Chunks retrieved").fill("3")
    page.get_by_label("Nuggets retrieved").fill("7")
    page.get_by_label("Most tokens of an answer").fill("40")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.reload()
    ask(page)
    expect(page.locator(".answer-text")).to_have_text(NUMBERED)
    sent = script.asked[0]
    assert (sent["method"], sent["k_chunks"], sent["k_nuggets"]) == ("standard_rag", 3, 7)
    assert sent["max_tokens"] == 40


def test_a_screen_reader_is_told_whole_sentences(page: Any, script: Script) -> None:
    script.answer = "One is short. Two goes on"
    script.pace_seconds = 0.3
    ask(page)
    log = page.get_by_role("log")
    assert log.get_attribute("aria-live") == "polite"
    expect(log).to_have_text("One is short.")
    script.pace_seconds = 0
    expect(log).to_have_text("One is short. Two goes on")
