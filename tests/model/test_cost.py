"""What a pass costs: measured on this machine, finite, and more for more work."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinkv.model import cost
from coinkv.model.cost import CostModel, calibrated
from coinkv.model.work import Work

figures = st.floats(0, 1, allow_subnormal=False)
works = st.builds(Work, st.integers(0, 10**9), st.integers(0, 10**12))


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2-sliding"])
def test_calibration_gives_finite_figures_none_below_zero(tiny_backbone, name):
    measured = calibrated(tiny_backbone(name))
    assert all(math.isfinite(each) and each >= 0 for each in astuple(measured))
    assert measured.seconds(Work(10**9, 10**12)) > measured.seconds(Work(3 * 8, 3 * 64)) > 0


def test_a_calibrated_model_is_left_as_it_was(tiny_backbone):
    backbone = tiny_backbone()
    before = {name: each.clone() for name, each in backbone.model.state_dict().items()}
    calibrated(backbone)
    assert all((each == before[name]).all() for name, each in backbone.model.state_dict().items())


def test_a_short_context_is_calibrated_within_it(tiny_backbone):
    for context in (9, 100, 200):
        measured = calibrated(replace(tiny_backbone(), context_length=context))
        assert all(math.isfinite(each) and each >= 0 for each in astuple(measured))


def test_times_that_follow_the_model_are_found_again(tiny_backbone, monkeypatch):
    true = CostModel(per_pass=2e-3, per_layer_token=5e-5, per_pair=3e-9)
    layers = tiny_backbone().shape.layers

    def seconds(backbone, live, held):
        return true.seconds(Work(layers * live, layers * live * (live + held)))

    monkeypatch.setattr(cost, "_seconds", seconds)
    assert astuple(calibrated(tiny_backbone())) == pytest.approx(astuple(true), rel=1e-6)


def test_noise_makes_no_figure_negative(tiny_backbone, monkeypatch):
    monkeypatch.setattr(cost, "_seconds", lambda backbone, live, held: 1.0 / (live + held))
    assert min(astuple(calibrated(tiny_backbone()))) == 0


@given(per_pass=figures, per_token=figures, per_pair=figures, less=works, more=works)
def test_more_work_is_never_predicted_to_be_faster(per_pass, per_token, per_pair, less, more):
    model = CostModel(per_pass, per_token, per_pair)
    both = Work(less.layer_tokens + more.layer_tokens, less.attended + more.attended)
    assert model.seconds(less) <= model.seconds(both)
    assert model.seconds(Work()) == per_pass
