"""The pages keep what they promise: files, names and links are there, and code is code."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

import coinkv
from coinkv.methods.registry import METHODS
from tiny_models import REFUSED, SUPPORTED

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [*PAGES, *(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def python_blocks() -> Iterator[tuple[str, str]]:
    for page in TEXTS:
        for number, (_, language, code) in enumerate(FENCE.findall(page.read_text("utf-8")), 1):
            if language == "python":
                yield f"{page.relative_to(PROJECT)}, block {number}", code


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def nav_files(entries: list[dict[str, object]]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):  # the page of a part itself
            yield entry
            continue
        for target in entry.values():
            if isinstance(target, list):
                yield from nav_files(target)
            else:
                yield str(target)


def resolves(name: str) -> bool:
    """Whether a dotted name leads to a module or to something in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(thing, part):
                return False
            thing = getattr(thing, part)
        return True
    return False


def test_the_navigation_names_every_page_and_every_page_it_names_is_there() -> None:
    site = yaml.safe_load((PROJECT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert set(nav_files(site["nav"])) == {page.relative_to(DOCS).as_posix() for page in PAGES}


BLOCKS = dict(python_blocks())


@pytest.mark.parametrize("where", BLOCKS)
def test_python_code_on_a_page_compiles_and_imports_what_there_is(where: str) -> None:
    tree = ast.parse(BLOCKS[where])
    compile(tree, where, "exec")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "coinkv":
            for alias in node.names:
                assert resolves(f"{node.module}.{alias.name}"), f"{node.module}.{alias.name}"


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose(page))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_every_name_on_the_api_page_exists_and_all_public_names_are_on_it() -> None:
    names = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE)
    assert [name for name in names if not resolves(name)] == []
    public = {f"coinkv.{name}" for name in coinkv.__all__ if name != "CoinKVError"}
    assert public - set(names) == set()
    assert "coinkv.errors" in names  # holds CoinKVError and its kinds


def test_every_method_has_a_section() -> None:
    headings = re.findall(r"^## (\w+)$", (DOCS / "methods.md").read_text("utf-8"), re.MULTILINE)
    assert set(METHODS) - set(headings) == set()


def test_every_architecture_that_tests_measure_is_on_the_models_page_and_no_other() -> None:
    page = (DOCS / "models.md").read_text("utf-8")
    passes, _, refused = page.partition("## What is refused")
    assert rows_named(passes) == set(SUPPORTED)
    assert rows_named(refused) == set(REFUSED)


def rows_named(text: str) -> set[str]:
    """Names in the last column of table rows."""
    cells = re.findall(r"^\|.*\|([^|]*)\|$", text, re.MULTILINE)
    names = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    return names - {"tests/tiny_models.py"}


def test_every_file_that_contributing_names_is_there() -> None:
    text = (PROJECT / "CONTRIBUTING.md").read_text("utf-8")
    paths = re.findall(r"`((?:src|tests|docs|benchmarks|\.ci)/[^`\s]*)`", text)
    real = [path for path in paths if "<" not in path]
    assert len(real) > 10
    assert [path for path in real if not (PROJECT / path).exists()] == []


@pytest.mark.parametrize("picture", sorted(DOCS.glob("pictures/*.svg")), ids=lambda p: p.name)
def test_a_picture_is_whole_has_a_title_and_asks_nothing_of_other_servers(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    assert "prefers-color-scheme: dark" in text
    assert set(re.findall(r"https?://[^\"'\s)]+", text)) == {"http://www.w3.org/2000/svg"}
