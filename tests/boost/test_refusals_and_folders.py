"""What is refused with a word, and what becomes of a folder whose books are damaged."""

from __future__ import annotations

import sqlite3

import pytest
from pieces import piece, prompt

from coinkv.boost.folder import folder_stats
from coinkv.errors import InputError, StorageError


def test_one_text_for_a_list_of_prompts_is_refused(engine):
    boost = engine()
    for ask in (boost.generate_many, boost.verify):
        with pytest.raises(InputError, match="list of prompts"):
            ask("abc")


@pytest.mark.parametrize("tokens", [1.5, "4"])
def test_a_number_of_tokens_that_is_none_is_refused(engine, tokens):
    with pytest.raises(InputError, match="max_tokens"):
        engine().generate(prompt("a"), tokens)


@pytest.mark.parametrize(
    "options", [{"namespace": 3}, {"folder": ""}, {"budget_bytes": "2GB"}, {"repair": "best"}]
)
def test_options_that_are_none_are_refused_before_a_folder_is_made(engine, tmp_path, options):
    with pytest.raises(InputError):
        engine(**{"folder": tmp_path / "kv", **options})
    assert not list(tmp_path.iterdir())


def test_a_closed_engine_says_so(engine, tmp_path):
    boost = engine(folder=tmp_path)
    stream = boost.stream(prompt("a"), 3)
    boost.close()
    with pytest.raises(InputError, match="closed"):
        boost.generate(prompt("a"), 1)
    assert "".join(stream) == stream.result.text
    assert stream.result.kept_tokens == 0


def test_looking_at_damaged_books_changes_nothing_and_says_so(engine, tmp_path):
    with engine(folder=tmp_path) as boost:
        boost.warm(prompt("a"))
    books = tmp_path / "usage.sqlite"
    books.write_bytes(b"x" * 4096)
    with pytest.raises(StorageError, match="damaged"):
        folder_stats(tmp_path)
    assert books.read_bytes() == b"x" * 4096


def test_files_without_a_row_are_counted(engine, tmp_path):
    engine(folder=tmp_path).warm(prompt("a"))
    with sqlite3.connect(tmp_path / "usage.sqlite") as books:
        books.execute("DELETE FROM blocks")
    books.close()
    stats = folder_stats(tmp_path)
    assert (stats.runs, stats.nameless) == (0, 1)
    assert stats.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))


def test_forgetting_all_leaves_no_block_and_no_old_books(engine, tmp_path):
    first = engine(folder=tmp_path)
    first.warm(prompt("secret"))
    first.close()
    (tmp_path / "usage.sqlite").write_bytes(b"x" * 4096)
    boost = engine(folder=tmp_path)
    boost.warm(piece("b", 100))
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2
    assert (tmp_path / "usage.sqlite.aside").exists()
    boost.invalidate()
    assert not list(tmp_path.rglob("*.safetensors"))
    assert not (tmp_path / "usage.sqlite.aside").exists()
