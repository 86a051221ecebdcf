"""Strategies: which moved tokens each one computes again, and what their options may be."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coinkv.errors import InputError
from coinkv.repair.auto import Auto
from coinkv.repair.base import Moved, Repair, ranges
from coinkv.repair.cacheblend import CacheBlend
from coinkv.repair.epic import Epic
from coinkv.repair.nothing import Nothing
from coinkv.repair.selective import Selective
from coinkv.repair.strategies import STRATEGIES, strategy_named


@st.composite
def moved_parts(draw):
    """Disjoint parts in order, each with chunk beginnings inside."""
    edges = sorted(draw(st.sets(st.integers(0, 300), min_size=2, max_size=8)))
    parts = []
    for start, end in zip(edges[::2], edges[1::2], strict=False):
        inside = st.integers(start + 1, end - 1)
        chunks = draw(st.sets(inside, max_size=4)) if end - start > 1 else set()
        parts.append(Moved(start, end, tuple(sorted(chunks))))
    return parts


TWO = (Moved(10, 60, (30,)), Moved(80, 90))


def positions(strategy, moved=TWO):
    return strategy.repair(moved, 20, 300).positions.tolist()


def test_selective_takes_a_window_behind_each_seam_and_none_inside_a_part():
    """REFERENCE 1.4, row 1: the window stood before the seam."""
    assert positions(Selective(4)) == [10, 11, 12, 13, 80, 81, 82, 83]
    assert positions(Selective(20)) == [*range(10, 30), *range(80, 90)]
    assert positions(Selective(0)) == []


def test_epic_takes_the_head_of_every_chunk_of_every_part():
    assert positions(Epic(3)) == [10, 11, 12, 30, 31, 32, 80, 81, 82]
    assert positions(Epic(25)) == [*range(10, 55), *range(80, 90)]
    assert positions(Epic(0)) == []


def test_no_repair_takes_nothing():
    assert positions(Nothing()) == []


def test_cacheblend_probes_all_moved_tokens_and_carries_its_options():
    repair = CacheBlend(0.25, 0.5, "keys", 2, gradual=True).repair(TWO, 20, 300)
    assert repair.positions.tolist() == [*range(10, 60), *range(80, 90)]
    narrowing = repair.narrowing
    assert narrowing.offsets.tolist() == [*range(50), *range(10)]
    assert (narrowing.ratio, narrowing.threshold, narrowing.criterion) == (0.25, 0.5, "keys")
    assert (narrowing.check_layer, narrowing.gradual) == (2, True)


def test_cacheblend_needs_no_probe_for_nothing_and_for_everything():
    assert CacheBlend(0).repair(TWO, 20, 300).narrowing is None
    assert positions(CacheBlend(0)) == []
    everything = CacheBlend(1).repair(TWO, 20, 300)
    assert everything.narrowing is None
    assert len(everything) == 60
    assert CacheBlend(1, threshold=0.1).repair(TWO, 20, 300).narrowing is not None


@given(parts=moved_parts(), tokens=st.integers(0, 400))
def test_what_is_repaired_was_moved_once_each_and_in_order(parts, tokens):
    moved = {at for part in parts for at in range(part.start, part.end)}
    for strategy in (Selective(tokens), Epic(tokens), Nothing(), CacheBlend(0.3), CacheBlend(1)):
        chosen = positions(strategy, parts)
        assert chosen == sorted(set(chosen))
        assert set(chosen) <= moved
        assert strategy.choice(parts, 5, 300) is strategy
    for strategy in (Selective(400), Epic(400), CacheBlend(1)):
        assert set(positions(strategy, parts)) == moved


@given(parts=moved_parts(), tokens=st.integers(0, 40))
def test_epic_takes_all_that_selective_takes(parts, tokens):
    assert set(positions(Selective(tokens), parts)) <= set(positions(Epic(tokens), parts))


def test_ranges_are_the_positions_in_them():
    assert ranges([(2, 4), (9, 9), (7, 8)]).tolist() == [2, 3, 7]
    assert ranges([]).dtype == torch.int64
    assert len(ranges([])) == len(Repair()) == 0


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_found_by_its_name(tiny_backbone, name):
    strategy = strategy_named(name, tiny_backbone())
    assert strategy.name == name
    if name == "auto":
        assert strategy.layers == tiny_backbone().shape.layers


def test_a_strategy_of_no_name_is_refused(tiny_backbone):
    with pytest.raises(InputError, match="use one of auto, selective, cacheblend, epic, none"):
        strategy_named("best", tiny_backbone())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Selective(-1), "window is -1"),
        (lambda: Epic(-1), "tokens is -1"),
        (lambda: CacheBlend(1.5), "ratio is 1.5"),
        (lambda: CacheBlend(-0.1), "ratio is -0.1"),
        (lambda: CacheBlend(float("nan")), "ratio is nan"),
        (lambda: CacheBlend(threshold=-1), "threshold is -1"),
        (lambda: CacheBlend(threshold=float("nan")), "threshold is nan"),
        (lambda: CacheBlend(criterion="best"), "no criterion is called 'best'"),
        (lambda: CacheBlend(check_layer=-1), "check_layer is -1"),
        (lambda: Auto(None, 3, allowance_seconds=-1), "allowance_seconds is -1"),
        (lambda: Auto(None, 3, allowance_seconds=float("nan")), "allowance_seconds is nan"),
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
