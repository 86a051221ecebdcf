"""Takes the pictures of the documentation from a server that runs on the demo's documents.

`coinkv serve --docs src/coinkv/cli/demo_data/docs`, on an otherwise idle machine, then
`python tests/browser/screenshots.py http://127.0.0.1:8000 docs/server/images`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

QUESTION = "Who conducted experiments on the use of gypsum as a fertilizer?"
PICTURES: dict[str, dict[str, Any]] = {
    "page": {"viewport": {"width": 1280, "height": 1000}},
    "page-dark": {"viewport": {"width": 1280, "height": 1000}, "color_scheme": "dark"},
    "page-phone": {"viewport": {"width": 360, "height": 780}, "device_scale_factor": 2},
}
PATIENCE_MS = 120_000


def take(browser: Any, url: str, picture: Path, options: dict[str, Any]) -> None:
    """Ask and compare; the evidence is on the picture, too."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(url)
    page.get_by_role("heading", name="Ask your documents").wait_for()
    page.locator(".switch").click()
    page.get_by_label("Question").fill(QUESTION)
    page.keyboard.press("Enter")
    page.locator(".verdict").wait_for()
    page.get_by_role("button", name="Send").wait_for()
    page.locator(".chunk-text mark").first.wait_for()
    page.wait_for_timeout(500)
    page.screenshot(path=picture)
    print(picture, page.locator(".timing-total").all_inner_texts())
    context.close()


def main(url: str, folder: str) -> None:
    """All pictures."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name, options in PICTURES.items():
            take(browser, url, Path(folder) / f"{name}.png", options)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:3])
