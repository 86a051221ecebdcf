"""The library and the store: uploads with their progress, removals with a question first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from browser.scripted_server import Script


@pytest.fixture
def documents(visit: Callable[..., Any], site: str) -> Any:
    page = visit(f"{site}/#documents")
    expect(page.get_by_role("heading", name="demo")).to_be_visible()
    return page


def text_file(name: str, size: int = 20) -> dict[str, Any]:
    return {"name": name, "mimeType": "text/plain", "buffer": b"x" * size}


def test_picked_files_are_sent_and_indexed_with_progress_and_reasons(
    documents: Any, script: Script
) -> None:
    script.pace_seconds = 0.15
    documents.get_by_label("Choose files").set_input_files(
        [text_file("a.txt"), text_file("bad.pdf")]
    )
    upload = documents.get_by_role("region", name="Upload of 2 files")
    expect(upload.get_by_role("progressbar", name="Encoding chunks")).to_be_visible()
    expect(upload).to_contain_text("of 12")
    expect(upload).to_contain_text("1 file left out")
    expect(upload).to_contain_text("bad.pdf: it holds no text")
    expect(upload.get_by_role("progressbar", name="Ready to be asked")).to_be_visible()
    assert script.job is not None
    assert script.job["documents"] == ["a.txt", "bad.pdf"]


def test_dropped_files_are_sent_too(documents: Any, script: Script) -> None:
    transfer = documents.evaluate_handle(
        """() => {
            const transfer = new DataTransfer();
            transfer.items.add(new File(["x"], "dropped.txt", { type: "text/plain" }));
            return transfer;
        }"""
    )
    zone = documents.locator(".drop")
    zone.dispatch_event("dragover", {"dataTransfer": transfer})
    expect(zone).to_have_class("drop over")
    zone.dispatch_event("drop", {"dataTransfer": transfer})
    expect(documents.get_by_role("region", name="Upload of dropped.txt")).to_be_visible()
    expect(documents.get_by_role("progressbar", name="Ready to be asked")).to_be_visible()
    assert script.job is not None
    assert script.job["documents"] == ["dropped.txt"]


def test_the_first_upload_makes_an_index_that_can_be_asked(
    visit: Callable[..., Any], site: str, script: Script
) -> None:
    script.indexes = []
    page = visit(site)
    page.get_by_label("Choose files").set_input_files([text_file("a.txt"), text_file("bad.txt")])
    expect(page.get_by_role("heading", name="documents is being encoded")).to_be_visible()
    expect(page.get_by_role("heading", name="Ask your documents")).to_be_visible()
    expect(page.get_by_text("bad.txt: it holds no text")).to_be_visible()
    expect(page.get_by_label("Ask", exact=True)).to_have_value("coinrag/documents")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([text_file("big.txt", 60_000)], "These files have 60.0 kB; the server takes 50.0 kB"),
        ([text_file(f"{n}.txt") for n in range(21)], "These are 21 files; the server takes 20"),
    ],
)
def test_an_upload_beyond_the_limits_is_refused_before_it_is_sent(
    documents: Any, script: Script, files: list[dict[str, Any]], words: str
) -> None:
    documents.get_by_label("Choose files").set_input_files(files)
    expect(documents.get_by_role("alert")).to_contain_text(words)
    assert script.job is None


def test_a_413_of_the_server_is_told_in_its_words(
    documents: Any, script: Script, watch: Any
) -> None:
    watch.refusals_expected = True
    script.upload_refusal = (413, "the upload is larger than 50 MB", {})
    documents.get_by_label("Choose files").set_input_files([text_file("a.txt")])
    expect(documents.get_by_role("alert")).to_contain_text("The upload is larger than 50 MB.")


def test_a_document_is_removed_only_when_that_is_confirmed(documents: Any, script: Script) -> None:
    remove = documents.get_by_role("button", name="Remove notes/gypsum.txt")
    remove.click()
    dialog = documents.get_by_role("dialog", name="Remove this document?")
    expect(dialog).to_contain_text("notes/gypsum.txt is deleted from the index demo")
    dialog.get_by_role("button", name="Keep").click()
    expect(dialog).to_be_hidden()
    assert script.removed == []
    remove.click()
    dialog.get_by_role("button", name="Remove the document").click()
    expect(dialog).to_be_hidden()
    expect(documents.get_by_role("progressbar")).to_be_visible()
    assert script.removed == ["notes/gypsum.txt"]


def test_what_the_settings_serve_cannot_be_removed_and_its_folder_has_its_say(
    visit: Callable[..., Any], site: str, script: Script
) -> None:
    script.indexes[0] |= {"removable": False, "follows": True}
    page = visit(f"{site}/#documents")
    page.get_by_role("button", name="Remove notes/gypsum.txt").click()
    dialog = page.get_by_role("dialog", name="Remove this document?")
    expect(dialog).to_contain_text("comes back at the server's next start")
    dialog.get_by_role("button", name="Keep").click()
    expect(page.get_by_role("button", name="Remove index")).to_have_count(0)


def test_an_index_can_be_made_and_chosen(documents: Any, script: Script) -> None:
    documents.get_by_label("New index").fill("law")
    documents.get_by_role("button", name="Create").click()
    expect(documents.get_by_role("heading", name="law")).to_be_visible()
    expect(documents.locator(".state")).to_have_text("empty")
    documents.get_by_role("button", name="demo").click()
    documents.get_by_role("link", name="Ask it").click()
    expect(documents.get_by_label("Ask", exact=True)).to_have_value("coinrag/demo")
    assert len(script.indexes) == 2


def test_the_store_shows_its_tiers_and_is_read_again_while_it_is_looked_at(
    visit: Callable[..., Any], site: str
) -> None:
    page = visit(f"{site}/#store")
    expect(page.get_by_role("meter", name="memory")).to_have_attribute("value", "612000000")
    expect(page.get_by_text("612 MB of 2.00 GB")).to_be_visible()
    figures = page.locator(".figures")
    for words in (
        "Tokens reused86 %",
        "Block hit rate86 %",
        "Tokens kept26,551",
        "Runs38",
        "Prompts127",
    ):
        expect(figures).to_contain_text(words)
    expect(page.get_by_role("figure")).to_contain_text("repaired 611")
    with page.expect_request("**/v1/store"):
        pass
    page.get_by_role("link", name="Ask").click()
    seen: list[str] = []
    page.on("request", lambda request: seen.append(request.url))
    page.wait_for_timeout(3_500)
    assert [url for url in seen if url.endswith("/v1/store")] == []
