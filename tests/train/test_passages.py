"""A training cache that is damaged says that it may go, and is filled again once it is gone."""

from __future__ import annotations

import shutil

import pytest

from coinkv.errors import StorageError
from coinkv.model.load import load
from coinkv.rag.options import BuildOptions
from coinkv.train.passages import Passages

CATALOGUE = "catalogue.sqlite"


def cut(path):
    path.write_bytes(path.read_bytes()[:100])


def no_database(path):
    path.write_bytes(b"no database " * 1000)


def a_folder(path):
    path.unlink()
    path.mkdir()


@pytest.fixture
def opened_at(small_model, tmp_path):
    """Opens a cache folder that a test may damage."""
    options = BuildOptions(model=load(str(small_model), device="cpu"), chunk_tokens=64)
    return lambda: Passages.open(tmp_path / "cache", options)


@pytest.mark.parametrize("damage", [cut, no_database, a_folder])
def test_a_damaged_catalogue_is_to_be_removed_with_its_folder(opened_at, data, tmp_path, damage):
    folder = tmp_path / "cache"
    with opened_at() as passages:
        found = passages.chunks_of(data.rows[0].row)
    damage(folder / CATALOGUE)
    with pytest.raises(StorageError, match=f"remove the cache folder {folder}: it is filled"):
        opened_at().__enter__()
    shutil.rmtree(folder)
    with opened_at() as passages:
        again = passages.chunks_of(data.rows[0].row)
    assert [each.content.text for each in again] == [each.content.text for each in found]


def test_damage_that_shows_while_it_is_read_is_told_the_same_way(opened_at, tmp_path):
    def read():
        with opened_at():
            raise StorageError(
                "the catalogue is damaged (page 3)",
                where=tmp_path / "cache" / CATALOGUE,
                hint="restore it from a copy, or build the index again into a new folder",
            )

    with pytest.raises(StorageError, match=r"page 3.*remove the cache folder"):
        read()


def test_what_is_wrong_elsewhere_stays_as_it_is(opened_at):
    wrong = StorageError("no space", where="elsewhere", hint="free some")

    def fail():
        with opened_at():
            raise wrong

    with pytest.raises(StorageError) as raised:
        fail()
    assert raised.value is wrong
