"""The page's files come from the package, and only they; what is built is what the sources say."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from coinkv.serve.api import page

PROJECT = Path(__file__).parents[2]
WEB = PROJECT / "web"
BUILT = Path(str(files("coinkv.serve").joinpath("page")))
GZIPPED_BYTES = 60_000


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    app.include_router(page.router)
    return TestClient(app)


def linked(html: str) -> list[str]:
    return re.findall(r'(?:src|href)="([^"]+)"', html)


def test_the_page_names_only_its_own_files_and_all_of_them_are_served(client: TestClient) -> None:
    reply = client.get("/")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    names = linked(reply.text)
    assert len(names) == 3
    kinds = {}
    for name in names:
        assert name.startswith("./assets/")
        asset = client.get(urljoin("/", name))
        assert asset.status_code == 200
        kinds[Path(name).suffix] = asset.headers["content-type"].partition(";")[0]
    assert kinds == {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def test_the_page_has_no_inline_script_or_style_and_may_have_none(client: TestClient) -> None:
    reply = client.get("/")
    assert "<style" not in reply.text
    assert " style=" not in reply.text
    assert re.findall(r"<script(?![^>]* src=)", reply.text) == []
    assert re.findall(r"\son\w+=", reply.text) == []
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy


def test_the_built_files_speak_of_no_other_server() -> None:
    allowed = {"http://www.w3.org"}  # names of XML vocabularies, never asked for
    for file in BUILT.rglob("*.*"):
        if file.suffix != ".md":
            hosts = set(re.findall(r"https?://[\w.-]+", file.read_text("utf-8")))
            assert hosts <= allowed, file.name


def test_assets_are_kept_for_ever_and_the_page_is_asked_for_anew(client: TestClient) -> None:
    first = client.get("/")
    assert first.headers["cache-control"] == "no-cache"
    assert client.head("/").headers["etag"] == first.headers["etag"]
    again = client.get("/", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/", headers={"if-none-match": '"other"'}).status_code == 200
    asset = client.get(urljoin("/", linked(first.text)[0]))
    assert asset.headers["cache-control"] == "public, max-age=31536000, immutable"


@pytest.mark.parametrize(
    "name", ["nothing.js", "..%2Findex.html", "%2e%2e/%2e%2e/app.py", "index.html", "%00"]
)
def test_no_other_file_can_be_had(client: TestClient, name: str) -> None:
    assert client.get(f"/assets/{name}").status_code == 404


def test_the_page_is_small() -> None:
    import gzip

    sizes = [len(gzip.compress(file.read_bytes())) for file in BUILT.glob("assets/*")]
    assert sum(sizes) < GZIPPED_BYTES


def test_the_licence_of_what_is_built_in_goes_along() -> None:
    text = (BUILT / "licenses.md").read_text("utf-8")
    assert "preact" in text
    assert "Permission is hereby granted" in text


def test_the_lock_file_names_no_registry() -> None:
    assert '"resolved"' not in (WEB / "package-lock.json").read_text("utf-8")


def test_the_server_serves_the_page_without_a_key(server: str) -> None:
    reply = httpx.get(server + "/")
    assert reply.status_code == 200
    assert "trusted-types" in reply.headers["content-security-policy"]
    script = next(name for name in linked(reply.text) if name.endswith(".js"))
    assert httpx.get(urljoin(server + "/", script)).status_code == 200


@pytest.mark.slow
def test_building_the_sources_gives_the_files_of_the_package(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm on this machine")
    sources = tmp_path / "web"
    shutil.copytree(WEB, sources, ignore=shutil.ignore_patterns("node_modules"))
    for command in (["ci"], ["test"], ["run", "lint"], ["run", "build"]):
        subprocess.run([npm, *command], cwd=sources, check=True, capture_output=True)
    rebuilt = tmp_path / "src" / "coinkv" / "serve" / "page"
    assert contents(rebuilt) == contents(BUILT)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
