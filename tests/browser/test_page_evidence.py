"""Evidence: chunks with their nuggets highlighted, tied to the answer in both directions."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from browser import scripted_content
from browser.scripted_content import CHUNK, CITED
from browser.scripted_server import Script
from browser.test_page_asking import ask


def test_a_chunk_is_shown_whole_with_its_nuggets_highlighted(page: Any) -> None:
    ask(page)
    chunk = page.get_by_role("region", name="Text of chunk 1 of agricultural_science.md")
    numbered = CHUNK.replace("Benjamin", "1Benjamin").replace("The grass", "3The grass")
    expect(chunk).to_have_text(numbered)
    expect(chunk.locator("mark")).to_have_text(
        [
            "1Benjamin Franklin sowed gypsum on a hillside to show what it does as a fertilizer.",
            "3The grass grew greener where it lay.",
        ]
    )
    expect(page.get_by_text("3 nuggets in 2 chunks")).to_be_visible()


def test_a_long_chunk_is_shown_where_its_cited_nugget_is(
    page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler = "Nothing to the point is said here. " * 80
    text = filler + CHUNK + filler
    key = "agricultural_science.md"
    monkeypatch.setitem(scripted_content.DOCUMENTS, key, ("Agricultural science", text))
    ask(page)
    mark = page.locator(".chunk-text mark").first
    expect(mark).to_be_in_viewport()
    top = (
        "mark => mark.getBoundingClientRect().top - mark.parentElement.getBoundingClientRect().top"
    )
    assert 0 <= mark.evaluate(top) < 100


def test_what_evidence_supports_is_marked_though_wider_characters_stand_before_it(
    page: Any,
) -> None:
    ask(page)
    expect(page.locator(".cited")).to_have_text(f"{CITED}12")


def test_a_citation_leads_to_its_place_and_the_place_back_to_it(page: Any) -> None:
    ask(page)
    citation = page.get_by_role("button", name="Evidence 2: Gypsum")
    citation.click()
    place = page.get_by_role("button", name="Evidence 2, back to the answer")
    expect(place).to_be_focused()
    expect(place).to_be_in_viewport()
    assert place.evaluate("number => number.closest('mark').innerText").endswith("使われた。")
    page.keyboard.press("Enter")
    expect(citation).to_be_focused()


def test_a_citation_opens_a_chunk_that_was_folded(page: Any) -> None:
    ask(page)
    citation = page.get_by_role("button", name="Evidence 1: Agricultural science")
    expect(citation).to_be_visible()
    page.get_by_text("Agricultural science", exact=True).click()
    place = page.get_by_role("button", name="Evidence 1, back to the answer")
    expect(place).to_be_hidden()
    citation.click()
    expect(place).to_be_focused()


def test_right_to_left_and_east_asian_text_keep_their_direction(page: Any) -> None:
    ask(page)
    chunk = page.get_by_role("region", name="Text of chunk 1 of notes/gypsum.txt")
    expect(chunk).to_have_css("direction", "rtl")
    assert chunk.locator("mark").evaluate("mark => getComputedStyle(mark).direction") == "ltr"


def test_markup_in_answers_and_documents_is_text(
    page: Any, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "<img src=x onerror=\"document.title='taken'\"> <b>x</b> "
    monkeypatch.setitem(
        scripted_content.DOCUMENTS, "agricultural_science.md", ("<i>t</i>", hostile + CHUNK)
    )
    script.answer = f"<b>{CITED}</b> <script>document.title='taken'</script>"
    ask(page)
    expect(page.locator(".answer-text")).to_contain_text("</script>")
    expect(page.locator(".chunk-text").first).to_contain_text("<img src=x")
    expect(page.locator("main :is(img, b:not(.legend b), i, script)")).to_have_count(0)
    assert "taken" not in page.title()


def test_quotes_stand_in_for_a_document_that_is_gone(page: Any, watch: Any) -> None:
    watch.refusals_expected = True
    page.route("**/documents/**", lambda route: route.fulfill(status=404, body="{}"))
    ask(page)
    marks = page.locator(".chunk-text mark")
    expect(marks.first).to_contain_text("Benjamin Franklin sowed gypsum")
    expect(page.locator(".chunk-text").first).not_to_contain_text("Edmund Ruffin")
