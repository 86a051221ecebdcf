"""For everyone: by keyboard, on a phone, in the dark, read out, with little motion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from browser.conftest import PHONE
from browser.scripted_content import CITED
from browser.scripted_server import Script
from browser.test_page_asking import NUMBERED, ask

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = ("ask", "documents", "store")
LONG = f"{CITED} " + "an_answer_without_any_place_to_break_" * 12


def show(page: Any, view: str) -> None:
    """Show a view with everything in it."""
    page.get_by_role("navigation").get_by_role("link", name=view.capitalize()).click()
    if view == "ask":
        page.locator(".switch").click()
        ask(page, "Who? " + "a_question_without_any_place_to_break_" * 12)
        expect(page.locator(".verdict")).to_be_visible()
        expect(page.locator(".chunk-text").first).to_be_visible()
    else:
        expect(page.locator("table").first).to_be_visible()


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_wider_than_a_phone(
    visit: Callable[..., Any], site: str, script: Script, view: str
) -> None:
    script.answer = LONG
    page = visit(site, viewport=PHONE, has_touch=True)
    show(page, view)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    outside = page.evaluate(
        """() => [...document.querySelectorAll("main *:not(.hidden, .hidden *)")].filter((box) => {
            const { right, width } = box.getBoundingClientRect();
            return width > 1 && right > innerWidth + 1;
        }).map((box) => box.outerHTML.slice(0, 80))"""
    )
    assert outside == []


def background(page: Any) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_the_dark_follows_the_system_and_the_switch_overrules_it(
    visit: Callable[..., Any], site: str
) -> None:
    light = background(visit(site, color_scheme="light"))
    page = visit(site, color_scheme="dark")
    dark = background(page)
    assert light != dark
    switch = page.get_by_role("button", name="Dark mode")
    expect(switch).to_have_attribute("aria-pressed", "true")
    switch.click()
    expect(switch).to_have_attribute("aria-pressed", "false")
    body = page.locator("body")
    expect(body).to_have_css("background-color", light)
    page.reload()
    expect(body).to_have_css("background-color", light)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", [*VIEWS, "settings"])
def test_axe_finds_nothing_serious(
    visit: Callable[..., Any], site: str, view: str, scheme: str
) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: run `npm ci` in web/")
    page = visit(site, color_scheme=scheme, reduced_motion="reduce")
    if view == "settings":
        page.get_by_role("button", name="Settings").click()
        expect(page.get_by_role("dialog")).to_be_visible()
    else:
        show(page, view)
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run().then(({ violations }) => violations)")
    serious = [
        (each["id"], node["html"][:120], node["failureSummary"])
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
    assert serious == []


def focused(page: Any) -> str:
    """What has the focus: its label, text or value."""
    return str(
        page.evaluate(
            """() => {
                const element = document.activeElement;
                return element.ariaLabel || element.labels?.[0]?.innerText || element.innerText;
            }"""
        )
    ).strip()


def tab_to(page: Any, name: str) -> None:
    for _ in range(40):
        page.keyboard.press("Tab")
        if focused(page).startswith(name):
            return
    raise AssertionError(f"Tab never reaches {name}")


def test_everything_can_be_done_by_keyboard(page: Any, script: Script) -> None:
    expect(page.get_by_role("heading", name="Ask your documents")).to_be_visible()
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    expect(page.get_by_role("link", name="Skip")).to_be_in_viewport()
    page.keyboard.press("Enter")
    tab_to(page, "Question")
    tab_to(page, "Ask")
    tab_to(page, "Compare")
    page.keyboard.press("Space")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.type("Who?")
    page.keyboard.press("Enter")
    expect(page.locator(".answer-text")).to_have_text([NUMBERED, NUMBERED])
    assert focused(page) == "Question"
    page.keyboard.press("Control+Home")
    page.locator("h2").first.evaluate("heading => heading.closest('article').tabIndex = -1")
    page.locator("article").focus()
    tab_to(page, "Evidence 1: Agricultural science")
    page.keyboard.press("Enter")
    assert focused(page) == "Evidence 1, back to the answer"
    page.keyboard.press("Enter")
    assert focused(page) == "Evidence 1: Agricultural science"


def test_what_has_the_focus_can_be_seen_and_dialogs_give_it_back(page: Any) -> None:
    expect(page.get_by_role("heading", name="Ask your documents")).to_be_visible()
    tab_to(page, "Settings")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Settings")).to_be_visible()
    for _ in range(12):
        page.keyboard.press("Tab")
        # the browser's own controls have their turn, too: then it is the body
        assert page.evaluate("document.activeElement.closest('dialog, body')?.tagName") in (
            "DIALOG",
            "BODY",
        )
        assert not page.evaluate("document.activeElement.matches('main *, header.bar *')")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Settings")).to_be_hidden()
    assert focused(page) == "Settings"


def test_nothing_moves_where_little_motion_is_wanted(
    visit: Callable[..., Any], site: str, script: Script
) -> None:
    script.pace_seconds = 0.3
    page = visit(site, reduced_motion="reduce")
    ask(page)
    expect(page.locator(".caret")).to_have_css("animation-name", "none")
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
