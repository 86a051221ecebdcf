"""Training rows that stand in an evaluation set are found, whatever they look like there."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coinkv.evaluate.dataset import EvalRow, EvalSet, Passage, read_set
from coinkv.train import duplicates as module
from coinkv.train.duplicates import duplicates

BRIDGE = (
    "The stone bridge was built in 1843 by Anna Holm. It crosses the river Arve in 3 arches. "
    "A flood destroyed the middle arch in 1910. The village rebuilt it with oak beams. "
    "Since 1962 the bridge carries no cars, and on the first Sunday in May a market for larch wood "
    "stands on it."
)
QUESTION = "Who built the stone bridge over the river Arve?"


def row(question=QUESTION, *texts, id="row", label=True, **other):
    return EvalRow(id, question, ("x",), tuple(Passage("", t, label) for t in texts), **other)


def found(ours, theirs):
    report = duplicates([EvalSet("training", (ours,))], [EvalSet("evaluation", (theirs,))])
    return [(each.kind, each.similarity) for each in report.found]


@pytest.mark.parametrize(
    "other",
    [
        "who built  stone bridge over the river arve",
        "Who built “the stone bridge” over a river, Arve ?",
        "Ｗho built the stone-bridge over the\u00a0river Arve?!",
    ],
)
def test_case_punctuation_articles_and_forms_of_characters_make_no_other_question(other):
    assert found(row(), row(other, id="other")) == [("question", 1.0)]


def test_a_question_that_differs_in_a_few_letters_is_similar():
    ((kind, similarity),) = found(row(), row("Who built the stone bridges over the river Arwe?"))
    assert kind == "similar question"
    assert 0.9 <= similarity < 1


def test_a_question_with_its_words_in_another_order_is_similar():
    assert found(row(), row("Over the river Arve, who built the stone bridge?")) == [
        ("similar question", 1.0)
    ]


def test_a_question_that_holds_another_and_asks_for_more_is_its_own():
    assert not found(row(), row(QUESTION[:-1] + ", and in which year did the flood destroy it?"))


def test_the_same_long_id_is_the_same_row_whatever_it_asks():
    ours, theirs = row(id="5a77ec11"), row("When do herons hunt?", id="5a77ec11")
    assert found(ours, theirs) == [("id", 1.0)]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("17", {}),
        ("nq_3", {}),
        ("line 1234", {"where": "some/file.jsonl, line 1234"}),
        ("row 12345", {"where": "org/set:train, row 12345"}),
        ("line 1234#0", {"where": "some/file.jsonl, line 1234", "document": "line 1234"}),
    ],
)
def test_a_number_in_a_file_is_no_id(name, other):
    assert not found(row(id=name, **other), row("When do herons hunt?", id=name, **other))


@pytest.mark.parametrize(
    "other",
    [
        BRIDGE,
        BRIDGE.upper().replace(".", " ."),
        "It is a village in a valley. " + BRIDGE,
        BRIDGE[:250] + " Nothing more is known of it.",
        BRIDGE[:100],
        "May market for larch wood stands on it",
    ],
    ids=["same", "otherwise written", "around it", "ends otherwise", "its start", "its last words"],
)
def test_a_supporting_passage_that_stands_there_is_found_from_both_sides(other):
    ours, theirs = row(QUESTION, BRIDGE), row("When do herons hunt?", "Rye is a grain.", other)
    assert found(ours, theirs) == [("gold passage", 1.0)]
    assert found(theirs, ours) == [("gold passage", 1.0)]


@pytest.mark.parametrize("other", [BRIDGE[100:], BRIDGE[:150] + " It was torn down in 1971."])
def test_a_passage_that_shares_less_than_its_beginning_is_another(other):
    assert not found(row(QUESTION, BRIDGE), row("When do herons hunt?", other))


def test_a_short_passage_counts_only_where_all_of_it_is_the_same():
    asked = "When do herons hunt?"
    assert found(row(QUESTION, "Rye is a grain."), row(asked, "Rye is grain")) == [
        ("gold passage", 1.0)
    ]
    assert not found(row(QUESTION, "Rye is a grain."), row(asked, "Rye is a grain. " + BRIDGE))
    assert not found(row(QUESTION, "???"), row(asked, "!!!"))


def test_distractors_are_shared_freely_and_a_lone_unlabelled_passage_supports():
    asked = "When do herons hunt?"
    gold, distractor = row(QUESTION, BRIDGE), row(asked, BRIDGE, label=False)
    alone, several = row(asked, BRIDGE, label=None), row(asked, BRIDGE, "Rye.", label=None)
    assert not found(gold, distractor)
    assert not found(gold, several)
    assert found(gold, alone) == [("gold passage", 1.0)]


def test_a_row_is_reported_once_a_set_by_the_first_kind_that_holds():
    ours = EvalSet("training", (row(QUESTION, BRIDGE, id="12345678"), row("Who sings?", id="b")))
    one = EvalSet(
        "one",
        (
            row("When do herons hunt?", BRIDGE, id="by passage"),
            row("Where is the weir?", id="12345678"),
            row(QUESTION + "!", id="by question"),
        ),
    )
    two = EvalSet("two", (row("Where is the weir?", BRIDGE, id="by passage"),))
    report = duplicates([ours], [two, one])
    assert [(each.evaluation_set, each.evaluation_id, each.kind) for each in report.found] == [
        ("one", "by question", "question"),
        ("two", "by passage", "gold passage"),
    ]
    assert report.kinds == {("training", "12345678"): "question"}
    assert report.counts == {"training": {"question": 1}}


def test_of_several_similar_questions_the_nearest_is_reported():
    near = row("Who built the stone bridges over the river Arve?", id="near")
    nearer = row("Who built the stone bridge over the river Arvo?", id="far")
    furthest = row("Who built stony bridges over the rivers Arve?", id="furthest")
    ours = EvalSet("training", (row("Who built the stone bridges over the river Arves?"),))
    report = duplicates([ours], [EvalSet("evaluation", (furthest, nearer, near))])
    assert [each.evaluation_id for each in report.found] == ["near"]


def test_rows_are_known_by_set_and_id():
    training = [EvalSet("a", (row(id="x"),)), EvalSet("b", (row("When do herons hunt?", id="x"),))]
    report = duplicates(training, [EvalSet("evaluation", (row(id="y"),))])
    assert set(report.kinds) == {("a", "x")}
    assert report.counts == {"a": {"question": 1}, "b": {}}


def test_without_evaluation_sets_nothing_is_found():
    report = duplicates([EvalSet("training", (row(),))], [])
    assert report.found == ()
    assert report.lines() == ["training: 0 of 1 rows stand in evaluation sets"]


def test_the_report_is_json_and_a_few_lines_of_plain_text():
    ours = EvalSet("training", tuple(row(f"[Who] is {n}?", id=f"t{n}") for n in range(12)))
    theirs = EvalSet("evaluation", tuple(row(f"[Who] is {n}?", id=f"e{n}") for n in range(11)))
    report = duplicates([ours], [theirs])
    facts = json.loads(json.dumps(report.facts))
    assert facts["compared"] == {"training": 12}
    assert facts["against"] == {"evaluation": 11}
    assert facts["found"] == {"training": {"question": 11, "similar question": 1}}
    assert facts["matches"][3] == {
        "kind": "question",
        "training_set": "training",
        "training_id": "t3",
        "evaluation_set": "evaluation",
        "evaluation_id": "e3",
        "similarity": 1.0,
        "training_question": "[Who] is 3?",
        "evaluation_question": "[Who] is 3?",
    }
    lines = report.lines(most=2)
    assert lines == [
        "training: 12 of 12 rows stand in evaluation sets (question 11, similar question 1)",
        "question 1.00 | training t0: [Who] is 0? | evaluation e0: [Who] is 0?",
        "question 1.00 | training t1: [Who] is 1? | evaluation e1: [Who] is 1?",
        "and 10 more",
    ]
    assert len(report.lines(most=12)) == 13


def test_what_is_found_does_not_depend_on_how_much_is_compared_at_once(monkeypatch):
    ours = EvalSet(
        "training", tuple(row(f"{'Who is number ' * 3}{n}?", id=f"{n}") for n in range(9))
    )
    theirs = EvalSet("evaluation", (row(f"{'Who is number ' * 3}4!"), row("Where?", id="w")))
    at_once = duplicates([ours], [theirs])
    monkeypatch.setattr(module, "_SIMILARITIES_AT_ONCE", 4)
    assert duplicates([ours], [theirs]) == at_once
    assert len(at_once.found) == 9


def test_a_set_stands_in_itself_row_by_row(tmp_path):
    path = tmp_path / "set.jsonl"
    texts = [f"{BRIDGE} {n}" for n in range(4)]
    rows = [
        {"question": f"{'Abc' * n} {n}?", "passages": [{"text": t}]} for n, t in enumerate(texts)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    report = duplicates([read_set(path)], [read_set(path)])
    assert [(each.training_id, each.kind) for each in report.found] == [
        (f"line {n}", "question") for n in (1, 2, 3, 4)
    ]


WORD = st.sampled_from(["rye", "mill", "weir", "bridge", "trout", "heron", "oak", "larch"])
WORDS = st.lists(WORD)


@settings(deadline=None)
@given(WORDS, st.lists(WORD, min_size=6, max_size=60), WORDS, st.booleans())
def test_a_passage_is_found_exactly_where_one_holds_the_head_of_the_other(before, text, after, cut):
    other = [*before, *text, *after] if not cut else [*text, *after]
    one, two = " ".join(text), " ".join(other)
    heads = [(one, two), (two, one)]
    expected = one == two or any(
        f" {head[:200]}" in f" {whole}" and len(head.split()) >= 8 for head, whole in heads
    )
    ours, theirs = row("Who sings?", one), row("When do herons hunt?", two)
    assert bool(found(ours, theirs)) == expected
