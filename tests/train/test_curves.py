"""Curves: what a journal says is in the pictures, however little it is."""

from __future__ import annotations

import itertools
import json
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinkv.errors import InputError, StorageError
from coinkv.evaluate.report.style import STYLES
from coinkv.train.curve_figures import comparison_figure, f1_figure, loss_figure
from coinkv.train.curves import compare, draw
from coinkv.train.history import History, smoothed
from coinkv.train.journal import JOURNAL

OBJECTIVES = ("coinrag", "turborag", "block_attention", "kvlink", "standard_rag")


def step(number, loss=2.0):
    return {"kind": "step", "step": number, "loss": loss, "learning_rate": 3e-4, "rows": 8}


def dev(number, f1=10.0, loss=2.0):
    return {"kind": "dev", "step": number, "loss": loss, "f1": f1, "exact_match": f1 / 2}


def run(folder, *lines):
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / JOURNAL).write_text(text, encoding="utf-8")
    return folder


def texts(path):
    svg = ElementTree.parse(path)
    return [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]


def lines_of(axis):
    """What is drawn, by label: points (x, y)."""
    return {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in axis.lines}


def test_a_run_leaves_pictures_of_loss_and_f1_in_its_folder(tmp_path):
    folder = run(tmp_path / "run", dev(0, 5.0), step(1), step(2), dev(2, 9.0), step(3), dev(3, 7.0))
    files = draw(folder)
    assert [file.name for file in files] == ["loss.svg", "loss.png", "f1.svg", "f1.png"]
    assert all(file.parent == folder for file in files)
    for file in files[1::2]:
        assert file.read_bytes().startswith(b"\x89PNG")
    for file in files[::2]:
        assert {"best step: 2", "step (24 rows in all)"} <= set(texts(file))


def test_pictures_may_go_to_a_folder_of_their_own(tmp_path):
    folder = run(tmp_path / "run", step(1))
    first = [file.read_bytes() for file in draw(folder, tmp_path / "some" / "where")]
    assert sorted(file.name for file in folder.iterdir()) == [JOURNAL]
    assert [file.read_bytes() for file in draw(folder, tmp_path / "some" / "where")] == first


def test_what_the_journal_says_is_what_is_drawn(tmp_path):
    folder = run(tmp_path, dev(0, 5.0, 4.0), step(1, 3.0), step(2, 1.0), dev(2, 9.0, 2.0))
    history = History.of(folder)
    upper, lower = loss_figure(history).axes
    drawn = lines_of(upper)
    assert drawn["training, each step"] == [(1, 3.0), (2, 1.0)]
    assert drawn["development rows"] == [(0, 4.0), (2, 2.0)]
    assert drawn["best step: 2"] == [(2, 2.0)]
    assert list(lower.lines[0].get_ydata()) == [3e-4, 3e-4]
    (axis,) = f1_figure(history).axes
    drawn = lines_of(axis)
    assert drawn["F1"] == [(0, 5.0), (2, 9.0)]
    assert drawn["exact match"] == [(0, 2.5), (2, 4.5)]
    assert drawn["best step: 2"] == [(2, 9.0)]


@pytest.mark.parametrize(
    ("lines", "pictures"),
    [
        ([step(1)], 1),
        ([step(1), step(2)], 1),
        ([dev(0)], 2),
        ([dev(0, 0.0, 0.0), step(1), dev(1, 0.0, 0.0)], 2),
        ([step(1), dev(1, 3.0, float("nan"))], 2),
    ],
    ids=["one step", "two steps", "before the first step", "all 0", "no loss"],
)
def test_a_few_lines_are_enough(tmp_path, lines, pictures):
    folder = run(tmp_path / "run", *lines)
    assert len(draw(folder)) == 2 * pictures
    assert len(compare({"a": folder}, tmp_path)) == 2


def test_the_best_step_has_the_most_f1_and_of_these_the_least_loss_and_is_the_first(tmp_path):
    def best(*lines):
        return History.of(run(tmp_path, *lines)).best["step"]

    assert best(dev(0, 5.0, 1.0), dev(2, 6.0, 3.0), dev(4, 4.0, 0.5)) == 2
    assert best(dev(0, 6.0, 3.0), dev(2, 6.0, 2.0), dev(4, 5.0, 1.0)) == 2
    assert best(dev(0, 6.0, 2.0), dev(2, 6.0, 2.0)) == 0


