"""A real browser in front of a scripted server, watched for what no page may do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import sync_playwright

from browser.scripted_server import Script, serving

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 360, "height": 740}
PATIENCE_MS = 30_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/browser/" in item.path.as_posix():
            item.add_marker(pytest.mark.browser)


@dataclass
class Watch:
    """What a page did that it should not have done."""

    hosts: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)
    refusals_expected: bool = False
    """Chromium itself writes every failed request to the console."""

    def follow(self, page: Any) -> None:
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            expected = self.refusals_expected and "Failed to load resource" in message.text
            if not expected:
                self.complaints.append(message.text)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser, started once."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def script() -> Script:
    """What the scripted server does; a test may change it before and while it runs."""
    return Script()


@pytest.fixture
def site(script: Script) -> Iterator[str]:
    with serving(script) as url:
        yield url


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def visit(chromium: Any, site: str, watch: Watch) -> Iterator[Callable[..., Any]]:
    """Opens an address in a browser that has never been there. Behind the test, nothing may have
    gone to another host, and nothing may have been complained about. The scripted server is older
    than the visit, and so outlives it.
    """
    contexts = []
    visited: set[str] = set()

    def opened(url: str, **options: Any) -> Any:
        context = chromium.new_context(**{"viewport": DESKTOP, **options})
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        visited.add(urlsplit(url).netloc)
        page = context.new_page()
        watch.follow(page)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert watch.hosts <= visited
    assert watch.complaints == []


@pytest.fixture
def page(visit: Callable[..., Any], site: str) -> Any:
    """The page of the scripted server."""
    return visit(site)
