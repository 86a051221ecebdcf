"""The summary: shares that add up, ratios of like with like, nothing where nothing was measured."""

from __future__ import annotations

import pytest

from coinkv.evaluate.boost.summary import ratio, summary
from coinkv.evaluate.boost.turns import names_an_answer


def row(system, number, ttft_ms, tokens=(7, 8), sitting="s", layout="document_first", **more):
    prompt = more.pop("prompt_tokens", 100)
    exact, moved, repaired = more.pop("split", (0, 0, 0))
    return {
        "layout": layout,
        "sitting": sitting,
        "system": system,
        "id": f"{sitting}#{number}",
        "number": number,
        "prompt_tokens": prompt,
        "ttft_ms": ttft_ms,
        "total_ms": 2 * ttft_ms,
        "token_ids": list(tokens),
        "text": "so",
        "f1": 50.0,
        "accurate": number % 2 == 0,
        "reuse": {
            "exact": exact,
            "moved": moved,
            "repaired": repaired,
            "computed": prompt - exact - moved - repaired,
        },
        "repair": "selective" if moved else None,
        "peak_bytes": 100 + number,
        "loaded_bytes": 60,
        "versions": {},
        **more,
    }


def summed(rows, systems=("full", "coinkv_auto", "kvboost"), **more):
    every = {"skipped": {}, "failed": {}, **more}
    return summary(rows, ["document_first"], systems, **every)


ROWS = [
    row("full", 0, 100.0),
    row("full", 1, 100.0),
    row("full", 2, 300.0),
    row("coinkv_auto", 0, 110.0),
    row("coinkv_auto", 1, 50.0, (9, 8), split=(10, 60, 10)),
    row("coinkv_auto", 2, 30.0, (7, 9), split=(90, 0, 0)),
]


@pytest.fixture
def facts():
    return summed(ROWS)


def test_first_and_later_prompts_are_timed_apart(facts):
    auto = facts["layouts"]["document_first"]["systems"]["coinkv_auto"]
    assert auto["ttft_first_ms"] == {"mean": 110.0, "p50": 110.0, "p99": 110.0}
    assert auto["ttft_later_ms"] == pytest.approx({"mean": 40.0, "p50": 40.0, "p99": 49.8})
    assert auto["total_later_ms"]["mean"] == pytest.approx(80.0)


def test_reuse_is_shares_of_the_later_prompts_that_add_up(facts):
    auto = facts["layouts"]["document_first"]["systems"]["coinkv_auto"]
    assert auto["reuse"] == {"exact": 0.5, "moved": 0.3, "repaired": 0.05, "computed": 0.15}
    full = facts["layouts"]["document_first"]["systems"]["full"]
    assert full["reuse"] == {"exact": 0, "moved": 0, "repaired": 0, "computed": 1}
    assert auto["repairs"] == {"selective": 1}


def test_agreement_is_with_full_recomputation(facts):
    auto = facts["layouts"]["document_first"]["systems"]["coinkv_auto"]
    assert auto["top1_agreement"] == pytest.approx(2 / 3)
    assert auto["top1_agreement_later"] == 0.5
    assert auto["answer_agreement"] == pytest.approx(1 / 3)
    alone = summed([r for r in ROWS if r["system"] != "full"])
    assert alone["layouts"]["document_first"]["systems"]["coinkv_auto"]["top1_agreement"] is None


def test_two_answers_without_a_token_agree():
    facts = summed([row("full", 0, 1.0, ()), row("coinkv_auto", 0, 1.0, ())])
    assert facts["layouts"]["document_first"]["systems"]["coinkv_auto"]["top1_agreement"] == 1


def test_scores_and_memory_are_those_of_all_prompts(facts):
    auto = facts["layouts"]["document_first"]["systems"]["coinkv_auto"]
    assert (auto["f1"], auto["questions"]) == (50.0, 3)
    assert auto["accuracy"] == pytest.approx(200 / 3)
    assert (auto["peak_bytes"], auto["loaded_bytes"], auto["added_bytes"]) == (102, 60, 42)


def test_ratios_are_of_means_and_medians_of_the_same_prompts(facts):
    ratios = facts["ratios"]["document_first"]
    assert ratios["full_over_auto"] == pytest.approx(400 / 80)
    assert ratios["full_over_auto_median"] == pytest.approx((2 + 10) / 2)
    assert ratios["cold_auto_over_full"] == pytest.approx(1.1)
    assert ratios["kvboost_over_auto"] is None
    assert ratios["vllm_over_auto_median"] is None


def test_a_ratio_leaves_out_prompts_that_one_of_them_did_not_answer():
    above = [row("a", 1, 10.0), row("a", 2, 1000.0), row("a", 1, 30.0, sitting="t")]
    below = [row("b", 1, 5.0), row("b", 1, 5.0, sitting="t"), row("b", 3, 1.0)]
    assert ratio(above, below) == (4.0, 4.0)
    assert ratio(above, []) == (None, None)


def test_buckets_are_by_prompt_length_and_hold_every_prompt():
    lengths = [999, 1000, 1999, 2000, 3999, 4000]
    rows = [row("full", n, 10.0 * n + 10, prompt_tokens=t) for n, t in enumerate(lengths)]
    buckets = summed(rows)["layouts"]["document_first"]["systems"]["full"]["buckets"]
    assert {name: bucket["questions"] for name, bucket in buckets.items()} == {
        "<1K": 1,
        "1-2K": 2,
        "2-4K": 2,
        "4K+": 1,
    }
    assert buckets["<1K"]["ttft_later_ms"] is None
    assert buckets["4K+"]["ttft_later_ms"]["mean"] == pytest.approx(60.0)
    only = summed(rows[:1])["layouts"]["document_first"]["systems"]["full"]["buckets"]
    assert list(only) == ["<1K"]


def test_a_system_that_was_not_measured_says_why_and_nothing_else():
    facts = summed(
        ROWS,
        skipped={"kvboost": "no environment"},
        failed={"document_first": {"coinkv_auto": "it fell"}},
    )
    systems = facts["layouts"]["document_first"]["systems"]
    assert systems["kvboost"] == {"skipped": "no environment"}
    assert systems["coinkv_auto"]["failed"] == "it fell"  # what it answered before counts
    assert systems["coinkv_auto"]["questions"] == 3


def test_an_answer_is_named_as_a_word_and_not_as_a_part_of_one():
    assert names_an_answer("It is in `autorange`, I think.", ["autorange"])
    assert names_an_answer("Timer.__init__()", ["__init__", "Timer.__init__"])
    assert not names_an_answer("It is my__init__.", ["__init__"])
    assert not names_an_answer("mainly", ["main"])
    assert not names_an_answer("Main", ["main"])
    assert names_an_answer("C++ of course", ["C++"])
