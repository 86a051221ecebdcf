"""Rows of a results file become results: joined, pooled, and refused by their line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from coinkv.errors import InputError
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.results import by_fingerprint, read_results, require_one_fingerprint
from sweep_rows import answers, timing, written


@pytest.fixture
def read(tmp_path):
    def read_rows(*rows):
        return read_results([written(tmp_path / "results.jsonl", rows)])

    return read_rows


def test_an_answers_row_becomes_a_result(read):
    row = answers("coinrag_cacheblend", options={"ratio": 0.3}, k_chunks=2, k_nuggets=50)
    (result,) = read(row).results
    assert (result.set, result.half, result.method) == ("hotpotqa", "dev", "coinrag_cacheblend")
    assert result.configuration.label == "2, 50, r=0.3"
    assert result.f1 == row["f1"]
    assert result.per_question_f1 == {q["id"]: q["f1"] for q in row["per_question"]}
    assert (result.evidence_recall, result.answer_recall) == (0.6, None)
    assert result.commands == (row["command"],)


def test_a_later_answers_row_replaces_an_earlier_one_of_the_same_run(read):
    first, again, other = answers(f1=10), answers(f1=50), answers(k_nuggets=3)
    results = read(first, other, again).results
    assert [result.f1 for result in results] == [again["f1"], other["f1"]]


def test_the_rounds_of_a_run_are_pooled(read):
    row = answers()
    rounds = [[10.0, 20.0, 30.0], [40.0]]
    (result,) = read(row, *(timing(row, n, times) for n, times in enumerate(rounds))).results
    pooled = [10, 20, 30, 40]
    assert (result.ttft.mean_ms, result.ttft.p50_ms) == (25, 25)
    assert result.ttft.p99_ms == pytest.approx(np.percentile(pooled, 99))
    assert (result.ttft.timed_queries, result.ttft.apart) == (4, True)
    assert result.ttft.stages_ms["prefill"] == pytest.approx(0.74 * 25)  # each query counts once
    assert result.commands == (row["command"], "coinkv sweep --timing")


def test_a_round_timed_again_counts_once(read):
    row = answers()
    (result,) = read(row, timing(row, 0, [10.0]), timing(row, 0, [30.0])).results
    assert (result.ttft.mean_ms, result.ttft.timed_queries) == (30, 1)


def test_a_timing_row_may_stand_before_its_answers_and_in_another_file(tmp_path):
    row = answers()
    paths = [
        written(tmp_path / "times.jsonl", [timing(row, 0, [7.0])]),
        written(tmp_path / "answers.jsonl", [row]),
    ]
    (result,) = read_results(paths).results
    assert result.ttft.mean_ms == 7


def test_without_a_timing_row_the_times_are_those_of_the_answering_run(read):
    (result,) = read(answers(p99=100.0)).results
    assert (result.ttft.mean_ms, result.ttft.p99_ms) == (80, 100)
    assert (result.ttft.timed_queries, result.ttft.apart) == (40, False)


@pytest.mark.parametrize(
    "change",
    [
        {"set": "musique"},
        {"half": "test"},
        {"index": "windows"},
        {"k_nuggets": 9},
        {"options": {"order": "rank"}},
        {"adapter": "tuned"},
        {"fingerprint": "ff"},
    ],
)
def test_times_of_another_run_are_not_mixed_in(read, change):
    row = answers()
    found = read(row, timing(row | change, 0, [1.0]))
    assert found.results[0].ttft.mean_ms == 160
    assert "timed" in found.warnings[0]
    assert "no answers" in found.warnings[0]


def test_unknown_fields_and_kinds_are_passed_over(read):
    later = {"kind": "memory", "set": 3}
    assert len(read(answers(peak_bytes=7, notes=["x"]), later, {"no": "kind"}).results) == 1


def test_a_last_line_cut_off_by_a_kill_is_left_out_and_reported(tmp_path):
    whole, cut = json.dumps(answers()), json.dumps(answers(k_chunks=1))
    path = tmp_path / "results.jsonl"
    path.write_text(f"{whole}\n{cut[: len(cut) // 2]}", encoding="utf-8")
    found = read_results([path])
    assert len(found.results) == 1
    assert found.warnings == ("The last line of results.jsonl was cut off and is left out.",)


@pytest.mark.parametrize("cut", ["{", "nul", "[" * 100_000, "[1]\n{", "3\n"])
def test_any_other_line_that_is_no_row_is_named(tmp_path, cut):
    path = tmp_path / "results.jsonl"
    row = json.dumps(answers())
    path.write_text(f"{row}\n\n{cut}\n{row}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"results\.jsonl, line 3: this line is no"):
        read_results([path])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("set", None),
        ("set", ""),
        ("half", "train"),
        ("method", 3),
        ("options", [1]),
        ("k_chunks", True),
        ("k_nuggets", "10"),
        ("fingerprint", None),
        ("model", 7),
        ("f1", None),
        ("f1", float("nan")),
        ("f1", -1),
        ("len_tokens", "many"),
        ("kv_bytes", float("inf")),
        ("ttft_ms", 3.0),
        ("ttft_ms", {"mean": 1, "p50": 1}),
        ("per_question", []),
        ("per_question", {"q": 1}),
        ("per_question", [{"id": "a"}]),
        ("per_question", [{"id": "a", "f1": 1}, {"id": "a", "f1": 2}]),
    ],
)
def test_a_wrong_field_is_named_with_its_line(read, field, value):
    with pytest.raises(InputError, match="line 2") as refused:
        read(answers(), answers() | {field: value})
    assert refused.value.what.startswith("`") or "has no `" in refused.value.what


@pytest.mark.parametrize("field", ["set", "k_nuggets", "f1", "per_question"])
def test_a_missing_field_is_named(read, field):
    row = answers()
    del row[field]
    with pytest.raises(InputError, match=f"line 1: the row has no `{field}`"):
        read(row)


@pytest.mark.parametrize("times", [[], [1, "2"], None, [float("nan")], [-1.0]])
def test_times_that_are_none_are_refused(read, times):
    row = answers()
    with pytest.raises(InputError, match="ttft_ms"):
        read(row, timing(row, 0, [1.0]) | {"ttft_ms": times})


def test_files_that_hold_nothing_are_refused(tmp_path, read):
    with pytest.raises(InputError, match="no such file"):
        read_results([tmp_path / "none.jsonl"])
    with pytest.raises(InputError, match="not read"):
        read_results([tmp_path])
    with pytest.raises(InputError, match="no row holds answers"):
        read(timing(answers(), 0, [1.0]))


def test_results_of_different_backbones_are_grouped_and_not_compared(read):
    results = read(answers(), answers(fingerprint="ff"), answers(half="test")).results
    groups = by_fingerprint(results)
    assert [len(group) for group in groups.values()] == [2, 1]
    for group in groups.values():
        require_one_fingerprint(group)
    with pytest.raises(InputError, match="cannot be compared"):
        require_one_fingerprint(results)


def test_a_configuration_is_the_same_in_whatever_order_its_options_come():
    one = Configuration("epic", 3, None, (("tokens", 8), ("layers", [1, 2])))
    row = answers("epic", k_nuggets=None, options={"layers": [1, 2], "tokens": 8})
    assert one == Configuration.of_row(row)
    assert len({one, Configuration.of_row(row)}) == 1
    assert one.label == "3, layers=1+2, tokens=8"


def test_a_label_names_what_differs_from_the_defaults():
    assert Configuration("coinrag", 3, 10).label == "3, 10"
    assert Configuration("standard_rag", 1, None).label == "1"
    special = Configuration("coinrag", 3, 10, (("ratio", 0.5),), "windows", "tuned")
    assert special.label == "3, 10, r=0.5, index=windows, adapter=tuned"
