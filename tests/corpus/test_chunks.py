"""Chunks: that they cover the text, keep to their size, and end where a reader would cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byte_tokens import ByteTokens
from coinkv.corpus.chunks import Chunk, Tokenized, split
from coinkv.corpus.documents import Document
from coinkv.corpus.extract.sentences import sentence_gaps
from coinkv.errors import InputError


class LetterTokens:
    """One token a character; `give` may spoil the offsets."""

    def __init__(self, give: Callable[[str], list[tuple[int, int]]]) -> None:
        self.give = give

    def tokenize(self, text: str) -> Tokenized:
        return Tokenized(tuple(map(ord, text)), tuple(self.give(text)))


def cut(text: str, *, title: str = "", max_tokens: int = 24, language: str = "en") -> list[Chunk]:
    document = Document("key", title, text)
    return split(document, ByteTokens(), max_tokens=max_tokens, language=language)


PIECES = st.sampled_from(
    [
        "The dog. ",
        "In 2019, ",
        "word ",
        "\n",
        "\n\n",
        "\r\n",
        "   ",
        "我是中国人。",
        "👩‍👩‍👧",
        "🎉🎉🎉",
        "cafe\u0301 ",
        "a" * 30,
        "\u0e01\u0e33",
        "\ufdfa",
        "; and ",
        "\u200b",
        "ཧཱུྃ",
    ]
)
TEXTS = st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=200)


@settings(deadline=None)
@given(TEXTS, st.integers(16, 40), st.booleans(), st.sampled_from(["", "A title", "我 " * 50]))
def test_chunks_cover_the_text_without_gap_or_overlap(
    text: str, max_tokens: int, trimmed: bool, title: str
) -> None:
    text = text.encode("utf-8", "replace").decode()
    tokens = ByteTokens(trimmed)
    chunks = split(Document("key", title, text), tokens, max_tokens=max_tokens)
    edges = [0, *[edge for chunk in chunks for edge in (chunk.start, chunk.end)], len(text)]
    assert edges == sorted(edges)
    for left, right in zip(edges[::2], edges[1::2], strict=True):
        assert not text[left:right].strip()
    for ordinal, chunk in enumerate(chunks):
        assert chunk.ordinal == ordinal
        assert chunk.text == text[chunk.start : chunk.end]
        assert chunk.text.strip()
        assert len(chunk.token_ids) <= max_tokens
        assert chunk.token_ids[: chunk.header_tokens] == chunk.header_ids
        assert tokens.decode(chunk.token_ids[chunk.header_tokens :]) == chunk.text


@settings(deadline=None)
@given(TEXTS, st.booleans())
def test_offsets_are_in_order_and_cover_the_chunk(text: str, trimmed: bool) -> None:
    text = text.encode("utf-8", "replace").decode()
    for chunk in split(Document("key", "T", text), ByteTokens(trimmed), max_tokens=20):
        starts, ends = zip(*chunk.offsets, strict=True)
        assert len(starts) == len(chunk.token_ids) - chunk.header_tokens
        assert list(starts) == sorted(starts)
        assert list(ends) == sorted(ends)
        assert (starts[0], ends[-1]) == (0, len(chunk.text))
        reached = 0
        for start, end in chunk.offsets:
            assert start <= reached
            reached = end


def test_the_text_is_tokenised_once() -> None:
    tokens = ByteTokens()
    text = "The dog was not amused. " * 40
    assert len(split(Document("key", "", text), tokens, max_tokens=32)) > 5
    assert tokens.texts == [text]


def test_a_large_text_is_tokenised_in_blocks_and_cut_as_one() -> None:
    tokens = LetterTokens(lambda text: [(at, at + 1) for at in range(len(text))])
    sizes: list[int] = []

    class Counted:
        def tokenize(self, text: str) -> Tokenized:
            sizes.append(len(text))
            return tokens.tokenize(text)

    text = ("x" * 49 + " ") * 12_000
    chunks = split(Document("key", "", text), Counted(), max_tokens=4096, title_header=False)
    assert "".join(chunk.text for chunk in chunks) == text
    assert all("".join(map(chr, chunk.token_ids)) == chunk.text for chunk in chunks)
    assert len(sizes) > 1
    assert max(sizes) < len(text) / 2


def test_a_chunk_ends_with_a_sentence_when_one_ends_in_its_last_quarter() -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 24
    chunks = cut(text, max_tokens=64)
    assert len(chunks) > 3
    assert all(chunk.text.rstrip().endswith("dog.") for chunk in chunks[:-1])


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.sampled_from(["Dr. Fox saw it. ", "It is 5.3. ", "He (A. B.) left.\n", "Why? "]),
        min_size=20,
        max_size=30,
    )
)
def test_cuts_agree_with_the_sentence_splitter(pieces: list[str]) -> None:
    text = "".join(pieces)
    gaps = sentence_gaps(text)
    for chunk in cut(text, max_tokens=60)[:-1]:
        assert any(left <= chunk.end <= right for left, right in gaps)


def test_without_a_sentence_end_a_chunk_ends_with_a_clause() -> None:
    text = "word word word word word word; " * 30
    chunks = cut(text, max_tokens=64)
    assert len(chunks) > 3
    assert all(chunk.text.rstrip().endswith(";") for chunk in chunks[:-1])


def test_without_a_clause_a_chunk_ends_between_words() -> None:
    chunks = cut("quickest " * 100, max_tokens=64)
    assert len(chunks) > 3
    assert all(
        chunk.text.strip().split() == ["quickest"] * len(chunk.text.split()) for chunk in chunks
    )


def test_a_text_without_white_space_is_cut_all_the_same() -> None:
    chunks = cut("x" * 500, max_tokens=16)
    assert "".join(chunk.text for chunk in chunks) == "x" * 500
    assert max(len(chunk.token_ids) for chunk in chunks) == 16


def test_no_cut_falls_inside_a_character_of_several_tokens() -> None:
    text = "🎊🎋🎌🎍🎎🎏🎐🎑" * 10
    chunks = cut(text, max_tokens=18)
    assert len(chunks) > 5
    assert "".join(chunk.text for chunk in chunks) == text
    assert all("\ufffd" not in ByteTokens().decode(chunk.token_ids) for chunk in chunks)


def test_a_character_of_more_tokens_than_a_chunk_is_cut_rather_than_let_grow() -> None:
    tokens = LetterTokens(lambda text: [(0, len(text))] * len(text))
    chunks = split(Document("key", "", "x" * 50), tokens, max_tokens=16, title_header=False)
    assert sum(len(chunk.token_ids) for chunk in chunks) <= 50
    assert all(len(chunk.token_ids) <= 16 for chunk in chunks)
    assert "".join(chunk.text for chunk in chunks) == "x" * 50


def test_white_space_left_out_by_the_tokenizer_belongs_to_the_token_behind() -> None:
    (chunk,) = split(Document("key", "", "The  dog was"), ByteTokens(True), title_header=False)
    pieces = [chunk.text[start:end] for start, end in chunk.offsets]
    assert "".join(pieces) == "The  dog was"


def test_white_space_dropped_at_the_end_belongs_to_the_last_token() -> None:
    tokens = LetterTokens(lambda text: [(at, at + 1) for at in range(len(text))])

    class Dropping:
        def tokenize(self, text: str) -> Tokenized:
            return tokens.tokenize(text.rstrip())

    (chunk,) = split(Document("key", "", "ab  \n"), Dropping(), title_header=False)
    assert (chunk.text, chunk.offsets) == ("ab  \n", ((0, 1), (1, 5)))


def test_ranges_that_run_backwards_give_their_token_no_characters() -> None:
    tokens = LetterTokens(
        lambda text: [(0, 0) if at % 3 == 1 else (at, at + 1) for at in range(len(text))]
    )
    (chunk,) = split(Document("key", "", "abcdefg"), tokens, title_header=False)
    assert chunk.offsets == ((0, 1), (1, 1), (1, 3), (3, 4), (4, 4), (4, 6), (6, 7))


def test_blank_chunks_are_dropped() -> None:
    text = "a" * 10 + " \n" * 200 + "b" * 10
    chunks = cut(text, max_tokens=16)
    assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))
    assert all(chunk.text.strip() for chunk in chunks)
    assert "".join("".join(chunk.text for chunk in chunks).split()) == "a" * 10 + "b" * 10
    assert cut("") == cut(" \n ") == []


def test_the_title_is_the_first_line_of_every_chunk() -> None:
    chunks = cut("The dog was amused. " * 20, title=" The \n fox ", max_tokens=48)
    assert len(chunks) > 2
    for chunk in chunks:
        assert ByteTokens().decode(chunk.header_ids) == "The fox\n"
        assert ByteTokens().decode(chunk.token_ids) == "The fox\n" + chunk.text
        assert chunk.title == " The \n fox "


def test_a_long_title_is_cut_and_still_ends_its_line() -> None:
    for max_tokens, limit in ((512, 64), (40, 20)):
        (chunk, *_) = cut("The dog.", title="Zebra quagga 我 " * 200, max_tokens=max_tokens)
        assert limit / 2 < chunk.header_tokens <= limit
        assert ByteTokens().decode(chunk.header_ids).endswith("\n")
        assert "\ufffd" not in ByteTokens().decode(chunk.header_ids)


def test_no_title_or_no_wish_for_it_gives_no_header() -> None:
    assert cut("The dog.", title="")[0].header_ids == ()
    document = Document("key", "Title", "The dog.")
    assert split(document, ByteTokens(), title_header=False)[0].header_ids == ()


def test_the_content_hash_follows_header_body_and_text_and_not_the_place() -> None:
    base = Chunk("k", 0, "t", (1, 2), (1, 2, 3), ((0, 1),), "a", 0, 1)
    elsewhere = Chunk("other", 5, "t", (1, 2), (1, 2, 3), ((0, 1),), "a", 10, 11)
    assert base.content_hash == elsewhere.content_hash
    others = [
        Chunk("k", 0, "t", (1,), (1, 2, 3), ((0, 1),), "a", 0, 1),
        Chunk("k", 0, "t", (1, 2), (1, 2, 4), ((0, 1),), "a", 0, 1),
        Chunk("k", 0, "t", (1, 2), (1, 2, 3), ((0, 1),), "b", 0, 1),
    ]
    assert len({chunk.content_hash for chunk in [base, *others]}) == 4


def test_chunks_too_small_and_unknown_languages_are_refused() -> None:
    with pytest.raises(InputError, match="15 tokens"):
        cut("text", max_tokens=15)
    with pytest.raises(InputError, match="xx"):
        cut("text", language="xx")
