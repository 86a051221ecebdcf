"""Figures of a report: frontiers rise, show one half, and are drawn the same each time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinkv.evaluate.budget import Budget
from coinkv.evaluate.report.charts import charts_of
from coinkv.evaluate.report.figures import drawn
from coinkv.evaluate.report.frontier import frontier, half_to_show
from sweep_rows import answers, on_both, part_of, result

costs = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=1, max_size=20)


@given(costs)
def test_a_frontier_rises_and_reaches_the_best_of_every_budget(points):
    rows = [result(float(f1), float(p99), k=(n, None)) for n, (p99, f1) in enumerate(points, 1)]
    found = frontier(rows, lambda result: result.ttft.p99_ms)
    for left, right in itertools.pairwise(found):
        assert left.x < right.x
        assert left.y < right.y
    for budget in range(21):
        within = [f1 for p99, f1 in points if p99 <= budget]
        steps = [point.y for point in found if point.x <= budget]
        assert max(steps, default=None) == max(within, default=None)


def test_a_figure_is_of_the_test_half_only_where_all_was_run_on_it():
    assert half_to_show(part_of(*on_both(), *on_both(k_nuggets=3)).results) == "test"
    assert half_to_show(part_of(*on_both(), answers(k_nuggets=3)).results) == "dev"
    assert half_to_show(part_of(answers(half="all")).results) == "all"
    chart = charts_of(part_of(*on_both(), answers(k_nuggets=3)))[0]
    assert "on the dev half" in chart.caption


def test_budgets_are_marks_of_the_ttft_frontier():
    rows = [*on_both("standard_rag", k_chunks=1, k_nuggets=None, p99=400.0), *on_both()]
    budgets = [Budget(milliseconds=150), Budget(multiple=0.5), Budget()]
    over_ttft, over_len = charts_of(part_of(*rows, budgets=budgets))[:2]
    assert over_ttft.panels[0].marks == (("150ms", 150), ("0.5x", 200))
    assert over_len.panels[0].marks == ()


def test_repair_is_drawn_over_r_for_what_was_run_at_several_r():
    rows = [
        answers("cacheblend", k_nuggets=None, options={"ratio": r}, p99=100 + 100 * r, set=set_)
        for r in (0.5, 0.1)
        for set_ in ("a", "b")
    ]
    rows.append(answers("cacheblend", k_nuggets=None, options={"ratio": 0.9}, set="a"))  # not on b
    rows.append(answers("epic", k_nuggets=None, options={"ratio": 0.9}))  # at one r
    (repair,) = [chart for chart in charts_of(part_of(*rows)) if chart.name == "repair"]
    assert [panel.title for panel in repair.panels] == ["Time", "Computation", "Answers"]
    (series,) = repair.panels[0].series
    assert series.name == "cacheblend (3)"
    assert [point.x for point in series.points] == [0.1, 0.5]
    assert [point.y for point in series.points] == pytest.approx([88, 120])


def test_the_same_chart_is_drawn_as_the_same_bytes():
    chart = charts_of(part_of(*on_both()))[0]
    assert drawn(chart) == drawn(chart)
