"""The paired bootstrap finds what is there, and nothing where nothing is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coinkv.errors import InputError
from coinkv.evaluate import significance
from coinkv.evaluate.significance import paired_bootstrap

scores = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=12).map(
    lambda pairs: (
        {("set", str(n)): float(first) for n, (first, _) in enumerate(pairs)},
        {("set", str(n)): float(second) for n, (_, second) in enumerate(pairs)},
    )
)


def normal(mean, count, seed=0):
    values = np.random.default_rng(seed).normal(mean, 10, count)
    return {("set", str(n)): float(value) for n, value in enumerate(values)}


@given(scores)
@settings(max_examples=30, deadline=None)
def test_the_mean_lies_in_the_interval_and_turning_the_two_round_mirrors_it(pair):
    first, second = pair
    there = paired_bootstrap(first, second, resamples=500)
    back = paired_bootstrap(second, first, resamples=500)
    assert there.low - 1e-9 <= there.mean <= there.high + 1e-9
    assert back.mean == pytest.approx(-there.mean)
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low))
    assert back.p == there.p
    assert 0 < there.p <= 1


def test_the_interval_is_as_wide_as_theory_says():
    first, second = normal(3, 400), dict.fromkeys(normal(3, 400), 0.0)
    found = paired_bootstrap(first, second)
    values = np.array(list(first.values()))
    assert found.mean == pytest.approx(values.mean())
    expected = 2 * 1.96 * values.std() / 20
    assert found.high - found.low == pytest.approx(expected, rel=0.05)


def test_p_is_that_of_the_normal_distribution():
    values = np.array(list(normal(0, 200).values()))
    values += 1.96 * values.std() / np.sqrt(200) - values.mean()  # two-sided p of 0.05
    first = {("set", str(n)): float(value) for n, value in enumerate(values)}
    assert paired_bootstrap(first, dict.fromkeys(first, 0.0)).p == pytest.approx(0.05, abs=0.01)


def test_a_constant_gain_is_certain_and_no_difference_is_none():
    second = normal(30, 50)
    first = {question: value + 2 for question, value in second.items()}
    sure = paired_bootstrap(first, second)
    assert (sure.mean, sure.low, sure.high) == pytest.approx((2, 2, 2))
    assert sure.p == pytest.approx(2 / 10_001)
    same = paired_bootstrap(second, second)
    assert (same.mean, same.low, same.high, same.p) == (0, 0, 0, 1)


def test_pairing_removes_what_questions_have_in_common():
    hard = {("set", str(n)): 100.0 * (n % 2) for n in range(100)}
    gain = normal(3, 100)  # spread by 10, the scores themselves by 50
    first = {question: value + gain[question] for question, value in hard.items()}
    paired = paired_bootstrap(first, hard)
    assert paired.low > 0
    assert paired.low == pytest.approx(paired_bootstrap(gain, dict.fromkeys(gain, 0.0)).low)


def test_questions_of_the_same_id_in_different_sets_are_different_questions():
    first = {("a", "1"): 10.0, ("b", "1"): 0.0}
    second = {("a", "1"): 0.0, ("b", "1"): 10.0}
    assert paired_bootstrap(first, second).mean == 0


def test_questions_that_only_one_has_are_left_out():
    found = paired_bootstrap({("s", "1"): 5.0, ("s", "2"): 90.0}, {("s", "1"): 3.0})
    assert (found.questions, found.mean) == (1, 2)


def test_the_same_seed_gives_the_same_in_any_blocks(monkeypatch):
    first, second = normal(1, 37, seed=1), normal(0, 37, seed=2)
    whole = paired_bootstrap(first, second, resamples=1000)
    assert paired_bootstrap(first, second, resamples=1000) == whole
    assert paired_bootstrap(first, second, resamples=1000, seed=1) != whole
    monkeypatch.setattr(significance, "_BLOCK", 37 * 64)
    assert paired_bootstrap(first, second, resamples=1000) == whole


def test_nothing_to_pair_is_refused():
    with pytest.raises(InputError, match="no question in common"):
        paired_bootstrap({("s", "1"): 5.0}, {("t", "1"): 3.0})
    with pytest.raises(InputError, match="resamples is 0"):
        paired_bootstrap({("s", "1"): 5.0}, {("s", "1"): 3.0}, resamples=0)
