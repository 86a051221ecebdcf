"""Sentences: where they end, and what the sentence extractor proposes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinkv.corpus.extract.sentences import (
    CLAUSE_GAP,
    SentenceExtractor,
    sentence_gaps,
    sentence_spans,
)
from coinkv.errors import InputError


def sentences(text: str, language: str = "en") -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text, language)]


def clauses(text: str) -> list[str]:
    return CLAUSE_GAP.sub("|", text).split("|")


def test_abbreviations_do_not_end_a_sentence() -> None:
    text = "Dr. Smith of Acme Inc. wrote it. See Fig. 3 for more. It ends."
    assert sentences(text) == [
        "Dr. Smith of Acme Inc. wrote it.",
        "See Fig. 3 for more.",
        "It ends.",
    ]


def test_lines_wrapped_at_a_width_are_joined() -> None:
    text = (
        "The girl with the egg glittering in her hair watched the\n"
        "bailiff lead him out of the courtroom. He recognized her as\n"
        "the daughter of the old man who had come to see justice done\n"
        "at last."
    )
    assert [sentence.split() for sentence in sentences(text)] == [
        text[: text.index(" He")].split(),
        text[text.index("He") :].split(),
    ]


def test_lines_broken_on_purpose_are_not_joined() -> None:
    text = (
        "# Head\nSome prose that goes on for a while and then it ends here\n- one\n- two\n3) three"
    )
    assert sentences(text) == text.split("\n")
    assert sentences("Authors: A\nDate: 2016\nLicence: CC") == [
        "Authors: A",
        "Date: 2016",
        "Licence: CC",
    ]


def test_a_list_item_in_wrapped_lines_begins_anew() -> None:
    text = (
        "This paragraph was wrapped by its writer at about sixty columns\n"
        "- and an item begins here although the line above is quite full"
    )
    assert sentences(text) == text.split("\n")


def test_sentences_of_scripts_without_spaces_are_told_apart() -> None:
    assert sentences("我是中国人。你好！再见。", "zh") == ["我是中国人。", "你好！", "再见。"]


def test_characters_the_splitter_loses_stay_in_a_sentence() -> None:
    text = "One ends. \u222f x. Two ends. Three."
    assert "".join(sentences(text)).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("mark", ["(", '"', "'", "1. ", "a.", "... ", "\u2022 ", "[1] ", "?!", " "])
def test_a_huge_line_of_one_mark_is_still_split_in_pieces(mark: str) -> None:
    text = mark * (12_000 // len(mark))
    assert all(end - start <= 4000 for start, end in sentence_spans(text))


PIECES = st.sampled_from(
    [
        "One ends. ",
        "Dr. A. B",
        "\n",
        "\n\n",
        " ",
        "- ",
        "# ",
        "1. ",
        "“No.” ",
        "我。",
        "👩‍👩‍👧",
        "…",
        "?",
        ";",
        "\r",
        "\u222f",
        "word " * 11,
        "\t",
        "(a. b.) ",
        "e\u0301",
        "\u2028",
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=60))
def test_only_white_space_lies_between_sentences(text: str) -> None:
    spans = sentence_spans(text)
    assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)
    edges = [0, *[edge for span in spans for edge in span], len(text)]
    assert edges == sorted(edges)
    assert all(
        not text[left:right].strip() for left, right in zip(edges[::2], edges[1::2], strict=True)
    )


@given(st.lists(PIECES, max_size=30).map("".join), st.integers(0, 200))
def test_sentences_behind_a_point_do_not_depend_on_it(text: str, since: int) -> None:
    late = [gap for gap in sentence_gaps(text) if gap[1] > since]
    assert [gap for gap in sentence_gaps(text, since=since) if gap[1] > since] == late


@given(st.lists(PIECES, max_size=30).map("".join))
def test_candidates_are_verbatim_disjoint_and_in_document_order(text: str) -> None:
    reached = 0
    for candidate in SentenceExtractor(max_words=6, min_words=2).extract(text):
        assert any(character.isalnum() for character in candidate)
        reached = text.index(candidate, reached) + len(candidate)


def test_long_sentences_are_cut_between_clauses_and_no_piece_is_short() -> None:
    text = (
        "The treaty was signed by both of the kings in 1648; no one, it is said, believed that it "
        "would last for long, but the peace held for thirty years — longer than anyone alive could "
        "remember any peace to have held before. Short one."
    )
    assert SentenceExtractor().extract(text) == [
        "The treaty was signed by both of the kings in 1648;",
        "no one, it is said, believed that it would last for long,",
        "but the peace held for thirty years —",
        "longer than anyone alive could remember any peace to have held before.",
        "Short one.",
    ]


def test_a_cut_that_would_leave_a_short_piece_is_not_made() -> None:
    first, second = "Note: " + "word " * 30 + "end;", "again " * 15 + "done; it is."
    assert SentenceExtractor().extract(f"{first} {second}") == [first, second]


def test_a_clause_boundary_is_no_range_of_years_and_no_time() -> None:
    assert clauses("from 1914 - 1918 at 10:30") == ["from 1914 - 1918 at 10:30"]
    assert clauses("one; two, and three -- four") == ["one;", "two,", "and three --", "four"]


def test_a_long_sentence_without_clauses_is_cut_by_count() -> None:
    text = " ".join(f"w{number}" for number in range(100))
    pieces = SentenceExtractor(max_words=40).extract(text)
    assert " ".join(pieces) == text
    assert [len(piece.split()) for piece in pieces] == [34, 34, 32]


def test_headings_and_items_are_candidates_without_their_marker() -> None:
    text = "## The head\n\n- first item\n* second. With more.\n2. third\n\n----\n***"
    assert SentenceExtractor().extract(text) == [
        "The head",
        "first item",
        "second.",
        "With more.",
        "third",
    ]


def test_nothing_is_proposed_for_text_without_letters_or_digits() -> None:
    assert SentenceExtractor().extract(" \n--- ... !\n👍") == []


def test_the_identity_follows_the_options() -> None:
    default, other = SentenceExtractor(), SentenceExtractor(language="de")
    before = default.identity
    default.counts["x"] = 1
    assert default.identity == before == SentenceExtractor().identity
    assert len({before, other.identity, SentenceExtractor(max_words=39).identity}) == 3


def test_all_texts_are_extracted_in_order() -> None:
    assert list(SentenceExtractor().extract_all(["B. C.", "", "A."])) == [["B. C."], [], ["A."]]


def test_unusable_options_are_refused() -> None:
    with pytest.raises(InputError, match="'xx'"):
        SentenceExtractor(language="xx")
    with pytest.raises(InputError, match="min_words"):
        SentenceExtractor(min_words=30)
    with pytest.raises(InputError):
        sentence_spans("text", "english")
