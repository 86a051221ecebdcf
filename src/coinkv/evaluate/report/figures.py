"""Charts drawn by matplotlib: SVG and PNG, readable at 800 pixels and by the colour-blind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from coinkv.evaluate.report.charts import Chart, Panel, Series
from coinkv.evaluate.report.rendering import rendered
from coinkv.evaluate.report.style import OTHERS, Dashes, Style, styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 8.0  # inches, at 100 points each 800 pixels
_LEGEND_LETTERS = 108  # that fit beside each other
_LEGEND_LINES = 13  # that fit in the place of a panel
_LOG_FROM = 10  # times the smallest x
_DASHES: tuple[Dashes, ...] = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_ARROW = {"arrowstyle": "->", "color": "#888888", "shrinkA": 4, "shrinkB": 4}
_ABOVE: dict[str, Any] = {
    "xytext": (0, 2),
    "textcoords": "offset points",
    "fontsize": 8,
    "color": "#555555",
    "ha": "center",
}


def drawn(chart: Chart) -> dict[str, bytes]:
    """The chart as the contents of files, by suffix: `svg` and `png`.

    The same chart gives the same bytes.

    Raises:
        InputError: matplotlib is not installed.
    """
    return rendered(chart.name, chart.title, lambda: _figure(chart), extra="eval")


def _figure(chart: Chart) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    count = len(chart.panels)
    across = min(2, count)
    down = -(-count // across)
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    figure = Figure(figsize=(_WIDTH, 3.1 * down if count > 1 else 4.4), layout=layout)
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    styles = _styles(chart)
    for axis, panel in zip(axes, chart.panels, strict=False):
        _draw(axis, chart, panel, styles)
    _legend(figure, axes[count:], chart.kind, styles)
    return figure


def _styles(chart: Chart) -> dict[str, Style]:
    names = list(dict.fromkeys(s.name for panel in chart.panels for s in panel.series))
    if chart.kind == "pairs":  # of sets, in their order
        return dict(zip(names, cycle(OTHERS), strict=False))
    if chart.kind == "steps":
        return styles_of(names)
    # a line is named after its method and configuration: the method gives the colour, dashes
    # and marker tell its configurations apart
    methods = [name.split(" ")[0] for name in names]
    of_method = styles_of(methods)
    styles = {}
    for place, (name, method) in enumerate(zip(names, methods, strict=True)):
        nth = methods[:place].count(method)
        dashes, marker = _DASHES[nth % len(_DASHES)], _MARKERS[nth % len(_MARKERS)]
        styles[name] = Style(of_method[method].colour, dashes, marker)
    return styles


def _draw(axis: Axes, chart: Chart, panel: Panel, styles: dict[str, Style]) -> None:
    xs = [x for _, x in panel.marks] + [p.x for series in panel.series for p in series.points]
    if min(xs) > 0 and max(xs) > _LOG_FROM * min(xs):
        _logarithmic(axis)
    for series in panel.series:
        _draw_series(axis, chart.kind, series, styles[series.name], 1.08 * max(xs))
    for name, x_mark in panel.marks:
        axis.axvline(x_mark, color="#555555", linestyle=":", linewidth=1)
        axis.annotate(name, (x_mark, 1), xycoords=("data", "axes fraction"), **_ABOVE)
    if panel.from_zero:
        axis.set_ylim(bottom=0)
    axis.set_title(panel.title, pad=16 if panel.marks else 6)
    axis.set_xlabel(chart.x_label)
    axis.set_ylabel(panel.y_label)


def _draw_series(axis: Axes, kind: str, series: Series, style: Style, right: float) -> None:
    x, y = [point.x for point in series.points], [point.y for point in series.points]
    marks: dict[str, Any] = {"color": style.colour, "marker": style.marker, "markersize": 5}
    if kind == "pairs":
        axis.annotate("", (x[1], y[1]), (x[0], y[0]), arrowprops=_ARROW)
        axis.plot(x[:1], y[:1], linestyle="", **marks)
        axis.plot(x[1:], y[1:], linestyle="", markerfacecolor="white", **marks)
    elif kind == "steps":
        line: dict[str, Any] = {"color": style.colour, "linestyle": style.dashes}
        axis.step([*x, right], [*y, y[-1]], where="post", linewidth=1.6, **line)
        axis.plot(x, y, linestyle="", **marks)
    else:
        axis.plot(x, y, linestyle=style.dashes, **marks)


def _logarithmic(axis: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}")


def _legend(figure: Figure, free: Sequence[Axes], kind: str, styles: dict[str, Style]) -> None:
    """Beside the panels: in the place of one that is free, else below them all."""
    from matplotlib.lines import Line2D

    def handle(name: str, **more: Any) -> Line2D:
        return Line2D([], [], markersize=5, label=name, **more)

    handles = [
        handle(
            name,
            color=style.colour,
            linestyle="" if kind == "pairs" else style.dashes,
            marker=style.marker,
        )
        for name, style in styles.items()
    ]
    if kind == "pairs":
        grey = {"color": "#888888", "linestyle": "", "marker": "o"}
        handles += [handle("as it is", **grey), handle("changed", markerfacecolor="white", **grey)]
    for axis in free:
        axis.set_axis_off()
    if free:
        size = 10 if len(handles) <= _LEGEND_LINES else 7
        free[0].legend(handles=handles, loc="center left", borderaxespad=0, fontsize=size)
    else:
        longest = max(len(str(handle.get_label())) for handle in handles)
        columns = max(1, min(4, _LEGEND_LETTERS // (longest + 8)))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns)
        lines = -(-len(handles) // columns)
        figure.set_figheight(figure.get_figheight() + 0.22 * lines)
