"""How the curves of runs are drawn: readable at 800 pixels and by the colour-blind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from textwrap import fill
from typing import TYPE_CHECKING, Any

from coinkv.evaluate.report.style import STYLES, Dashes, Style
from coinkv.train.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 8.0  # inches, at 100 points each 800 pixels
_FEW = 40  # steps, up to which each is marked
_MARKED = 6  # steps of a longer run that are, where runs are compared
_LEGEND_LETTERS = 38  # that fit in the width of a panel
_LEGEND_LINE = 0.22  # inches
_GREY, _BLUE, _ORANGE = "#555555", "#0072B2", "#D55E00"
# Okabe and Ito's, without yellow, which white paper swallows
_COLOURS = (_BLUE, _ORANGE, "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES: tuple[Dashes, ...] = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_LINE: dict[str, Any] = {"markersize": 5, "linewidth": 1.5}
_BEST: dict[str, Any] = {
    "marker": "o",
    "markersize": 11,
    "markerfacecolor": "none",
    "clip_on": False,
}


def loss_figure(history: History) -> Figure:
    """The loss of training and on development rows; under it the learning rate."""
    figure = _figure(5.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    steps, dots = _column(history.steps, "step"), "." if len(history.steps) <= _FEW else ""
    thin: dict[str, Any] = {"color": "#8cb8d8", "linewidth": 0.8, "marker": dots}
    upper.plot(steps, _column(history.steps, "loss"), **thin, label="training, each step")
    upper.plot(steps, history.smoothed_loss(), color=_BLUE, marker=dots, label="training, smoothed")
    if history.dev:
        at, loss = _column(history.dev, "step"), _column(history.dev, "loss")
        upper.plot(at, loss, color=_ORANGE, marker="o", **_LINE, label="development rows")
    _mark_best(upper, history, "loss")
    _over_steps(upper, history.last_step, "Loss", "cross-entropy of an answer token")
    rates = _column(history.steps, "learning_rate")
    lower.plot(steps, rates, color=_GREY, linewidth=1, marker=dots)
    _over_steps(lower, history.last_step, "", "learning\nrate")
    lower.set_yticks([0, max(rates, default=0)])
    lower.yaxis.set_major_formatter(lambda rate, _: f"{rate:.2g}")
    lower.set_xlabel(_x_label(history))
    figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def f1_figure(history: History) -> Figure:
    """F1 and exact match on development rows."""
    figure = _figure(4.4)
    axis, at = figure.subplots(), _column(history.dev, "step")
    f1, exact = _column(history.dev, "f1"), _column(history.dev, "exact_match")
    axis.plot(at, f1, color=_BLUE, marker="o", **_LINE, label="F1")
    axis.plot(at, exact, "--", color=_ORANGE, marker="s", **_LINE, label="exact match")
    _mark_best(axis, history, "f1")
    _over_steps(axis, history.last_step, "Answers to development rows", "mean, of 100")
    axis.set_ylim(bottom=0)
    axis.set_xlabel(_x_label(history))
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def comparison_figure(histories: Mapping[str, History]) -> Figure:
    """Runs side by side: losses and F1 as far as they have them, and a legend beside them."""
    evaluated = any(history.dev for history in histories.values())
    labels = [fill(name, _LEGEND_LETTERS) for name in histories]
    lines = 1 + sum(label.count("\n") + 1 for label in labels)
    down = 2 if evaluated else 1
    figure = _figure(down * max(3.1, 0.4 + _LEGEND_LINE * lines))
    axes = list(figure.subplots(down, 2).flat)
    last_step = max(history.last_step for history in histories.values())
    titles = ("Training loss, smoothed", "Loss on development rows", "F1 on development rows")
    for axis, title in zip(axes[:-1], titles, strict=False):
        y_label = "mean, of 100" if title.startswith("F1") else "cross-entropy"
        _over_steps(axis, last_step, title, y_label)
        axis.set_xlabel("step")
    styles = _styles(list(histories))
    for name, history in histories.items():
        _draw_run(axes[:-1], history, styles[name])
    if evaluated:
        axes[2].set_ylim(bottom=0)
    _legend(axes[-1], labels, styles.values(), evaluated=evaluated)
    return figure


def _draw_run(axes: Sequence[Axes], history: History, style: Style) -> None:
    look: dict[str, Any] = {"color": style.colour, "marker": style.marker, **_LINE}
    steps, often = _column(history.steps, "step"), max(1, len(history.steps) // _MARKED)
    axes[0].plot(steps, history.smoothed_loss(), style.dashes, markevery=often, **look)
    for axis, measure in zip(axes[1:], ("loss", "f1"), strict=False):
        at, values = _column(history.dev, "step"), _column(history.dev, measure)
        axis.plot(at, values, style.dashes, **look)
        if history.best is not None:
            axis.plot(history.best["step"], history.best[measure], color=style.colour, **_BEST)


def _styles(names: Sequence[str]) -> dict[str, Style]:
    """A look for each run: a method's own as far as its colour is still free, else another one."""
    own: dict[str, str] = {}
    for name in names:
        if name in STYLES and STYLES[name].colour not in own.values():
            own[name] = STYLES[name].colour
    free = [colour for colour in _COLOURS if colour not in own.values()]
    others, nth = cycle(free or _COLOURS), cycle(zip(cycle(_DASHES), _MARKERS, strict=False))
    styles = {}
    for name, (dashes, marker) in zip(names, nth, strict=False):
        style = STYLES.get(name, Style("", dashes, marker))
        styles[name] = replace(style, colour=own.get(name) or next(others))
    return styles


def _legend(axis: Axes, labels: list[str], styles: Iterable[Style], *, evaluated: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=style.colour, linestyle=style.dashes, marker=style.marker, **_LINE)
        for style in styles
    ]
    if evaluated:
        handles.append(Line2D([], [], color=_GREY, linestyle="", **_BEST))
        labels = [*labels, "best step"]
    axis.set_axis_off()
    axis.legend(handles, labels, loc="center left", borderaxespad=0)


def _mark_best(axis: Axes, history: History, measure: str) -> None:
    if history.best is not None:
        step, value = history.best["step"], history.best[measure]
        label = f"best step: {step:,}"
        axis.plot(step, value, color=_GREY, linestyle="", **_BEST, label=label)


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    return Figure(figsize=(_WIDTH, height), layout=layout)


def _over_steps(axis: Axes, last_step: int, title: str, y_label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    right = max(1, last_step)
    axis.set_xlim(-0.02 * right, 1.02 * right)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axis.set_title(title)
    axis.set_ylabel(y_label)


def _x_label(history: History) -> str:
    return f"step ({history.rows:,} rows in all)"


def _column(lines: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [line[name] for line in lines]
