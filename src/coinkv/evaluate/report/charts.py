"""The figures of a report as numbers: what is drawn is what `report.json` holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Literal

from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.report.frontier import Point, frontier, half_to_show
from coinkv.evaluate.report.part import Part
from coinkv.evaluate.report.style import in_order
from coinkv.evaluate.results import Result

RATIO = "ratio"
"""The option of repairing methods that holds the recompute ratio r."""


@dataclass(frozen=True)
class Series:
    """Points that belong together, under the name that colours them (a method, a set)."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: what it shows.
        y_label: of its vertical axis.
        series: what is drawn.
        marks: vertical lines, by their names.
        from_zero: whether the vertical axis begins at 0, so that heights are in proportion.
    """

    title: str
    y_label: str
    series: tuple[Series, ...]
    marks: tuple[tuple[str, float], ...] = ()
    from_zero: bool = False


@dataclass(frozen=True)
class Chart:
    """A figure.

    Attributes:
        name: of its files.
        title: what it shows.
        caption: how to read it, in whole sentences.
        kind: `steps` hold their height until the next point; `pairs` go from a plain result to
            its variant; `lines` join their points.
        x_label: of the horizontal axes.
        panels: the axes, in reading order.
    """

    name: str
    title: str
    caption: str
    kind: Literal["steps", "pairs", "lines"]
    x_label: str
    panels: tuple[Panel, ...]


def charts_of(part: Part) -> tuple[Chart, ...]:
    """The figures that a part's results suffice for."""
    charts = [_frontiers(part, ttft=True), _frontiers(part, ttft=False)] if part.compared else []
    charts += [_ablations(part)] if part.ablations else []
    repair = _repair(part)
    return (*charts, repair) if repair.panels else tuple(charts)


def _frontiers(part: Part, *, ttft: bool) -> Chart:
    """The paper's figure 2, with the budgets as marks, or its figure 3 over Len."""
    budgets = [block.budget for block in part.blocks] if ttft else []
    half = half_to_show(part.compared)
    shown = [result for result in part.compared if result.half == half]
    panels = []
    for set_ in dict.fromkeys(result.set for result in shown):
        of_set = [result for result in shown if result.set == set_]
        series = tuple(
            Series(
                method, frontier((r for r in of_set if r.method == method), _p99 if ttft else _len)
            )
            for method in in_order(result.method for result in of_set)
        )
        limits = [(budget.text, budget.limit_ms(part.compared, set_, half)) for budget in budgets]
        marks = tuple((text, x) for text, x in limits if x is not None and math.isfinite(x))
        panels.append(Panel(set_, "F1", series, marks))
    caption = (
        f"Best F1 of each method among its configurations that cost at most x, on the {half} "
        "half. A curve picks its configurations by the very questions it is drawn from, as in the "
        "paper, so it is a little too high; the tables choose on dev and report on test."
    )
    if any(panel.marks for panel in panels):
        caption += " Dotted vertical lines are the budgets."
    name, title, x_label = (
        ("frontier-ttft", "F1 within a budget of P99 TTFT", "P99 TTFT (ms)")
        if ttft
        else ("frontier-len", "F1 within a budget of context length", "Len (tokens)")
    )
    return Chart(name, title, caption, "steps", x_label, tuple(panels))


def _p99(result: Result) -> float:
    return result.ttft.p99_ms


def _len(result: Result) -> float:
    return result.len_tokens


def _ablations(part: Part) -> Chart:
    single = [ablation for ablation in part.ablations if len(ablation.pairs) == 1]
    panels = []
    for change in dict.fromkeys(ablation.change for ablation in single):
        of_change = [ablation for ablation in single if ablation.change == change]
        series = [
            Series(
                plain.set,
                tuple(
                    Point(r.ttft.p99_ms, r.f1, f"{r.method} {r.configuration.label}")
                    for r in (plain, variant)
                ),
            )
            for ablation in of_change
            for plain, variant in ablation.pairs
        ]
        panels.append(Panel(change, "F1", tuple(series)))
    halves = " and ".join(dict.fromkeys(ablation.pairs[0][0].half for ablation in single))
    caption = (
        f"Each line goes from coinrag as it is (filled) to the same configuration with the change "
        f"(hollow), on the {halves} half."
    )
    return Chart("ablations", "Ablations", caption, "pairs", "P99 TTFT (ms)", tuple(panels))


def _repair(part: Part) -> Chart:
    """What repair costs and buys: TTFT, FLOPs and F1 over r."""
    repaired = [r for r in part.compared if RATIO in dict(r.configuration.options)]
    half = half_to_show(repaired) if repaired else "dev"
    shown = [result for result in repaired if result.half == half]
    measures: tuple[tuple[str, str, Callable[[Result], float | None]], ...] = (
        ("Time", "mean TTFT (ms)", lambda result: result.ttft.mean_ms),
        ("Computation", "prefill (GFLOP)", lambda r: None if r.flops is None else r.flops / 1e9),
        ("Answers", "F1", lambda result: result.f1),
    )
    panels = [
        Panel(title, y_label, _over_ratio(shown, measure), from_zero=y_label != "F1")
        for title, y_label, measure in measures
    ]
    caption = (
        "Methods that recompute a share r of the context, on the "
        f"{half} half: means over the sets; configurations that were run at one r only are left "
        "out, and so are runs at a method's own default of r, which a row of results does not name."
    )
    panels = [panel for panel in panels if panel.series]
    x_label = "recompute ratio r"
    return Chart("repair", "What repair costs", caption, "lines", x_label, tuple(panels))


def _over_ratio(
    results: Sequence[Result], measure: Callable[[Result], float | None]
) -> tuple[Series, ...]:
    """A series for each method and configuration, at the r that all of its sets were run at."""
    runs: dict[Configuration, dict[float, dict[str, float]]] = {}
    for result in results:
        options = dict(result.configuration.options)
        ratio, value = float(options.pop(RATIO)), measure(result)
        if value is not None:
            rest = replace(result.configuration, options=tuple(options.items()))
            runs.setdefault(rest, {}).setdefault(ratio, {})[result.set] = value
    methods = in_order(configuration.method for configuration in runs)
    series = []
    for rest in sorted(
        runs, key=lambda c: (methods.index(c.method), c.k_chunks, c.k_nuggets or 0, c.label)
    ):
        name, by_ratio = f"{rest.method} ({rest.label})", runs[rest]
        sets = {set_ for by_set in by_ratio.values() for set_ in by_set}
        points = tuple(
            Point(ratio, mean(by_set.values()), f"{name}, r={ratio:g}")
            for ratio, by_set in sorted(by_ratio.items())
            if by_set.keys() == sets
        )
        series += [Series(name, points)] if len(points) > 1 else []
    return tuple(series)
