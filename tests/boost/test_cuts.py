"""Cuts: the same passage is cut in the same places again, whatever stands around it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coinkv.boost.chunks import LARGEST_TARGET, SMALLEST_TARGET, Vocabulary, chunker_named
from coinkv.errors import InputError
from tiny_models import VOCABULARY, make_tokenizer

AROUND = 4
TARGETS = [8, 16, 33, 64, 128]
NAMES = ["content", "fixed", "adaptive"]
law = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer().backend_tokenizer


@pytest.fixture(scope="module")
def cutter(tokenizer):
    vocabulary = Vocabulary(tokenizer, [0, 1])
    return lambda target, name="content": chunker_named(name, vocabulary, target)


def drawn(seed, tokens, kinds=VOCABULARY):
    return np.random.default_rng(seed).integers(0, kinds, tokens).astype(np.int32)


targets = st.sampled_from(TARGETS)
# few kinds of tokens make texts that repeat themselves
texts = st.builds(
    drawn, st.integers(0, 10**6), st.integers(0, 700), st.sampled_from([1, 2, 3, 20, VOCABULARY])
)
natural = st.builds(drawn, st.integers(0, 10**6), st.integers(0, 400))


def inner(cuts, start, end, reach):
    """Cuts that only what stands between two places can have made."""
    return [cut for cut in cuts if start + reach + AROUND <= cut <= end - reach - AROUND]


@law
@given(before=natural, passage=natural, behind=natural, target=targets)
def test_a_passage_is_cut_in_the_same_places_whatever_stands_around_it(
    cutter, before, passage, behind, target
):
    chunker, reach = cutter(target), target // 2
    alone = chunker.cuts(passage)
    among = [cut - len(before) for cut in chunker.cuts(np.concatenate([before, passage, behind]))]
    if max(map(gap, pairwise([*among, *alone[-1:]])), default=0) > 3 * target:
        return  # so long without a cut that one was made by length alone
    assert inner(alone, 0, len(passage), reach) == inner(among, 0, len(passage), reach)


@law
@given(ids=texts, target=targets)
def test_cuts_of_content_are_half_a_target_apart_at_least_and_four_targets_at_most(
    cutter, ids, target
):
    cuts = cutter(target).cuts(ids)
    gaps = [end - start for start, end in pairwise(cuts)]
    assert all(target // 2 <= gap <= 4 * target for gap in gaps)


@law
@given(ids=texts, target=targets, name=st.sampled_from(NAMES), share=st.floats(0, 1))
def test_more_text_behind_a_prompt_moves_none_of_its_cuts(cutter, ids, target, name, share):
    chunker = cutter(target, name)
    whole, part = chunker.cuts(ids), chunker.cuts(ids[: int(share * len(ids))])
    assert part == whole[: len(part)]


@law
@given(ids=texts, target=targets, name=st.sampled_from(NAMES))
def test_cuts_ascend_from_the_beginning_and_lie_in_the_text(cutter, ids, target, name):
    cuts = cutter(target, name).cuts(ids)
    assert cuts[:1] == [0] * bool(len(ids))
    assert cuts == sorted(set(cuts))
    assert all(cut <= len(ids) for cut in cuts)
    assert cuts == cutter(target, name).cuts(ids.copy())


@pytest.mark.parametrize("name", NAMES)
def test_no_token_has_no_cut_and_one_token_is_not_a_chunk_yet(cutter, name):
    chunker = cutter(8, name)
    assert chunker.cuts(np.array([], np.int32)) == []
    assert chunker.cuts(np.array([5], np.int32)) == [0]


@pytest.mark.parametrize("period", [1, 2, 5, 16, 31, 64, 100])
@pytest.mark.parametrize("target", TARGETS)
def test_a_text_that_repeats_itself_is_still_cut(cutter, period, target):
    ids = np.tile(drawn(period, period), 4000 // period)
    cuts = cutter(target).cuts(ids)
    assert max(map(gap, pairwise(cuts))) <= 4 * target
    assert len(ids) - cuts[-1] <= 4 * target + target


def gap(pair):
    return pair[1] - pair[0]


def test_chunks_are_about_a_target_long(cutter):
    for target in TARGETS:
        cuts = cutter(target).cuts(drawn(1, 200 * target))
        assert 0.75 * target <= np.mean([gap(pair) for pair in pairwise(cuts)]) <= 1.35 * target


def test_fixed_cuts_stand_at_every_target(cutter):
    assert cutter(16, "fixed").cuts(drawn(0, 50)) == [0, 16, 32, 48]
    assert cutter(16, "fixed").cuts(drawn(0, 48)) == [0, 16, 32, 48]
    assert cutter(16, "fixed").cuts(drawn(0, 15)) == [0]


def text_of(tokenizer, *lines):
    return np.array(tokenizer.encode("".join(lines), add_special_tokens=False).ids, np.int32)


def texts_of(tokenizer, ids, cuts):
    ends = [*cuts[1:], len(ids)]
    pairs = zip(cuts, ends, strict=True)
    return [tokenizer.decode(ids[start:end].tolist()) for start, end in pairs]


SENTENCE = "Marta counted 14 sheep on the hill and took the lamp and the dog. "


def test_adaptive_cuts_slide_to_the_nearest_natural_boundary_within_sixteen(tokenizer, cutter):
    ids = text_of(tokenizer, *[SENTENCE] * 30)
    sentence = len(text_of(tokenizer, SENTENCE))
    assert sentence < 32  # so that one ends within sixteen tokens of anywhere
    cuts = cutter(64, "adaptive").cuts(ids)
    assert len(cuts) > 4
    for text in texts_of(tokenizer, ids, cuts)[:-1]:
        assert text.rstrip().endswith(".")
    assert all(64 - 16 <= gap(pair) <= 64 + 16 for pair in pairwise(cuts))


def test_adaptive_cuts_stay_at_the_target_where_no_boundary_is_near(tokenizer, cutter):
    ids = text_of(tokenizer, "sheep" * 300)
    cuts = cutter(64, "adaptive").cuts(ids)
    assert cuts == list(range(0, len(ids) - 15, 64))[: len(cuts)]
    assert len(cuts) > 4


def test_paragraphs_come_before_lines_before_sentences_before_words(tokenizer, cutter):
    words, chunker = "the river had risen " * 2, cutter(64)
    for stronger, weaker in (("\n\n", "\n"), ("\n", ". "), (". ", " ")):
        filling = f"{words}{words}{weaker}{words}{words}"
        ids = text_of(tokenizer, *[f"{filling}sheep{stronger}"] * 25)
        apart = len(text_of(tokenizer, f"{filling}sheep{stronger}"))
        assert 33 < apart < 64 + 33
        texts = texts_of(tokenizer, ids, chunker.cuts(ids))[1:-1]
        assert len(texts) > 5
        assert all(text.rstrip(" .\n").endswith("sheep") for text in texts)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (["a", "\n\n", "b"], [0, 3, 0]),
        (["a", "\n", "b"], [0, 3, 1]),
        (["a", "\n", "\n", "b"], [0, 3, 1, 0]),
        (["a", ".", " b"], [0, 4, 2]),
        (["a", ".", "b"], [0, 4, 4]),
        (["a", " b"], [0, 3]),
        (["a", "b"], [0, 4]),
        (["<s>", "b"], [0, 0]),
    ],
)
def test_a_cut_is_as_natural_as_what_stands_before_it(tokenizer, text, kinds):
    ids = [tokenizer.encode(each, add_special_tokens=False).ids for each in text]
    places = np.cumsum([0, *map(len, ids[:-1])])
    joined = np.array([token for each in ids for token in each], np.int32)
    assert Vocabulary(tokenizer, [0, 1]).kinds(joined)[places].tolist() == kinds


def test_tokens_outside_the_vocabulary_are_no_boundary_and_no_error(cutter):
    ids = np.array([5, 2**31 - 1, 900, 6] * 40, np.int32)
    assert cutter(16).cuts(ids)[0] == 0


LANGUAGES = {
    "chinese": "河水在夜里上涨，低处的田地被淹没了。玛尔塔在山上数了十四只羊！少了两只？她拿起灯。",
    "emoji": "👩‍👩‍👧 and 🎉 went up the hill 🐑🐑🐑. Then 🎉🎉 came home! ",
    "code": "def count(sheep):\n    total = 0\n    for each in sheep:\n        total += 1\n\n",
    "arabic": "ارتفع النهر في الليل. غمرت المياه الحقول. ",
    "spaces": "          \t\t   \n   \n\n\n   ",
    "no spaces": "abcdefghij" * 5,
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_text_of_any_kind_is_cut_alike_behind_a_preamble(reader, language):
    vocabulary = Vocabulary(reader.text_tokenizer, reader.tokenizer.all_special_ids)
    chunker = chunker_named("content", vocabulary, 16)
    text = [f"{LANGUAGES[language]}{number}" for number in range(40)]
    ids = np.array(reader.tokenize("".join(text)).ids, np.int32)
    for preamble in (1, 7, 50):
        before = np.array(reader.tokenize("sheep " * 60).ids[:preamble], np.int32)
        alone = chunker.cuts(ids)
        among = [cut - preamble for cut in chunker.cuts(np.concatenate([before, ids]))]
        assert inner(alone, 0, len(ids), 8) == inner(among, 0, len(ids), 8)
        assert len(alone) > 5


@pytest.mark.parametrize("target", [SMALLEST_TARGET - 1, 0, -5, LARGEST_TARGET + 1])
def test_a_target_out_of_range_is_refused(cutter, target):
    with pytest.raises(InputError, match=f"chunk_tokens is {target}"):
        cutter(target)


def test_unknown_boundaries_are_refused(cutter):
    with pytest.raises(InputError, match="use one of content, fixed, adaptive"):
        cutter(64, "semantic")
