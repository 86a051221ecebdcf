"""Token F1 and exact match are those of the published scores."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinkv.errors import InputError
from coinkv.evaluate.metrics import exact_match, normalised, token_f1

WORDS = st.sampled_from(
    [
        "the",
        "a",
        "An",
        "Arve",
        "arve",
        "ARVE's",
        "of",
        "1843",
        "st.",
        "-",
        "é",
        "ÉTÉ",
        "橋",
        "a–1",
        "“the”",
        "yes",
    ]
)
TEXTS = st.lists(WORDS, max_size=8).map(" ".join) | st.text(max_size=30)


def published_words(text):
    """Normalisation in the words of the papers, character by character and word by word."""
    kept = "".join(" " if c.isspace() else c for c in text.lower() if c not in string.punctuation)
    return [
        word
        for piece in kept.split()
        for word in re.sub(r"(?<!\w)(the|an|a)(?!\w)", " ", piece).split()
    ]


def published_f1(said, right):
    """Harmonic mean of precision and recall, common words struck out one by one."""
    said, rest = published_words(said), published_words(right)
    total, common = len(rest), 0
    for word in said:
        if word in rest:
            rest.remove(word)
            common += 1
    if common == 0:
        return 0.0
    precision, recall = common / len(said), common / total
    return 100 * 2 * precision * recall / (precision + recall)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=4))
def test_f1_is_the_best_harmonic_mean_of_precision_and_recall(prediction, answers):
    expected = max(published_f1(prediction, answer) for answer in answers)
    assert token_f1(prediction, answers) == pytest.approx(expected, abs=1e-9)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=4))
def test_scores_lie_in_their_range_and_an_exact_match_has_full_f1(prediction, answers):
    f1, match = token_f1(prediction, answers), exact_match(prediction, answers)
    assert 0 <= f1 <= 100
    assert match in (0, 100)
    assert match == 0 or f1 == 100


@given(TEXTS)
def test_normalising_twice_changes_nothing_but_new_articles(text):
    once = normalised(text)
    assert once == " ".join(published_words(text))
    assert normalised(once) == once


@given(TEXTS, TEXTS)
def test_f1_does_not_depend_on_which_text_is_the_answer(one, other):
    assert token_f1(one, [other]) == token_f1(other, [one])


@pytest.mark.parametrize(
    ("prediction", "answers", "f1"),
    [
        ("Anna Holm", ["Anna Holm"], 100),
        ("The  Anna,\nholm!", ["an anna HOLM"], 100),
        ("Anna", ["Anna Holm"], 200 / 3),
        ("Anna Holm built it", ["Holm"], 40),
        ("Holm Holm Holm", ["Holm"], 50),
        ("Holm Holm", ["Holm Holm Lund"], 80),
        ("Anna Holm", ["Marta Lund", "Holm", "Anna"], 200 / 3),
        ("Marta Lund", ["Anna Holm"], 0),
        ("", ["Anna"], 0),
        ("Anna", [""], 0),
        ("", [""], 0),
        ("the", ["The"], 0),
        ("a", ["b", "A."], 0),
        ("yes", ["yes"], 100),
        ("Yes, it is.", ["yes"], 50),
        ("no", ["yes"], 0),
        ("St.-Louis", ["stlouis"], 100),
        ("St.-Louis", ["St. Louis"], 0),
        ("theatre another", ["theatre another"], 100),
        ("ÅRE", ["åre"], 100),
        ("“Arve”", ["Arve"], 0),
        ("1,843", ["1843"], 100),
        ("the–Arve", ["– arve"], 0),
        ("“the”", ["“ ”"], 100),
    ],
)
def test_f1_of_known_cases(prediction, answers, f1):
    assert token_f1(prediction, answers) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("prediction", "answers", "right"),
    [
        ("the Arve.", ["ARVE"], True),
        ("Arve river", ["Arve"], False),
        ("Arve", ["Rhône", "the arve"], True),
        ("Yes.", ["yes"], True),
        ("no", ["yes"], False),
        ("yes, it is", ["yes"], False),
        ("", [""], False),
        ("the", ["a"], False),
    ],
)
def test_an_exact_match_is_equality_of_normalised_texts_that_have_words(prediction, answers, right):
    assert exact_match(prediction, answers) == 100 * right


@pytest.mark.parametrize("metric", [token_f1, exact_match])
def test_nothing_can_be_scored_without_answers(metric):
    with pytest.raises(InputError, match="no answers"):
        metric("Arve", [])
