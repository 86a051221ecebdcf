"""A row retrieves among its own passages; noise withholds the gold ones as RAFT says."""

from __future__ import annotations

import pytest

from coinkv.evaluate.dataset import EvalRow, Passage
from coinkv.train.evidence import noise_of, retrieved

QUESTION = "Where does Ada live?"
TEXTS = {
    "Ada": "Ada lives in Rome. Ada likes cats.",
    "Ada's house": "The house of Ada stands in Rome.",
    "Bob": "Bob lives in Oslo.",
    "Cid": "Cid swims in the sea.",
    "Dov": "Dov sells apples.",
}


def row(gold=("Ada",), labels=True):
    passages = tuple(
        Passage(title, text, title in gold if labels else None) for title, text in TEXTS.items()
    )
    return EvalRow("ada", QUESTION, ("Rome",), passages)


def found(passages, row, noise, k_chunks=3):
    evidence = retrieved(passages, row, noise, k_chunks=k_chunks, k_nuggets=4)
    titles = [passages.catalogue.content(chunk.content_hash).title for chunk in evidence.chunks]
    return titles, evidence


def test_the_best_passages_and_their_nuggets_are_found(passages):
    titles, evidence = found(passages, row(), "none")
    assert "Ada" in titles[:2]
    assert len(titles) == 3
    assert 1 <= len(evidence.nuggets) <= 4
    assert {nugget.chunk for nugget in evidence.nuggets} <= {0, 1, 2}


@pytest.mark.parametrize("noise", ["left_out", "replaced"])
@pytest.mark.parametrize("gold", [("Ada",), ("Ada", "Ada's house")])
def test_withheld_gold_is_nowhere_in_the_evidence(passages, noise, gold):
    titles, _ = found(passages, row(gold), noise)
    assert titles
    assert not set(titles) & set(gold)


def test_replaced_gold_makes_room_for_distractors(passages):
    whole, _ = found(passages, row(), "none")
    replaced, _ = found(passages, row(), "replaced")
    assert len(replaced) == len(whole)
    assert [title for title in whole if title != "Ada"] == replaced[:2]


def test_left_out_gold_leaves_its_place_empty(passages):
    whole, _ = found(passages, row(), "none")
    left, _ = found(passages, row(), "left_out")
    assert left == [title for title in whole if title != "Ada"]


def test_where_only_gold_was_found_the_best_distractor_stays(passages):
    gold = ("Ada", "Ada's house")
    whole, _ = found(passages, row(gold), "none", k_chunks=2)
    assert set(whole) == set(gold)
    left, _ = found(passages, row(gold), "left_out", k_chunks=2)
    assert left == found(passages, row(gold), "replaced", k_chunks=1)[0]


@pytest.mark.parametrize("noise", ["left_out", "replaced"])
@pytest.mark.parametrize("asked", [row(gold=tuple(TEXTS)), row(labels=False), row(gold=())])
def test_a_row_without_distractors_or_labels_stays_as_it_is(passages, noise, asked):
    assert found(passages, asked, noise) == found(passages, asked, "none")


def test_a_text_that_is_gold_once_is_gold_everywhere(passages):
    twice = (Passage("Ada", TEXTS["Ada"], False), Passage("Ada", TEXTS["Ada"], True))
    chunks = passages.chunks_of(EvalRow("twice", QUESTION, ("Rome",), twice))
    assert [chunk.is_supporting for chunk in chunks] == [True]


def test_noise_comes_as_often_as_its_probability_says():
    rows, probability = 4000, 0.15
    drawn = [noise_of(f"set/{number}", 0, 7, probability) for number in range(rows)]
    share = sum(noise != "none" for noise in drawn) / rows
    assert abs(share - probability) < 4 * (probability * (1 - probability) / rows) ** 0.5
    noisy = [noise for noise in drawn if noise != "none"]
    half = noisy.count("replaced") / len(noisy)
    assert abs(half - 0.5) < 4 * (0.25 / len(noisy)) ** 0.5


def test_noise_is_the_same_everywhere_and_another_in_every_epoch_and_run():
    def drawn(epoch, seed):
        return [noise_of(f"set/{number}", epoch, seed, 0.5) for number in range(64)]

    assert drawn(0, 0) == drawn(0, 0)
    assert drawn(0, 0) != drawn(1, 0)
    assert drawn(0, 0) != drawn(0, 1)
    assert [noise_of(f"set/{n}", 0, 0, 0.5) for n in range(4)] == [
        "left_out",
        "none",
        "replaced",
        "left_out",
    ]


@pytest.mark.parametrize(
    ("probability", "noise"), [(0.0, {"none"}), (1.0, {"left_out", "replaced"})]
)
def test_the_ends_of_the_probability_are_never_and_always(probability, noise):
    assert {noise_of(f"set/{number}", 0, 0, probability) for number in range(99)} == noise
