"""Rows are drawn by weight, in an order of their own, without those that cannot be trained on."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coinkv.errors import InputError
from coinkv.train.data import Source, training_rows
from coinkv.train.shares import apportioned, counts

WEIGHT = st.floats(0.01, 100).map(lambda weight: round(weight, 2))


def fields(name, **other):
    passage = {"title": f"Of {name}", "text": f"Text of {name}.", "is_supporting": True}
    question = f"What of {name}, {hashlib.sha256(name.encode()).hexdigest()}?"
    return {"id": name, "question": question, "answers": [name], "passages": [passage]} | other


def written(tmp_path, name, rows):
    path = tmp_path / f"{name}.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def numbered(tmp_path, name, count):
    return written(tmp_path, name, [fields(f"{name}-{n}") for n in range(count)])


def in_order(name, count, seed):
    ids = [f"{name}-{n}" for n in range(count)]
    return sorted(ids, key=lambda each: hashlib.sha256(f"{seed}:{each}".encode()).hexdigest())


def ids(rows, set_name):
    return [each.row.id for each in rows if each.set_name == set_name]


@pytest.mark.parametrize(
    ("text", "name", "weight"),
    [
        ("train/hotpotqa.jsonl.gz=2", "train/hotpotqa.jsonl.gz", 2.0),
        ("hotpotqa.jsonl", "hotpotqa.jsonl", 1.0),
        ("org/set:config:train=0.5", "org/set:config:train", 0.5),
        ("lang=de/rows.jsonl", "lang=de/rows.jsonl", 1.0),
        ("lang=de/rows.jsonl=3", "lang=de/rows.jsonl", 3.0),
        ("year=2024=1", "year=2024", 1.0),
    ],
)
def test_the_number_behind_the_last_equals_sign_is_the_weight(text, name, weight):
    assert Source.parsed(text) == Source(name, weight)


@pytest.mark.parametrize("text", ["", "  ", "=2", "a.jsonl=0", "a.jsonl=-1", "a=nan", "a=inf"])
def test_a_source_without_a_name_or_with_no_weight_above_0_is_refused(text):
    with pytest.raises(InputError):
        Source.parsed(text)


def test_the_drawn_rows_are_the_first_by_the_hash_of_seed_and_id(tmp_path):
    source = Source(numbered(tmp_path, "a", 20))
    drawn = training_rows([source], rows=7, seed=5).rows
    assert [each.row.id for each in drawn] == in_order("a", 20, seed=5)[:7]
    assert drawn[0].row.passages[0].text == f"Text of {drawn[0].row.id}."
    assert drawn[0].key == ("a", drawn[0].row.id)


def test_neither_other_sets_nor_further_rows_change_the_order_of_a_set(tmp_path):
    alone = training_rows([Source(numbered(tmp_path, "b", 9))], rows=None, seed=1)
    with_others = training_rows(
        [Source(numbered(tmp_path, name, count)) for name, count in (("c", 30), ("b", 12))],
        rows=None,
        seed=1,
    )
    kept = [name for name in ids(with_others.rows, "b") if int(name[2:]) < 9]
    assert kept == ids(alone.rows, "b")


def test_the_order_of_the_sources_changes_nothing(tmp_path):
    sources = [
        Source(numbered(tmp_path, name, 10), weight) for name, weight in (("b", 2), ("a", 1))
    ]
    one = training_rows(sources, rows=8, seed=0, held_out=3)
    other = training_rows(sources[::-1], rows=8, seed=0, held_out=3)
    assert one == other
    assert [each.set_name for each in one.rows] == ["a"] * 3 + ["b"] * 5


def test_without_a_number_equal_weights_take_every_row(tmp_path):
    sources = [Source(numbered(tmp_path, name, count), 3) for name, count in (("a", 4), ("b", 11))]
    data = training_rows(sources, rows=None, seed=0)
    assert len(data.rows) == len({each.key for each in data.rows}) == 15


def test_without_a_number_unequal_weights_stop_where_the_first_set_runs_out(tmp_path):
    weighted = [
        Source(numbered(tmp_path, name, count), weight)
        for name, count, weight in (("a", 40, 1), ("b", 10, 2), ("c", 30, 0.5))
    ]
    data = training_rows(weighted, rows=None, seed=0)
    assert [each["drawn"] for each in data.facts["sets"]] == [5, 10, 2]


def test_a_set_with_too_few_rows_gives_all_and_the_others_share_the_rest(tmp_path):
    sources = [
        Source(numbered(tmp_path, name, count), weight)
        for name, count, weight in (("a", 3, 5), ("b", 40, 1), ("c", 40, 2))
    ]
    data = training_rows(sources, rows=33, seed=0)
    assert [each["drawn"] for each in data.facts["sets"]] == [3, 10, 20]
    assert data.facts["rows"] == len(data.rows) == 33


def test_more_rows_than_there_are_give_all_once(tmp_path):
    data = training_rows([Source(numbered(tmp_path, "a", 6))], rows=1000, seed=0)
    assert sorted(ids(data.rows, "a")) == [f"a-{n}" for n in range(6)]


def test_the_last_rows_of_each_set_are_held_out_whatever_number_is_drawn(tmp_path):
    sources = [Source(numbered(tmp_path, name, count)) for name, count in (("a", 20), ("b", 40))]
    all_of_them = training_rows(sources, rows=None, seed=2, held_out=6)
    assert ids(all_of_them.held_out, "a") == in_order("a", 20, 2)[-2:]
    assert ids(all_of_them.held_out, "b") == in_order("b", 40, 2)[-4:]
    assert ids(all_of_them.rows, "b") == in_order("b", 40, 2)[:-4]
    few = training_rows(sources, rows=8, seed=2, held_out=6)
    assert ids(few.held_out, "a") == in_order("a", 20, 2)[-3:]
    assert len(few.rows) == 8
    assert [each["held_out"] for each in few.facts["sets"]] == [3, 3]


def test_ids_may_repeat_between_sets(tmp_path):
    one = written(tmp_path, "one", [fields("x"), fields("y")])
    two = written(tmp_path, "two", [fields("x")])
    data = training_rows([Source(one), Source(two)], rows=None, seed=0)
    assert sorted(each.key for each in data.rows) == [("one", "x"), ("one", "y"), ("two", "x")]
    assert sorted(each.key for each in data.epoch(0)) == sorted(each.key for each in data.rows)


def test_rows_that_cannot_be_trained_on_are_left_out_and_counted_by_reason(tmp_path):
    rows = [
        fields("good"),
        fields("mute", answers=[]),
        fields("bare", passages=[]),
        fields("neither", answers=[], passages=[]),
    ]
    shown = written(tmp_path, "evaluation", [fields("shown", id="another id")])
    source = written(tmp_path, "a", [*rows, fields("shown")])
    data = training_rows([Source(source, 2)], rows=None, seed=0, against=[shown])
    assert ids(data.rows, "a") == ["good"]
    assert json.loads(json.dumps(data.facts)) == {
        "seed": 0,
        "rows": 1,
        "held_out": 0,
        "against": {"evaluation": 1},
        "sets": [
            {
                "set": "a",
                "weight": 2,
                "read": 5,
                "left_out": {
                    "no answers": 2,
                    "no passages": 1,
                    "in an evaluation set (question)": 1,
                },
                "usable": 1,
                "unmarked": 0,
                "drawn": 1,
                "held_out": 0,
            }
        ],
    }
    assert [each.training_id for each in data.duplicates.found] == ["shown"]


def test_rows_that_mark_no_passage_are_counted(tmp_path):
    texts = [{"title": "A", "text": "Of a."}, {"title": "B", "text": "Of b."}]
    passages = {
        "marked": [texts[0], {**texts[1], "is_supporting": True}],
        "unsaid": texts,
        "denied": [{**each, "is_supporting": False} for each in texts],
        "misspelt": [{**each, "is_suporting": True} for each in texts],
    }
    source = written(tmp_path, "a", [fields(name, passages=passages[name]) for name in passages])
    (told,) = training_rows([Source(source)], rows=None, seed=0).facts["sets"]
    assert (told["usable"], told["unmarked"]) == (4, 3)


def test_each_epoch_has_all_rows_in_another_order_that_the_seed_decides(tmp_path):
    source = Source(numbered(tmp_path, "a", 30))
    data = training_rows([source], rows=None, seed=0)
    again = training_rows([source], rows=None, seed=0)
    other = training_rows([source], rows=None, seed=1)
    assert data.epoch(1) == again.epoch(1)
    assert len({tuple(ids(each, "a")) for each in map(data.epoch, range(4))}) == 4
    assert ids(other.epoch(1), "a") != ids(data.epoch(1), "a")
    assert set(data.epoch(3)) == set(data.rows)
    assert data.epoch(0) != data.rows


def test_an_epoch_mixes_the_sets(tmp_path):
    sources = [Source(numbered(tmp_path, name, 30)) for name in "ab"]
    names = [each.set_name for each in training_rows(sources, rows=None, seed=0).epoch(0)]
    assert 8 < names[:30].count("a") < 22


def test_an_epoch_is_the_same_in_another_process(tmp_path):
    source = numbered(tmp_path, "a", 12)
    code = (
        "import sys; from coinkv.train.data import Source, training_rows;"
        "data = training_rows([Source(sys.argv[1])], rows=None, seed=3);"
        "print(*(each.row.id for each in data.epoch(2)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, source],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "77"},
    )
    here = training_rows([Source(source)], rows=None, seed=3).epoch(2)
    assert run.stdout.split() == ids(here, "a"), run.stderr


@pytest.mark.parametrize(
    "options",
    [{"rows": 0}, {"rows": -3}, {"held_out": -1}, {"held_out": 4}, {"held_out": 9}],
    ids=str,
)
def test_numbers_out_of_range_are_refused(tmp_path, options):
    source = Source(numbered(tmp_path, "a", 4))
    with pytest.raises(InputError):
        training_rows([source], **{"rows": None, "seed": 0} | options)


def test_no_source_a_missing_file_and_two_sets_of_one_name_are_refused(tmp_path):
    (tmp_path / "other").mkdir()
    one, two = numbered(tmp_path, "a", 2), numbered(tmp_path / "other", "a", 2)
    with pytest.raises(InputError, match="no set"):
        training_rows([], rows=None, seed=0)
    with pytest.raises(InputError, match="no such file"):
        training_rows([Source(str(tmp_path / "gone.jsonl"))], rows=None, seed=0)
    with pytest.raises(InputError, match="2 sets to train on have this name"):
        training_rows([Source(one), Source(two)], rows=None, seed=0)


def test_a_set_of_which_nothing_is_left_is_refused_with_the_reasons(tmp_path):
    source = written(tmp_path, "a", [fields("x"), fields("y", answers=[])])
    good = numbered(tmp_path, "good", 3)
    with pytest.raises(InputError, match="1 no answers, 1 in an evaluation set") as refusal:
        training_rows([Source(good), Source(source)], rows=None, seed=0, against=[source])
    assert refusal.value.where == "a"


def test_holding_out_all_rows_of_a_set_that_bounds_the_others_is_refused(tmp_path):
    sources = [Source(numbered(tmp_path, "a", 1), 1), Source(numbered(tmp_path, "b", 10), 2)]
    with pytest.raises(InputError, match="with 5 of 11 rows held out none is left"):
        training_rows(sources, rows=None, seed=0, held_out=5)


@st.composite
def sets(draw):
    count = draw(st.integers(1, 6))
    weights = draw(st.lists(WEIGHT, min_size=count, max_size=count))
    return weights, draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))


@settings(deadline=None)
@given(sets(), st.integers(0, 400))
def test_shares_add_up_and_lie_within_1_of_the_weights(of, total):
    weights, most = of
    shares = apportioned(total, weights, most)
    assert sum(shares) == min(total, sum(most))
    assert all(0 <= share <= limit for share, limit in zip(shares, most, strict=True))
    for n in (n for n, share in enumerate(shares) if share < most[n]):
        for share, weight in zip(shares, weights, strict=True):  # none gets more a weight than n
            assert (share - 1) / weight < (shares[n] + 1) / weights[n] + 1e-9
    roomy = apportioned(total, weights, [total + 1] * len(weights))
    for share, weight in zip(roomy, weights, strict=True):
        assert abs(share - total * weight / sum(weights)) < 1


@settings(deadline=None)
@example(([1.0, 1.0], [1, 2]), 1, 2)
@given(sets(), st.none() | st.integers(1, 400), st.integers(0, 60))
def test_no_row_is_both_drawn_and_held_out(of, rows, held_out):
    weights, usable = of
    try:
        drawn, held = counts(rows, held_out, weights, usable)
    except InputError:
        assert held_out >= sum(usable) or rows is None
        return
    assert sum(held) == held_out
    assert all(n + m <= most for n, m, most in zip(drawn, held, usable, strict=True))
    if rows is not None:
        assert sum(drawn) == min(rows, sum(usable) - held_out)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 40), st.integers(1, 40), WEIGHT, st.integers(0, 5))
def test_the_rows_of_a_set_are_a_prefix_of_its_order_and_nothing_comes_twice(
    tmp_path_factory, count, rows, weight, seed
):
    folder = tmp_path_factory.mktemp("sets")
    sources = [Source(numbered(folder, "a", count), weight), Source(numbered(folder, "b", 10))]
    drawn = training_rows(sources, rows=rows, seed=seed).rows
    assert len({each.key for each in drawn}) == len(drawn) == min(rows, count + 10)
    for name, size in (("a", count), ("b", 10)):
        of_it = ids(drawn, name)
        assert of_it == in_order(name, size, seed)[: len(of_it)]
