"""Tables and notes of a report: who competes, who is compared with whom, what is missing."""

from __future__ import annotations

import re

import pytest

from coinkv.evaluate.budget import Budget
from coinkv.evaluate.report.ablation import ablations
from coinkv.evaluate.report.notes import notes
from coinkv.evaluate.report.style import in_order
from coinkv.evaluate.report.table import Cell, Table, ranked, to_markdown
from coinkv.evaluate.report.tables import ablation_table, all_measures, table_3
from sweep_rows import answers, on_both, part_of, timing

NO_LIMIT = Budget()


def columns_of(table, heading):
    return [
        [row[place].text for row in table.rows]
        for place, column in enumerate(table.columns)
        if column == heading
    ]


def test_table_3_has_a_row_a_method_and_averages_over_the_sets():
    rows = [*on_both(set="a", p99=100.0), *on_both(set="b", p99=300.0)]
    rows += [*on_both("standard_rag", set="a", k_nuggets=None)]
    only = part_of(*rows)
    table = table_3(only.blocks[0])
    assert [row[0].text for row in table.rows] == ["standard_rag", "coinrag"]
    assert [heading for heading, _ in table.groups] == ["", "a", "b", "Average"]
    assert sum(width for _, width in table.groups) == len(table.columns)
    *by_set, average = columns_of(table, "P99")
    assert by_set == [["200", "100"], ["–", "300"]]
    assert average == ["–", "200"]  # standard_rag was not run on b
    tests = {r.set: r.f1 for r in only.results if r.half == "test" and r.method == "coinrag"}
    assert columns_of(table, "F1")[-1] == ["–", f"{sum(tests.values()) / 2:.1f}"]


def test_one_set_needs_no_average():
    table = table_3(part_of(*on_both()).blocks[0])
    assert [heading for heading, _ in table.groups] == ["", "hotpotqa"]
    assert len(table.rows[0]) == len(table.columns) == 6


def test_a_choice_over_the_budget_on_test_is_marked_and_explained():
    budget = Budget(milliseconds=100)
    only = part_of(answers(p99=90.0), answers(half="test", p99=110.0), budgets=[budget])
    table = table_3(only.blocks[0])
    assert columns_of(table, "P99") == [["110†"]]
    assert "† over the budget" in table.note
    assert any("its P99 on the test half is 110 ms, the budget there 100" in n for n in notes(only))


def test_a_choice_without_test_row_shows_its_configuration_and_no_dev_numbers():
    table = table_3(part_of(answers(f1=77.0)).blocks[0])
    assert [cell.text for cell in table.rows[0]] == ["coinrag", "3, 10", "–", "–", "–", "–"]


def test_best_and_second_are_marked_as_shown():
    assert ranked([31.04, 30.0, 31.01, None, 12.0]) == [
        Cell("31.0", "best"),
        Cell("30.0", "second"),
        Cell("31.0", "best"),
        Cell("–"),
        Cell("12.0"),
    ]
    assert ranked([5.0, None, 5.0]) == [Cell("5.0"), Cell("–"), Cell("5.0")]  # nothing to tell


def test_a_table_in_markdown():
    rows = ((Cell("a_b"), Cell("1", "best")), (Cell("c|d"), Cell("2", "second")))
    table = Table("t", (("", 1), ("set", 1)), ("Method", "F1"), rows)
    assert to_markdown(table) == (
        "| Method | set F1 |\n|---|--:|\n| a\\_b | **1** |\n| c\\|d | <u>2</u> |\n"
    )
    assert table.starts == (1,)


def test_all_measures_are_in_the_wide_table():
    row = answers(decode_tokens_per_second=12.5, kv_bytes=9.2e6, flops=1.5e9, layer_tokens=4000)
    only = part_of(row, timing(row, 0, [10.0] * 1500), answers(half="test"))
    table = all_measures("all", only.results)
    assert sum(width for _, width in table.groups) == len(table.columns)
    cells = dict(zip(table.columns, (cell.text for cell in table.rows[0]), strict=True))
    assert cells["KV MB"] == "9.2"
    assert cells["GFLOP"] == "1.5"
    assert cells["k layer-tokens"] == "4.0"
    assert cells["tokens/s decoded"] == "12.5"
    assert (cells["evidence recall %"], cells["answer recall %"]) == ("60", "–")
    assert (cells["mean"], cells["P99"], cells["timed"]) == ("10", "10", "1,500")
    assert cells["prefill"] == "7.4"
    assert columns_of(table, "timed") == [["1,500", "40*"]]


def test_methods_stand_in_one_order_and_unknown_ones_last():
    names = ["zeta", "coinrag", "alpha", "standard_rag"]
    assert in_order(names) == ["standard_rag", "coinrag", "alpha", "zeta"]


def test_variants_of_coinrag_do_not_compete_and_others_do():
    plain = on_both(dev=30.0)
    better = [
        row
        for options in ({"order": "rank"}, {"stages": 1}, {"title": "none"})
        for row in on_both(dev=90.0, options=options)
    ]
    windows = on_both(dev=90.0, index="windows")
    cag = on_both("standard_cag", k_nuggets=None, dev=40.0, options={"encode_after": "nothing"})
    block = part_of(*plain, *better, *windows, *cag).blocks[0]
    assert block.choice("hotpotqa", "coinrag").dev.configuration.label == "3, 10"
    shown = on_both(dev=91.0, options={"title": "shown"})
    block = part_of(*plain, *shown, *better, *cag).blocks[0]
    assert block.choice("hotpotqa", "coinrag").dev.configuration.label == "3, 10, title=shown"
    assert block.choice("hotpotqa", "standard_cag").dev.configuration.options


