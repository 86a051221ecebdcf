"""Auto: the probe where it is cheap, the window where it is not, full repair where nothing is won.

The costs are made up, so that what is predicted is known.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinkv.model.cost import CostModel
from coinkv.model.work import Work
from coinkv.repair.auto import Auto
from coinkv.repair.base import Moved
from coinkv.repair.cacheblend import CacheBlend
from coinkv.repair.selective import Selective

# a 30-layer model on two cores: about 2 ms a token, attention felt from some thousand tokens on
SLOW = CostModel(per_pass=5e-3, per_layer_token=7e-5, per_pair=6e-9)
costs = st.builds(
    CostModel,
    per_pass=st.floats(0, 0.1),
    per_layer_token=st.floats(0, 1e-3),
    per_pair=st.floats(0, 1e-6),
)


@st.composite
def prompts(draw):
    """Moved parts, tokens computed anyway, and the whole context."""
    parts, at = [], draw(st.integers(0, 200))
    for _ in range(draw(st.integers(1, 5))):
        length = draw(st.integers(1, 3000))
        parts.append(Moved(at, at + length))
        at += length + draw(st.integers(0, 100))
    others = draw(st.integers(1, 500))
    return parts, others, at + others


def moved(*lengths):
    parts, at = [], 0
    for length in lengths:
        parts.append(Moved(at, at + length))
        at += length
    return parts


def choice(auto, parts, others=30):
    return auto.choice(parts, others, sum(map(len, parts)) + others)


def seconds(auto, strategy, parts, others, context):
    """What a strategy is predicted to take, as its work is counted while it runs."""
    count = sum(map(len, parts))
    if isinstance(strategy, Selective):
        live = (others + len(strategy.repair(parts, others, context))) * auto.layers
    elif strategy == CacheBlend(ratio=1):
        live = (others + count) * auto.layers
    else:
        early = min(auto.layers, strategy.check_layer + 1)
        live = others * auto.layers + count * (early + (auto.layers - early) * strategy.ratio)
    return auto.cost.seconds(Work(int(live), int(live * context)))


def test_short_contexts_take_the_probe_and_long_ones_the_window():
    auto = Auto(SLOW, layers=30)
    names = [choice(auto, moved(length)).name for length in (128, 256, 2048, 8192, 20_000)]
    assert names[0] == "cacheblend"
    assert names[-1] == "selective"
    assert names == sorted(names)  # once the window, it stays the window


def test_where_everything_is_in_the_window_everything_is_computed():
    assert choice(Auto(SLOW, layers=30), moved(20, 32)) == CacheBlend(ratio=1)


def test_where_the_probe_is_the_whole_model_everything_is_computed():
    assert choice(Auto(SLOW, layers=2), moved(512)) == CacheBlend(ratio=1)


def test_a_machine_on_which_passes_cost_the_same_whatever_they_compute_takes_full_repair():
    auto = Auto(CostModel(0.01, 0.0, 0.0), layers=30)
    assert choice(auto, moved(512, 512)) == CacheBlend(ratio=1)


def test_without_allowance_the_probe_is_taken_only_where_it_is_no_slower_than_the_window():
    auto = Auto(SLOW, layers=30, allowance_seconds=0.0)
    assert choice(auto, moved(512)).name == "selective"
    wide = replace(auto, window=Selective(window=400))
    assert choice(wide, moved(512)).name == "cacheblend"


@given(prompt=prompts(), cost=costs, layers=st.integers(1, 40), allowance=st.floats(0, 1))
def test_the_probe_never_costs_more_than_it_saves(prompt, cost, layers, allowance):
    parts, others, context = prompt
    auto = Auto(cost, layers, allowance_seconds=allowance)
    chosen = auto.choice(parts, others, context)
    if chosen != auto.probe:
        return
    probed = seconds(auto, chosen, parts, others, context)
    everything = seconds(auto, CacheBlend(ratio=1), parts, others, context)
    windowed = seconds(auto, auto.window, parts, others, context)
    nothing = cost.seconds(Work(others * layers, others * layers * context))
    assert probed < everything
    assert probed - nothing <= 0.5 * (everything - nothing)
    assert probed - windowed <= allowance


@given(prompt=prompts(), cost=costs, layers=st.integers(1, 40))
def test_more_allowance_never_turns_the_probe_into_the_window(prompt, cost, layers):
    allowances = (0.0, 0.001, 0.01, 0.1, 1.0, 100.0)
    chosen = [Auto(cost, layers, allowance).choice(*prompt).name for allowance in allowances]
    assert chosen == sorted(chosen, key=["selective", "cacheblend"].index)


@given(prompt=prompts(), cost=costs)
def test_the_repair_is_that_of_the_choice(prompt, cost):
    auto = Auto(cost, 30)
    chosen = auto.choice(*prompt)
    assert chosen.name in ("selective", "cacheblend")
    repair, expected = auto.repair(*prompt), chosen.repair(*prompt)
    assert repair.positions.tolist() == expected.positions.tolist()
    assert (repair.narrowing is None) == (expected.narrowing is None)


@pytest.mark.parametrize("allowance", [0.0, 0.1])
def test_the_strategies_it_chooses_among_are_options(allowance):
    auto = Auto(
        SLOW,
        30,
        allowance_seconds=allowance,
        window=Selective(window=7),
        probe=CacheBlend(ratio=0.3, criterion="keys"),
    )
    chosen = choice(auto, moved(512))
    assert chosen in (auto.window, auto.probe)
