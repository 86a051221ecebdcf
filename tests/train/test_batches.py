"""Every row comes once an epoch, rows of like length together, the same at every resumption."""

from __future__ import annotations

import pytest

from coinkv.evaluate.dataset import EvalRow, Passage
from coinkv.train.batches import Batches
from coinkv.train.data import TrainingData, TrainingRow
from coinkv.train.recipe import Recipe


def rows(count, lengths=lambda number: number * 37 % 101):
    text = "x"
    return [
        TrainingRow(
            "set",
            EvalRow(
                str(number),
                "q" * (1 + lengths(number)),
                ("answer",),
                (Passage("", text * (1 + 500 * (number % 2))),),
            ),
        )
        for number in range(count)
    ]


def data_of(made):
    return TrainingData(tuple(made), (), {}, None, 0)


def batches(count=50, whole_context=False, **recipe):
    options = {"micro_batch": 4, "accumulation": 2, "epochs": 3, **recipe}
    return Batches(data_of(rows(count)), Recipe(**options), whole_context=whole_context)


def ids(micro_batches):
    return [row.row.id for micro in micro_batches for row in micro]


@pytest.mark.parametrize("count", [1, 7, 8, 50, 300])
def test_every_row_comes_once_an_epoch(count):
    made = batches(count)
    epochs = {}
    for step in range(made.steps):
        epoch, micro_batches = made.at(step)
        assert 1 <= len(micro_batches) <= 2
        assert all(1 <= len(micro) <= 4 for micro in micro_batches)
        epochs.setdefault(epoch, []).extend(ids(micro_batches))
    assert list(epochs) == [0, 1, 2]
    assert all(sorted(seen) == sorted(map(str, range(count))) for seen in epochs.values())


def test_epochs_and_seeds_have_orders_of_their_own():
    made, again, other = batches(), batches(), batches(seed=1)
    assert [made.at(step) for step in range(made.steps)] == [
        again.at(step) for step in range(made.steps)
    ]
    first = [made.at(step)[1] for step in range(made.steps // 3)]
    second = [made.at(step)[1] for step in range(made.steps // 3, 2 * made.steps // 3)]
    assert first != second
    assert first != [other.at(step)[1] for step in range(made.steps // 3)]


def test_any_step_can_be_had_without_those_before():
    in_order = [batches().at(step) for step in range(batches().steps)]
    made = batches()
    for step in (20, 3, 11, 0):
        assert made.at(step) == in_order[step]


@pytest.mark.parametrize(("steps", "expected"), [(None, 21), (5, 5), (21, 21), (100, 21)])
def test_a_run_ends_with_its_epochs_or_its_steps(steps, expected):
    assert batches(steps=steps).steps == expected


@pytest.mark.parametrize("whole_context", [False, True])
def test_rows_of_like_length_come_together(whole_context):
    def length(row):
        held = sum(len(p.text) for p in row.row.passages) if whole_context else 0
        return len(row.row.question) + held

    def spread(micro_batches):
        return sum(max(map(length, micro)) - min(map(length, micro)) for micro in micro_batches)

    made = batches(128, whole_context, epochs=1)
    micro = [each for step in range(made.steps) for each in made.at(step)[1]]
    flat = [row for each in micro for row in each]
    unsorted = sorted(flat, key=lambda row: row.row.id)
    apart = [tuple(unsorted[at : at + 4]) for at in range(0, 128, 4)]
    assert spread(micro) < 0.2 * spread(apart)
