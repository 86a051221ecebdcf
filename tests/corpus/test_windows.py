"""Windows of words: verbatim, consecutive, and of the length asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinkv.corpus.extract.sentences import WORD, SentenceExtractor
from coinkv.corpus.extract.windows import WindowExtractor
from coinkv.errors import InputError

TEXTS = st.lists(
    st.sampled_from(
        ["word", "One ends. ", " ", "\n\n", "\t", "我是", "👩‍👩‍👧", "- ", "e\u0301", "\u2028"]
    ),
    max_size=60,
).map("".join)


def test_windows_hold_so_many_words_wherever_sentences_end() -> None:
    text = "Anna Holm built it.\n\nIt crosses  the river Arve.  "
    assert WindowExtractor(words=3).extract(text) == [
        "Anna Holm built",
        "it.\n\nIt crosses",
        "the river Arve.",
    ]
    assert WindowExtractor(words=4).extract(text)[-1] == "Arve."


def test_a_window_is_20_words_unless_said_otherwise() -> None:
    text = " ".join(f"w{number}" for number in range(60))
    assert [len(window.split()) for window in WindowExtractor().extract(text)] == [20, 20, 20]


def test_a_character_of_a_script_without_spaces_is_a_word() -> None:
    assert WindowExtractor(words=2).extract("我是中国人。") == ["我是", "中国", "人。"]


@given(TEXTS, st.integers(1, 9))
def test_windows_are_verbatim_disjoint_and_hold_every_word_in_order(text: str, words: int) -> None:
    windows = WindowExtractor(words).extract(text)
    reached = 0
    for window in windows:
        reached = text.index(window, reached) + len(window)
    assert all(len(WORD.findall(window)) <= words for window in windows)
    held = [word for window in windows for word in WORD.findall(window)]
    spoken = [word for word in WORD.findall(text) if word.isalnum()]
    assert [word for word in held if word.isalnum()] == spoken


def test_nothing_is_proposed_for_text_without_letters_or_digits() -> None:
    assert WindowExtractor().extract(" \n--- ... !\n👍") == []
    assert WindowExtractor(words=2).extract("--- --- rye --- --- ---") == ["rye ---"]


def test_the_identity_follows_the_option() -> None:
    assert WindowExtractor().identity == WindowExtractor(20).identity
    others = {WindowExtractor(23).identity, SentenceExtractor().identity}
    assert len({WindowExtractor().identity} | others) == 3


@pytest.mark.parametrize("words", [0, -3])
def test_windows_of_no_words_are_refused(words: int) -> None:
    with pytest.raises(InputError, match=f"windows of {words} words"):
        WindowExtractor(words)
