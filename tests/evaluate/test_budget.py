"""Configurations are chosen on dev within a budget, and the test half has no say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coinkv.errors import InputError
from coinkv.evaluate.budget import Budget, choose
from sweep_rows import result

NO_LIMIT = Budget()


def standard_rag(p99, **more):
    return result(20.0, p99, method="standard_rag", **({"k": (1, None)} | more))


def chosen(results, budget, method="coinrag"):
    (choice,) = [choice for choice in choose(results, budget) if choice.method == method]
    return choice


runs = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["dev", "test"]),
        st.sampled_from(["standard_rag", "coinrag"]),
        st.integers(1, 4),
        st.integers(0, 100),
        st.integers(1, 300),
    ),
    min_size=1,
    max_size=30,
    unique_by=lambda run: run[:4],
).map(
    lambda found: [
        result(float(f1), float(p99), set=set_, half=half, method=method, k=(k, None))
        for set_, half, method, k, f1, p99 in found
    ]
)
limits = st.floats(0.1, 400)
budgets = st.one_of(
    limits.map(lambda ms: Budget(milliseconds=ms)),
    st.floats(0.1, 4).map(lambda multiple: Budget(multiple=multiple)),
    st.just(NO_LIMIT),
)


@given(runs, budgets)
def test_what_is_chosen_never_exceeds_the_budget_on_dev(results, budget):
    for choice in choose(results, budget):
        if choice.dev is not None:
            assert choice.dev.half == "dev"
            assert choice.dev.ttft.p99_ms <= choice.dev_limit_ms
        assert (choice.why_not is None) == (choice.test is not None)


@given(runs, limits, limits)
def test_a_larger_budget_never_lowers_f1_on_dev(results, one, other):
    small, large = sorted([one, other])
    pairs = zip(choose(results, Budget(small)), choose(results, Budget(large)), strict=True)
    for within_small, within_large in pairs:
        if within_small.dev is not None:
            assert within_large.dev.f1 >= within_small.dev.f1


@given(runs, budgets)
@settings(max_examples=50)
def test_the_choice_depends_on_the_dev_half_alone(results, budget):
    worse = [
        result(
            0.0,
            r.ttft.p99_ms + 1000,
            set=r.set,
            half=r.half,
            method=r.method,
            k=(r.configuration.k_chunks, None),
        )
        if r.half == "test"
        else r
        for r in results
    ]
    before = [choice.dev for choice in choose(results, budget)]
    assert [choice.dev for choice in choose(worse, budget)] == before


@pytest.mark.parametrize(
    ("typed", "budget", "text"),
    [
        ("100ms", Budget(milliseconds=100), "100ms"),
        (" 100 MS ", Budget(milliseconds=100), "100ms"),
        ("0.5s", Budget(milliseconds=500), "500ms"),
        ("1x", Budget(multiple=1), "1x"),
        (".6 x", Budget(multiple=0.6), "0.6x"),
        ("none", NO_LIMIT, "none"),
    ],
)
def test_a_budget_is_read_as_typed(typed, budget, text):
    assert Budget.parse(typed) == budget
    assert budget.text == text
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("typed", ["", "100", "x", "-1x", "0ms", "1e3ms", "ms", "nan x", "fast"])
def test_what_is_no_budget_is_refused(typed):
    with pytest.raises(InputError, match="is no budget"):
        Budget.parse(typed)


def test_the_best_f1_within_the_budget_is_chosen_on_dev_and_shown_on_test():
    results = [
        result(30.0, 90.0, k=(1, 3)),
        result(40.0, 100.0, k=(3, 10)),
        result(50.0, 101.0, k=(5, 10)),
        result(35.0, 95.0, k=(3, 10), half="test"),
        result(60.0, 80.0, k=(1, 3), half="test"),
    ]
    choice = chosen(results, Budget(milliseconds=100))
    assert (choice.dev.f1, choice.test.f1) == (40, 35)
    assert choice.kept_on_test is True
    assert choice.why_not is None


def test_of_equal_f1_the_faster_then_the_shorter_then_the_first_label_is_chosen():
    fast = result(40.0, 80.0, k=(5, 1), len_tokens=300.0)
    short = result(40.0, 80.0, k=(4, 1), len_tokens=200.0)
    first = result(40.0, 80.0, k=(3, 1), len_tokens=200.0)
    slow = result(40.0, 90.0, k=(1, 1), len_tokens=10.0)
    assert chosen([slow, fast], NO_LIMIT).dev is fast
    assert chosen([slow, fast, short], NO_LIMIT).dev is short
    assert chosen([slow, fast, short, first], NO_LIMIT).dev is first


def test_a_multiple_is_of_standard_rag_at_one_chunk_on_the_same_set_and_half():
    results = [
        standard_rag(100.0),
        standard_rag(300.0, k=(3, None)),
        standard_rag(500.0, set="b"),
        standard_rag(80.0, half="test"),
        result(30.0, 50.0, k=(1, 3)),
        result(40.0, 60.0, k=(3, 3)),
        result(30.0, 45.0, k=(1, 3), half="test"),
    ]
    choice = chosen([r for r in results if r.set == "a"], Budget(multiple=0.5))
    assert (choice.dev_limit_ms, choice.test_limit_ms) == (50, 40)
    assert choice.dev.configuration.k_chunks == 1
    assert choice.kept_on_test is False  # 45 ms measured, 40 allowed


def test_without_standard_rag_at_one_chunk_a_multiple_is_unknown_and_that_is_said():
    others = [standard_rag(100.0, k=(2, None)), standard_rag(9.0, options=(("x", 1),))]
    choice = chosen([*others, result(30.0, 50.0)], Budget(multiple=1))
    assert (choice.dev, choice.dev_limit_ms) == (None, None)
    assert "standard_rag was not run at k_c = 1" in choice.why_not


def test_nothing_within_the_budget_is_said_with_the_fastest():
    choice = chosen([result(30.0, 150.0), result(30.0, 250.0, k=(5, 5))], Budget(100))
    assert choice.dev is None
    assert choice.why_not == "nothing within 100 ms: the fastest P99 is 150 ms"


def test_a_choice_that_was_not_run_on_test_is_said():
    choice = chosen([result(30.0, 50.0), result(20.0, 50.0, k=(1, 1), half="test")], NO_LIMIT)
    assert choice.test is None
    assert choice.why_not == "its choice (3, 10) was not run on the test half"
    assert choice.kept_on_test is None


def test_a_method_not_run_on_dev_is_said():
    choice = chosen([result(30.0, 50.0, half="test")], NO_LIMIT)
    assert (choice.dev, choice.why_not) == (None, "not run on the dev half")
    assert math.isinf(choice.test_limit_ms)


def test_a_method_missing_on_one_set_has_a_choice_there_that_says_so():
    results = [result(30.0, 50.0), standard_rag(70.0), standard_rag(70.0, set="b")]
    missing = [c for c in choose(results, NO_LIMIT) if (c.set, c.method) == ("b", "coinrag")]
    assert [choice.why_not for choice in missing] == ["not run on the dev half"]


def test_results_of_two_backbones_are_not_compared():
    with pytest.raises(InputError, match="cannot be compared"):
        choose([result(1.0, 1.0), result(1.0, 1.0, fingerprint="g")], NO_LIMIT)
