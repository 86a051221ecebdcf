"""Whatever a client calls a document or a namespace, no path of this machine comes of it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinkv.errors import InputError
from coinkv.serve.library.names import (
    MOST_KEY_BYTES,
    document_key,
    folder_of_namespace,
    index_name,
    new_folder_of_index,
    require_document_key,
    require_index_name,
    unique_key,
)

ANY_TEXT = st.text(st.characters(codec=None))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "etc/passwd"),
        ("/etc/passwd", "etc/passwd"),
        ("C:\\Users\\me\\a.txt", "C:/Users/me/a.txt"),
        ("a/./b//c.txt", "a/b/c.txt"),
        ("nul\0byte.txt", "nulbyte.txt"),
        ("right\u202eto\u2066left.txt", "righttoleft.txt"),
        ("  two   spaces .txt", "two spaces .txt"),
        ("line\nbreak.txt", "line break.txt"),
        ("half \ud800 a pair", "half \ufffd a pair"),
        ("", "unnamed"),
        ("../..", "unnamed"),
        ("e\u0301te\u0301.txt", "\u00e9t\u00e9.txt"),
        ("family \U0001f468\u200d\U0001f469.txt", "family \U0001f468\u200d\U0001f469.txt"),
        ("CON", "CON"),
    ],
)
def test_a_key_is_the_name_without_what_leads_astray(name, key):
    assert document_key(name) == key


@given(ANY_TEXT)
def test_every_key_is_short_normal_and_the_key_of_itself(name):
    key = document_key(name)
    assert 0 < len(key.encode()) <= MOST_KEY_BYTES
    assert unicodedata.normalize("NFC", key) == key
    assert not key.startswith("/")
    assert not {"", ".", ".."} & set(key.split("/"))
    assert not any(unicodedata.category(c) == "Cc" for c in key)
    assert document_key(key) == key


def test_names_of_ten_thousand_characters_stay_apart_and_keep_their_ending():
    first, second = document_key("é" * 10_000 + "1.txt"), document_key("é" * 10_001 + "1.txt")
    assert first != second
    assert first.endswith("1.txt")
    assert len(first.encode()) <= MOST_KEY_BYTES


def test_a_taken_key_gets_a_number():
    assert unique_key("a.txt", {"a.txt", "a.txt#2"}) == "a.txt#3"


@pytest.mark.parametrize(
    "identifier", ["/a", "a/../b", "a\0", "", "a" * 600, "a  b", "a\\b", "\ud800"]
)
def test_an_id_that_a_client_chose_is_refused_rather_than_changed(identifier):
    with pytest.raises(InputError, match="cannot be the id of a document"):
        require_document_key(identifier)


def test_two_spellings_of_one_id_are_one_id():
    assert require_document_key("e\u0301") == require_document_key("\u00e9") == "\u00e9"


@given(ANY_TEXT)
def test_every_folder_of_a_namespace_is_a_plain_name(namespace):
    folder = folder_of_namespace(namespace)
    assert folder.isascii()
    assert folder == folder.lower()
    assert not set(folder) - set("abcdefghijklmnopqrstuvwxyz0123456789_-")
    assert len(folder) < 80


def test_namespaces_that_look_alike_have_folders_of_their_own():
    spellings = ["Team", "team", "team ", "te/am", "te\\am", "..", ".", "con", "", "te.am"]
    assert len({folder_of_namespace(each) for each in spellings}) == len(spellings)


def test_an_index_made_again_gets_another_folder():
    assert new_folder_of_index("Law") != new_folder_of_index("Law")


@pytest.mark.parametrize("name", ["", ".hidden", "-x", "a/b", "a b", "ä", "a" * 65, "a\n", ".."])
def test_a_name_of_an_index_that_cannot_be_is_refused(name):
    with pytest.raises(InputError, match="cannot be the name of an index"):
        require_index_name(name)


@given(ANY_TEXT)
def test_every_folder_gives_a_usable_name_of_an_index_that_is_not_taken(text):
    first = index_name(text, ())
    second = index_name(text, {first})
    require_index_name(first)
    require_index_name(second)
    assert first != second