def test_a_variant_stands_beside_the_same_configuration_without_the_change():
    rows = []
    for set_ in ("a", "b"):
        plain = answers(set=set_, f1=50.0, k_nuggets=10)
        changed = plain | {
            "options": {"encoding": "isolated"},
            "f1": plain["f1"] - 4,
            "per_question": [q | {"f1": q["f1"] - 4} for q in plain["per_question"] if q["f1"] > 4],
        }
        rows += [plain, changed, answers(set=set_, k_nuggets=3, f1=90.0)]
    (on_a, on_b, together), alone = ablations(part_of(*rows).results)
    assert alone == ()
    assert (on_a.change, on_a.label) == ("encoding=isolated", "3, 10")
    assert on_a.difference.mean == on_b.difference.mean == pytest.approx(-4)
    assert together.difference.questions == on_a.difference.questions + on_b.difference.questions
    table = ablation_table((on_a, on_b, together))
    assert columns_of(table, "Set") == [["a", "b", "all 2"]]
    assert columns_of(table, "difference") == [["-4.0"] * 3]
    assert columns_of(table, "p") == [["< 0.001"] * 3]


def test_a_variant_is_paired_on_the_test_half_where_both_were_run_there():
    rows = [*on_both(), *on_both(options={"align": False})]
    ((found,), _) = ablations(part_of(*rows).results)
    assert {result.half for pair in found.pairs for result in pair} == {"test"}


def test_an_adapter_is_a_change_that_competes():
    tuned = [row | {"adapter": "tuned"} for row in on_both(dev=60.0)]
    only = part_of(*on_both(), *tuned)
    assert only.blocks[0].choice("hotpotqa", "coinrag").dev.configuration.adapter == "tuned"
    assert [ablation.change for ablation in only.ablations] == ["adapter=tuned"]


def test_a_tuned_variant_is_compared_with_the_tuned_configuration():
    rows = [row | {"adapter": "tuned"} for row in (answers(), answers(options={"stages": 1}))]
    ((found,), _) = ablations(part_of(*rows).results)
    assert found.change == "stages=1"
    assert found.pairs[0][0].configuration.adapter == "tuned"


def test_a_variant_without_its_plain_configuration_is_said():
    only = part_of(answers(), answers(k_nuggets=4, options={"align": False}))
    assert only.ablations == ()
    assert any("3, 4, align=False" in note and "ablation" in note for note in notes(only))


def test_a_whole_sweep_within_budget_leaves_nothing_to_say():
    rows = [*on_both("standard_rag", k_chunks=1, k_nuggets=None), *on_both(p99=150.0)]
    rows += [timing(row, 0, [row["ttft_ms"]["mean"]] * 1000) for row in list(rows)]
    assert notes(part_of(*rows, budgets=[Budget(multiple=1), NO_LIMIT])) == ()


@pytest.mark.parametrize(
    ("rows", "budget", "said"),
    [
        ([answers()], NO_LIMIT, "coinrag on hotpotqa: its choice .* was not run on the test half"),
        ([answers(p99=150.0)], Budget(100), "nothing within 100 ms: the fastest P99 is 150 ms"),
        ([answers()], Budget(multiple=1), "standard_rag was not run at k_c = 1 on the dev half"),
        ([answers(half="all")], NO_LIMIT, "not run on the dev half"),
        (on_both(), NO_LIMIT, "2 of 2 results have no timing run"),
        (on_both(), NO_LIMIT, "fewer than 1,000 timed queries"),
        (
            [answers(ids=["1", "2"]), answers(k_nuggets=3, ids=["1", "3", "4"])],
            NO_LIMIT,
            r"not all configurations answered the same questions \(2 to 3 of them\)",
        ),
    ],
)
def test_what_is_missing_is_said(rows, budget, said):
    assert any(re.search(said, note) for note in notes(part_of(*rows, budgets=[budget])))


def test_what_a_method_says_of_itself_is_said_once():
    rows = [row | {"note": "not trained"} for row in on_both("kvlink", k_nuggets=None)]
    assert notes(part_of(*rows)).count("kvlink: not trained.") == 1


def test_an_unknown_budget_on_the_test_half_is_said():
    only = part_of(
        answers("standard_rag", k_chunks=1, k_nuggets=None),
        *on_both(p99=100.0),
        budgets=[Budget(multiple=1)],
    )
    assert any("within the budget on the test half is unknown" in note for note in notes(only))


def test_comparisons_pair_the_questions_that_both_answered_on_test():
    first = answers("coinrag", half="test", ids=["1", "2", "3"])
    second = answers("standard_rag", half="test", ids=["2", "3", "4"], k_nuggets=None)
    dev = [answers("coinrag"), answers("standard_rag", k_nuggets=None)]
    (found,) = part_of(first, second, *dev).blocks[0].comparisons
    assert (found.first, found.second, found.sets) == ("coinrag", "standard_rag", 1)
    values = [{q["id"]: q["f1"] for q in row["per_question"]} for row in (first, second)]
    expected = sum(values[0][id_] - values[1][id_] for id_ in ("2", "3")) / 2
    assert found.difference.mean == pytest.approx(expected)
    assert found.difference.questions == 2


def test_what_is_built_on_coinrag_is_compared_the_other_way_round():
    rows = [*on_both(), *on_both("coinrag_cacheblend"), *on_both("epic", k_nuggets=None)]
    found = [(c.first, c.second) for c in part_of(*rows).blocks[0].comparisons]
    assert found == [("coinrag", "epic"), ("coinrag_cacheblend", "coinrag")]