def test_a_folder_without_a_step_of_a_run_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"nowhere/journal\.jsonl: is not there"):
        draw(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not there"):
        draw(tmp_path / "file")
    for lines in ([], [{"kind": "step", "step": 1}], [{"step": 1}], [{"kind": ["x"], "step": 1}]):
        with pytest.raises(InputError, match="holds no step of a run"):
            draw(run(tmp_path / "run", *lines))
    with pytest.raises(InputError, match="no runs to compare"):
        compare({}, tmp_path)


def test_a_target_that_cannot_be_written_to_is_a_clear_error(tmp_path):
    folder = run(tmp_path / "run", step(1))
    (tmp_path / "file").touch()
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="this is a file"):
            draw(folder, target)
    (tmp_path / "taken" / "loss.svg").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"loss\.svg: cannot be written"):
        draw(folder, tmp_path / "taken")


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'coinkv\[train\]'"):
        draw(run(tmp_path, step(1)))


def test_a_comparison_shows_every_run_by_name_with_what_it_has(tmp_path):
    whole = run(tmp_path / "a", dev(0, 5.0), step(1, 3.0), step(2, 2.0), dev(2, 9.0))
    loss_only = run(tmp_path / "b", step(1, 4.0), step(2, 3.0), step(3, 2.0))
    files = compare({"coinrag": whole, "$x_1$ <live>": loss_only}, tmp_path / "out")
    assert [file.name for file in files] == ["comparison.svg", "comparison.png"]
    assert {"coinrag", "$x_1$ <live>", "best step", "F1 on development rows"} <= set(
        texts(files[0])
    )
    (svg, _) = compare({"plain": loss_only}, tmp_path / "out")
    assert "best step" not in texts(svg)
    assert "F1 on development rows" not in texts(svg)


def compared(tmp_path, names):
    history = History.of(run(tmp_path, dev(0, 5.0), step(1), step(2), dev(2, 9.0)))
    return comparison_figure(dict.fromkeys(names, history))


@pytest.mark.parametrize(
    "names", [OBJECTIVES, ("live", "all", "coinrag", "chunks", "nuggets", "longer", "shorter")]
)
def test_runs_have_a_colour_each_and_methods_their_own_where_it_is_free(tmp_path, names):
    figure = compared(tmp_path, names)
    colours = [line.get_color() for line in figure.axes[0].lines]
    assert len(set(colours)) == len(names)
    assert colours[names.index("coinrag")] == STYLES["coinrag"].colour


def test_more_runs_than_colours_differ_in_their_markers(tmp_path):
    lines = compared(tmp_path, [f"run {n}" for n in range(20)]).axes[0].lines
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 20


@pytest.mark.parametrize("count", [1, 5, 16])
def test_the_legend_of_a_comparison_covers_no_panel(tmp_path, count):
    names = [f"a run whose name is rather long, the {n}th of them" for n in range(count)]
    figure = compared(tmp_path, names)
    figure.draw_without_rendering()
    *panels, beside = figure.axes
    legend = beside.get_legend().get_window_extent()
    assert not any(legend.overlaps(panel.get_tightbbox()) for panel in panels)
    assert figure.bbox.containsx(legend.x1)
    assert figure.bbox.containsy(legend.y0)
    assert figure.bbox.containsy(legend.y1)


heights = st.lists(st.floats(0, 10), min_size=1, max_size=40)
spans = st.floats(0.5, 20)


@given(st.floats(-1, 1), st.floats(-5, 5), st.integers(1, 40), spans)
def test_smoothing_leaves_a_straight_line_as_it_is(slope, start, count, span):
    line = start + slope * np.arange(count)
    assert smoothed(line.tolist(), span) == pytest.approx(line.tolist(), abs=1e-6)


@given(heights, spans)
def test_smoothing_treats_both_directions_alike(values, span):
    back = smoothed(values[::-1], span)[::-1]
    assert smoothed(values, span) == pytest.approx(back, abs=1e-6)


def test_smoothing_takes_jumps_out():
    jumps = [1.0, 3.0] * 20
    found = smoothed(jumps, 5.0)
    assert max(abs(a - b) for a, b in itertools.pairwise(found)) < 0.3
    assert found == pytest.approx([2.0] * 40, abs=0.35)
