"""The threshold of deviation repair: of the tokens a ratio allows, those that deviate enough."""

from __future__ import annotations

import pytest
import torch

from coinkv.repair.deviation import CRITERIA, DeviationRepair

EVIDENCE, BEHIND, HEADS, SIZE = 20, 3, 2, 8


def kv(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (HEADS, EVIDENCE + BEHIND, SIZE)
    return tuple(torch.randn(shape, generator=generator) for _ in range(2))


def deviating(fresh, **changed):
    """What stood in the cache: the fresh KV, some rows scaled by 1 - deviation."""
    cached = tuple(each.clone() for each in fresh)
    for row, deviation in enumerate(changed["rows"]):
        for each in cached:
            each[:, row] *= 1 - deviation
    return cached


def kept(threshold, rows, criterion="values", ratio=1.0, **options):
    fresh = kv()
    repair = DeviationRepair(
        torch.arange(EVIDENCE), ratio, criterion, 0, threshold=threshold, **options
    )
    rows = repair.keep(0, fresh, deviating(fresh, rows=rows))
    return None if rows is None else rows.tolist()


BEHIND_ROWS = list(range(EVIDENCE, EVIDENCE + BEHIND))
ROWS = [0.0, 0.1, 0.5, 0.2, *[0.0] * 16]


@pytest.mark.parametrize("criterion", ["values", "keys"])
def test_only_tokens_that_deviate_by_more_than_the_threshold_go_on(criterion):
    for threshold, expected in ((0.0, [1, 2, 3]), (0.15, [2, 3]), (0.4, [2]), (0.6, [])):
        assert kept(threshold, ROWS, criterion) == [*expected, *BEHIND_ROWS]


@pytest.mark.parametrize("criterion", ["values", "keys"])
def test_the_threshold_is_relative_to_what_was_computed(criterion):
    fresh = tuple(1000 * each for each in kv())
    for scale in (1e-3, 1.0, 1e3):
        scaled = tuple(scale * each for each in fresh)
        repair = DeviationRepair(torch.arange(EVIDENCE), 1.0, criterion, 0, threshold=0.15)
        rows = repair.keep(0, scaled, deviating(scaled, rows=ROWS))
        assert rows.tolist() == [2, 3, *BEHIND_ROWS]


def test_the_threshold_of_key_cosine_is_a_cosine_distance():
    fresh = kv()
    cached = fresh[0].clone(), fresh[1]
    cached[0][:, 4] *= -1  # turned round: a distance of 2
    cached[0][:, 5] *= 3  # longer only: a distance of 0
    for threshold, expected in ((0.5, [4]), (1.9, [4]), (2.1, [])):
        repair = DeviationRepair(torch.arange(EVIDENCE), 1.0, "key_cosine", 0, threshold=threshold)
        assert repair.keep(0, fresh, cached).tolist() == [*expected, *BEHIND_ROWS]


def test_the_ratio_still_bounds_how_many_go_on():
    rows = [0.9, 0.6, 0.1, 0.1, 0.1, *[0.0] * 15]
    assert kept(0.05, rows, ratio=0.1) == [0, 1, *BEHIND_ROWS]
    assert kept(0.75, rows, ratio=0.1) == [0, *BEHIND_ROWS]
    assert kept(None, rows, ratio=0.1) == [0, 1, *BEHIND_ROWS]


def test_without_a_threshold_all_go_on_at_a_ratio_of_1():
    assert kept(None, ROWS) is None


def test_a_token_whose_kv_is_nothing_divides_by_nothing():
    fresh = tuple(torch.zeros_like(each) for each in kv())
    repair = DeviationRepair(torch.arange(EVIDENCE), 1.0, "values", 0, threshold=0.0)
    assert repair.keep(0, fresh, fresh).tolist() == BEHIND_ROWS


def test_gradual_filtering_filters_again_what_is_left():
    fresh = kv()
    repair = DeviationRepair(torch.arange(EVIDENCE), 0.2, "values", 0, True, threshold=0.05)
    first = repair.keep(0, fresh, deviating(fresh, rows=[0.5, 0.4, 0.3, 0.2, 0.1, 0.08, 0.01]))
    assert first.tolist() == [0, 1, 2, 3, 4, 5, *BEHIND_ROWS]  # 1.5 times the ratio
    left = tuple(each[:, first] for each in fresh)
    again = repair.keep(1, left, deviating(left, rows=[0.0, 0.9, 0.0, 0.2, 0.3, 0.01]))
    assert again.tolist() == [1, 3, 4, 6, 7, 8]


@pytest.mark.parametrize("criterion", ["first", "random"])
def test_controls_that_measure_nothing_have_no_threshold(criterion):
    assert criterion in CRITERIA
    chosen = kept(0.5, [0.0] * EVIDENCE, criterion, ratio=0.25)
    assert len(chosen) == 5 + BEHIND
    assert chosen == kept(None, [0.0] * EVIDENCE, criterion, ratio=0.25)


def test_before_the_check_layer_all_go_on():
    repair = DeviationRepair(torch.arange(EVIDENCE), 0.1, "values", 1, threshold=0.5)
    fresh = kv()
    assert repair.keep(0, fresh, fresh) is None
    assert repair.keep(1, fresh, fresh).tolist() == BEHIND_ROWS
    assert repair.keep(2, fresh, fresh) is None
