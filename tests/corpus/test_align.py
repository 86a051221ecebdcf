"""Alignment: which candidates are found where, which are dropped, and which tokens they take."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byte_tokens import TRAINING, ByteTokens, byte_level
from coinkv.corpus.align import Alignment, Nugget, align
from coinkv.corpus.chunks import Chunk, split
from coinkv.corpus.documents import Document
from coinkv.errors import InputError


def chunk_of(text: str, *, title: str = "Title", trimmed: bool = False) -> Chunk:
    (chunk,) = split(Document("key", title, text), ByteTokens(trimmed), max_tokens=100_000)
    return chunk


def decode(chunk: Chunk, nugget: Nugget) -> str:
    ids = chunk.token_ids[nugget.token_start : nugget.token_end]
    return byte_level(False).decode(list(ids), skip_special_tokens=False)


def spans(text: str, *candidates: str, tau: float = 0.7) -> list[tuple[str, str]]:
    chunk = chunk_of(text)
    return [(text[n.start : n.end], n.kind) for n in align(candidates, chunk, tau=tau).nuggets]


def counts(alignment: Alignment) -> tuple[int, int, int]:
    return alignment.exact, alignment.fuzzy, alignment.abandoned


def test_a_verbatim_candidate_is_found_with_its_tokens() -> None:
    chunk = chunk_of("The dog was amused. The fox was not.")
    alignment = align(["The fox was not."], chunk)
    (nugget,) = alignment.nuggets
    assert (nugget.start, nugget.end, nugget.kind) == (20, 36, "exact")
    assert decode(chunk, nugget).strip() == "The fox was not."
    assert nugget.token_end == len(chunk.token_ids)
    assert counts(alignment) == (1, 0, 0)


def test_tokens_are_counted_from_the_title_header() -> None:
    text = "The dog was amused."
    with_title, without = chunk_of(text), chunk_of(text, title="")
    (one,) = align(["The dog"], with_title).nuggets
    (other,) = align(["The dog"], without).nuggets
    assert one.token_start == other.token_start + with_title.header_tokens
    assert with_title.header_tokens > 0


@pytest.mark.parametrize(
    ("text", "candidate", "found"),
    [
        ("He said “no” — it’s over.", 'He said "no" - it\'s over.', "He said “no” — it’s over."),
        ("one\n  two\u00a0three", "one two three", "one\n  two\u00a0three"),
        ("a cafe\u0301 there", "caf\u00e9", "cafe\u0301"),
        ("see a\u0327\u0301 there", "\u00e1\u0327", "a\u0327\u0301"),
        ("the ﬁrst ofﬁce", "first office", "ﬁrst ofﬁce"),
        ("soft\u00adhyphen and zero\u200bwidth", "softhyphen and zerowidth", None),
        ("wait… what", "wait... what", "wait… what"),
        ("全角ＡＢＣです", "ABC", "ＡＢＣ"),
        ("\u1112\u1161\u11ab글 here", "\ud55c글", "\u1112\u1161\u11ab글"),
    ],
)
def test_other_writings_of_the_same_text_count_as_exact(
    text: str, candidate: str, found: str | None
) -> None:
    assert spans(text, candidate) == [(found or text, "exact")]


def test_case_is_kept() -> None:
    assert align(["the us"], chunk_of("the US army")).exact == 0


@pytest.mark.parametrize(
    ("text", "candidate"),
    [
        ("it was a party of ten", "art"),
        ("the price is 5.3 million", "the price is 5"),
        ("the price is 1,500", "500"),
        ("they grew 50 %", "they grew 5"),
        ("a cafe\u0301", "a cafe"),
        ("か\u3099く", "か"),
    ],
)
def test_a_candidate_is_never_found_inside_a_word_or_number(text: str, candidate: str) -> None:
    assert candidate not in [found for found, _ in spans(text, candidate)]


def test_characters_of_scripts_without_spaces_are_words() -> None:
    assert spans("我是中国人。你好！", "中国") == [("中国", "exact")]
    assert spans("今天天气很好我们去公园吧", "今天天气真好我们去公园") == [
        ("今天天气很好我们去公园", "fuzzy")
    ]


def test_a_squared_number_is_not_a_longer_number() -> None:
    assert spans("an area of 10² metres", "10² metres") == [("10² metres", "exact")]
    assert spans("an area of 10² metres", "an area of 102 metres") == []
    assert spans("about 1½ hours", "about 11/2 hours") == []


def test_a_near_copy_takes_the_most_similar_words() -> None:
    text = "Long ago, the quick brown fox jumped over the lazy dog. The end came soon."
    assert spans(text, "the quick brown fox jumps over a lazy dog.") == [
        ("the quick brown fox jumped over the lazy dog.", "fuzzy")
    ]


def test_only_a_similarity_above_tau_is_accepted() -> None:
    # Insertions and deletions: 2 of 20 characters, a similarity of exactly 0.9.
    text, candidate = "abcde fghi", "abcdx fghi"
    assert spans(text, candidate, tau=0.89) == [(text, "fuzzy")]
    assert spans(text, candidate, tau=0.9) == []


@pytest.mark.parametrize(
    ("text", "candidate"),
    [
        ("sales grew by 5 % in 2019 and then fell", "sales grew by 6 % in 2019"),
        ("sales grew by 5 % in 2019 and then fell", "sales grew by 5 % in 2018"),
        ("sales grew by 5 % in the north", "sales grew by 5 in the north"),
        ("it cost $500 in total that year", "it cost €500 in total that year"),
        ("it cost 1,500 in total that year", "it cost 1,600 in total that year"),
        ("at -5 degrees the lake freezes over", "at 5 degrees the lake freezes over"),
        ("they had three children in the end", "they had four children in the end"),
        ("it cost 5 million to build the bridge", "it cost 5 billion to build the bridge"),
        ("the plan is valid in all states", "the plan is not valid in all states"),
        ("the plan is not valid in all states", "the plan is valid in all states"),
        ("they didn’t sign the treaty that day", "they did sign the treaty that day"),
        ("he came with his brother to the town", "he came without his brother to the town"),
        ("the city of Paris was taken by storm", "the city of Lyon was taken by storm"),
        ("Paris was taken by storm in the night", "Lyon was taken by storm in the night"),
        ("he was born in the old town of Bonn", "Ada was born in the old town of Bonn"),
        ("the city of Paris was taken by storm", "the city that was taken by storm"),
        ("这个城市有三百万人口居住在这里", "这个城市有五百万人口居住在这里"),
        ("这个城市是中国最大的城市之一", "这个城市不是中国最大的城市之一"),
    ],
)
def test_a_candidate_that_states_otherwise_is_dropped(text: str, candidate: str) -> None:
    alignment = align([candidate], chunk_of(text), tau=0.5)
    assert counts(alignment) == (0, 0, 1)


@pytest.mark.parametrize(
    ("text", "candidate"),
    [
        ("they had three children in the end", "they had 3 children in the end"),
        ("sales grew by 5 percent in that year", "sales grew by 5% in that year"),
        ("it cost 1,500 in total that year", "it cost 1500 in total that year"),
        ("they didn’t sign the treaty that day", "they did not sign the treaty that day"),
        ("Researchers saw that the dog was ill", "The researchers saw that the dog was ill"),
        ("the army of Rome's last king fell", "the army of Rome last king fell"),
        ("it ran from 1914-1918 in the north", "it ran from 1914 - 1918 in north"),
    ],
)
def test_another_way_to_say_the_same_is_kept(text: str, candidate: str) -> None:
    assert counts(align([candidate], chunk_of(text))) == (0, 1, 0)


def test_a_repeated_candidate_takes_the_next_place_and_then_counts_nowhere() -> None:
    alignment = align(["the dog"] * 3, chunk_of("the dog saw the dog"))
    assert [(n.start, n.end) for n in alignment.nuggets] == [(0, 7), (12, 19)]
    assert counts(alignment) == (2, 0, 0)
    near = "the quick brown fox jumps over a lazy dog"
    alignment = align([near, near], chunk_of("the quick brown fox jumped over the lazy dog"))
    assert counts(alignment) == (0, 1, 0)


def test_one_span_found_twice_is_one_nugget_and_exact_wins() -> None:
    text = "the quick brown fox jumped over the lazy dog"
    near = "the quick brown fox jumps over the lazy dog"
    assert counts(align([near, text], chunk_of(text))) == (1, 0, 0)
    assert counts(align([text, near], chunk_of(text))) == (1, 0, 0)


@pytest.mark.parametrize("candidate", ["", " \n", "...", "—", "👍"])
def test_a_candidate_without_letters_or_digits_is_abandoned(candidate: str) -> None:
    assert counts(align([candidate], chunk_of("a... — 👍 b"))) == (0, 0, 1)


def test_a_candidate_longer_than_the_chunk_is_abandoned() -> None:
    assert counts(align(["the dog " * 50], chunk_of("the dog"))) == (0, 0, 1)


def test_nuggets_come_in_document_order() -> None:
    alignment = align(["lazy dog", "The quick", "fox jumps"], chunk_of(TRAINING[0]))
    starts = [nugget.start for nugget in alignment.nuggets]
    assert starts == sorted(starts)
    assert len(starts) == 3


def test_coverage_counts_every_body_token_once() -> None:
    chunk = chunk_of("The quick brown fox jumps over the lazy dog.")
    alignment = align(["The quick brown", "quick brown fox"], chunk)
    first, last = alignment.nuggets[0].token_start, alignment.nuggets[1].token_end
    assert alignment.covered_tokens == last - first
    assert alignment.total_tokens == len(chunk.token_ids) - chunk.header_tokens
    assert alignment.coverage == alignment.covered_tokens / alignment.total_tokens
    assert align([chunk.text], chunk).coverage == 1.0
    assert align([], chunk).coverage == 0.0


def test_a_tau_outside_zero_to_one_is_refused() -> None:
    with pytest.raises(InputError, match="tau"):
        align([], chunk_of("text"), tau=1.5)


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize(
    "nugget",
    ["👩‍👩‍👧 and", "中国", "cafe\u0301 with", "one\r\ntwo", "🎉🎉x", "é", "நி word", "日本語"],
)
def test_the_tokens_of_a_nugget_decode_to_its_text(nugget: str, trimmed: bool) -> None:
    for before, after in (
        ("", ""),
        ("see ", " now"),
        ("a\r\n", "\r\nb"),
        ("🎉 ", " 🎉"),
        ("我", "我"),
    ):
        chunk = chunk_of(before + nugget + after, trimmed=trimmed)
        for found in align([nugget], chunk).nuggets:
            assert chunk.text[found.start : found.end] == nugget
            assert nugget in decode(chunk, found)
            smaller = Nugget(0, 0, found.token_start + 1, found.token_end, "exact")
            assert nugget not in decode(chunk, smaller)
            smaller = Nugget(0, 0, found.token_start, found.token_end - 1, "exact")
            assert nugget not in decode(chunk, smaller)


WORDS = st.sampled_from(
    [
        "The",
        "dog",
        "was",
        "not",
        "2019",
        "5 %",
        "café",
        "cafe\u0301",
        "我是",
        "👩‍👩‍👧",
        "“no”",
        "it's",
        "\r\n",
        "\n\n",
        "x²",
        "ﬁn",
        "U.S.",
        "Bonn,",
        "grew",
    ]
)
TEXTS = st.lists(WORDS, min_size=1, max_size=40).map(" ".join)


@settings(deadline=None)
@given(TEXTS, st.data(), st.booleans())
def test_every_nugget_decodes_to_its_text_and_spans_are_sorted_and_unique(
    text: str, data: st.DataObject, trimmed: bool
) -> None:
    if not text.strip():
        return
    chunk = chunk_of(text, trimmed=trimmed)
    candidates = []
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(text) - 1))
        end = data.draw(st.integers(start + 1, len(text)))
        candidate = text[start:end]
        if data.draw(st.booleans()):
            candidate = unicodedata.normalize("NFKC", candidate).replace("  ", " ")
        if data.draw(st.booleans()):
            candidate = candidate.replace("dog", "cat").replace("grew", "grows")
        candidates += [candidate] * data.draw(st.integers(1, 2))
    alignment = align(candidates, chunk)
    found = [(nugget.start, nugget.end) for nugget in alignment.nuggets]
    assert found == sorted(set(found))
    for nugget in alignment.nuggets:
        assert chunk.text[nugget.start : nugget.end] in decode(chunk, nugget)
        assert chunk.header_tokens <= nugget.token_start < nugget.token_end
        assert nugget.token_end <= len(chunk.token_ids)
    exact, fuzzy, abandoned = counts(alignment)
    assert exact + fuzzy == len(found)
    assert exact + fuzzy + abandoned <= len(candidates)


@settings(deadline=None)
@given(TEXTS)
def test_every_run_of_whole_words_is_found_exactly(text: str) -> None:
    if not any(character.isalnum() for character in text):
        return
    alignment = align([text, " ".join(text.split())], chunk_of(text))
    assert (alignment.exact, alignment.fuzzy, alignment.abandoned) == (1, 0, 0)
