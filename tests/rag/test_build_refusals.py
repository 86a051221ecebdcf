"""Builds that cannot work are refused before anything is written."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from coinkv.corpus.extract.sentences import SentenceExtractor
from coinkv.errors import (
    DocumentError,
    IndexMismatchError,
    InputError,
)
from coinkv.rag.build import BuildOptions, build
from coinkv.rag.index import Index
from coinkv.rag.settings import keep_settings
from coinkv.rag.stats import stats
from coinkv.rag.verify import verify

BAD_SOURCES = {
    "missing folder": lambda docs: docs / "none",
    "empty folder": lambda docs: docs,
    "empty file": lambda docs: _file(docs / "a.txt", b""),
    "binary file": lambda docs: _file(docs / "a.txt", bytes(range(256)) * 8),
    "wrong encoding": lambda docs: _file(docs / "a.txt", "Übergrößenträger".encode("latin-1")),
    "name that is no text": lambda docs: _file(docs / os.fsdecode(b"caf\xe9.txt"), b"A text."),
    "corrupt pdf": lambda docs: _file(docs / "a.pdf", b"%PDF-1.7 and then nothing"),
}


def _file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path.parent


@pytest.mark.parametrize("kind", BAD_SOURCES)
def test_unreadable_sources_are_refused_before_anything_is_written(tmp_path, options, kind):
    (tmp_path / "docs").mkdir()
    with pytest.raises(DocumentError):
        build(BAD_SOURCES[kind](tmp_path / "docs"), tmp_path / "index", options)
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"model": "/no/such/model"},
        {"chunk_tokens": 15},
        {"chunk_tokens": 2048},
        {"tau": 1.5},
        {"encode_after": "everything"},
        {"language": "klingon"},
        {"language": "klingon", "extractor": SentenceExtractor()},
        {"embedder": "/no/such/embedder"},
        {"model": None, "device": "quantum"},
    ],
)
def test_unusable_options_are_refused_before_anything_is_written(
    village, tmp_path, options, change
):
    with pytest.raises(InputError):
        build(village, tmp_path / "index", dataclasses.replace(options, **change))
    assert not (tmp_path / "index").exists()


def test_a_folder_that_holds_something_else_is_left_alone(village, tmp_path, options):
    (tmp_path / "photo.jpg").write_bytes(b"...")
    with pytest.raises(InputError, match="holds other files"):
        build(village, tmp_path, options)
    with pytest.raises(InputError, match="this is a file"):
        build(village, tmp_path / "photo.jpg", options)
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_an_index_of_another_model_or_dtype_is_refused_and_stays(
    village, index_folder, tiny_folder, model_folder, options
):
    before = verify(index_folder)
    others = [
        BuildOptions(model=str(tiny_folder("qwen3"))),
        BuildOptions(model=str(model_folder), dtype="bfloat16"),
    ]
    for other in others:
        with pytest.raises(IndexMismatchError, match="was built with"):
            build(village, index_folder, other)
        with pytest.raises(IndexMismatchError, match="was built with"):
            Index.open(index_folder, model=other.model, dtype=other.dtype)
    assert verify(index_folder) == before


def test_an_index_with_another_prompt_is_refused(index_folder, options, monkeypatch):
    from coinkv.model import prompt

    monkeypatch.setattr(prompt.build_prompt, "__defaults__", ("Answer in French.",))
    with pytest.raises(IndexMismatchError, match="another system prompt"):
        Index.open(index_folder, model=options.model)


def test_an_index_of_another_format_version_is_refused(village, index_folder, options):
    index = Index.open(index_folder, model=options.model)
    later = dataclasses.replace(index.settings, format_version=99)
    keep_settings(index.catalogue, index.catalogue.generation, later)
    for use in (
        lambda: Index.open(index_folder, model=options.model),
        lambda: build(village, index_folder, options),
        lambda: verify(index_folder),
        lambda: stats(index_folder),
    ):
        with pytest.raises(IndexMismatchError, match="format version 99"):
            use()
