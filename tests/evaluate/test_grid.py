"""Grids name the configurations a sweep goes through, and what in them cannot be run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from coinkv.errors import InputError
from coinkv.evaluate.budget import Budget, choose
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.grid import GRIDS, PAPER, Axes, chosen, grid, method_list, read_grid
from coinkv.evaluate.report.part import parts_of
from coinkv.evaluate.results import read_results
from coinkv.methods.registry import METHODS
from sweep_rows import a_sweep, answers, written

BUDGETS = (Budget(multiple=1), Budget())


def grid_file(tmp_path: Path, entries: object) -> Path:
    path = tmp_path / "grid.json"
    path.write_text(entries if isinstance(entries, str) else json.dumps(entries))
    return path


def test_the_paper_grid_is_that_of_its_appendix_e():
    assert PAPER.k_chunks == (1, 2, 3, 4, 5, 10, 20, 30, 50)
    assert PAPER.k_nuggets == (1, 2, 3, 4, 5, 10, 20, 30, 50, 100, 150, 200)
    assert PAPER.ratios == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    assert GRIDS["paper"] is PAPER


@pytest.mark.parametrize(
    ("method", "count"),
    [("standard_rag", 9), ("cacheblend", 9 * 11), ("coinrag", 108), ("coinrag_cacheblend", 1188)],
)
def test_a_method_takes_the_axes_that_mean_something_to_it(method, count):
    found = grid([method], PAPER)
    assert len(found) == len(set(found)) == count
    is_nugget = METHODS[method].unit == "nugget"
    assert {each.k_nuggets for each in found} == set(PAPER.k_nuggets if is_nugget else [None])
    assert {each.k_chunks for each in found} == set(PAPER.k_chunks)


def test_a_grid_over_all_methods_has_every_one():
    axes = Axes((2,), (3,), (0.15, 0.5))
    found = grid(method_list("all"), axes, "windows", "lora")
    assert [each.method for each in found if not each.options] == list(METHODS)
    assert {(each.index, each.adapter) for each in found} == {("windows", "lora")}
    ratios = {each.options for each in found if each.method == "cacheblend"}
    assert ratios == {(), (("ratio", 0.5),)}  # 0.15 is the default


def test_lists_of_a_grid_file_are_combined(tmp_path):
    entries = [
        {
            "method": "cacheblend",
            "k_chunks": [1, 3],
            "options": {"ratio": [0.1, "0.3"], "gradual": True},
        },
        {"method": "coinrag", "k_chunks": 3, "k_nuggets": [2, 4]},
        {"method": "standard_rag"},
    ]
    found = read_grid(grid_file(tmp_path, entries), "windows", "lora")
    expected = [
        Configuration("cacheblend", k, None, (("ratio", r), ("gradual", True)))
        for k in (1, 3)
        for r in (0.1, 0.3)
    ]
    expected += [Configuration("coinrag", 3, k) for k in (2, 4)]
    expected += [Configuration("standard_rag", 5, None)]
    assert found == [replace(each, index="windows", adapter="lora") for each in expected]


def test_what_is_the_same_is_there_once_and_defaults_are_no_options(tmp_path):
    entries = [
        {"method": "coinrag", "k_chunks": [5, 5], "options": {"order": "retrieval", "stages": "2"}},
        {"method": "coinrag", "k_nuggets": 10, "options": {"encode_after": None}},
        {"method": "coinrag", "options": {"align": ["yes", False]}},
    ]
    found = read_grid(grid_file(tmp_path, entries))
    assert found == [
        Configuration("coinrag", 5, 10),
        Configuration("coinrag", 5, 10, (("align", False),)),
    ]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"method": "magic"}, "no method is called 'magic'"),
        ({"k_chunks": 3}, "this entry is not understood"),
        ({"method": "coinrag", "k": 3}, "this entry is not understood"),
        ({"method": "coinrag", "options": ["align"]}, "this entry is not understood"),
        ({"method": "coinrag", "options": {"speed": 1}}, "coinrag has no option 'speed'"),
        ({"method": "coinrag", "options": {"order": ["rank", "best"]}}, "order is 'best'"),
        ({"method": "cacheblend", "options": {"ratio": 1.5}}, "ratio is 1.5"),
        ({"method": "cacheblend", "options": {"ratio": None}}, "ratio is None"),
        ({"method": "coinrag", "k_chunks": [1, 0]}, "k_chunks is 0"),
        ({"method": "coinrag", "k_chunks": True}, "k_chunks is True"),
        ({"method": "coinrag", "k_nuggets": 2.5}, "k_nuggets is 2.5"),
        ({"method": "coinrag", "k_nuggets": None}, "k_nuggets is None"),
        ({"method": "coinrag", "k_nuggets": []}, "holds an empty list"),
        ({"method": "cacheblend", "options": {"ratio": []}}, "holds an empty list"),
    ],
)
def test_a_wrong_entry_is_named_with_its_file(tmp_path, entry, says):
    path = grid_file(tmp_path, [{"method": "standard_rag"}, entry])
    with pytest.raises(InputError, match=says) as raised:
        read_grid(path)
    assert str(raised.value).startswith(f"{path}, entry 2: ")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[{", "the grid is no JSON"),
        ("[" * 100_000, "the grid is no JSON"),
        ('{"method": "coinrag"}', "no list of objects"),
        ('["coinrag"]', "no list of objects"),
        ("[]", "the grid is empty"),
    ],
)
def test_a_file_that_is_no_grid_is_refused(tmp_path, content, says):
    with pytest.raises(InputError, match=says):
        read_grid(grid_file(tmp_path, content))


def test_a_grid_that_is_not_there_is_said_with_those_that_are(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match=r"cannot be read.*one of paper, small"):
            read_grid(path)


def test_methods_are_read_as_typed():
    assert method_list(" coinrag, epic,") == ["coinrag", "epic"]
    assert method_list("all") == list(METHODS)
    for text, says in ((" , ", "no method is named"), ("coinrag,magic", "called 'magic'")):
        with pytest.raises(InputError, match=says):
            method_list(text)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A sweep over three sets that holds ablations, too."""
    path = written(tmp_path_factory.mktemp("results") / "dev.jsonl", a_sweep())
    return read_results([path]).results


def test_chosen_are_the_choices_on_the_dev_half_and_the_yardstick(results):
    dev = [r for r in results if (r.set, r.half) == ("musique", "dev")]
    competing = [
        r
        for r in dev
        if r.configuration.index == "sentences"
        and {n for n, _ in r.configuration.options} <= {"ratio"}
    ]
    expected = {Configuration("standard_rag", 1, None)}
    for budget in BUDGETS:
        expected |= {c.dev.configuration for c in choose(competing, budget) if c.dev is not None}
    found = chosen(results, "musique", BUDGETS)
    assert set(found) == expected
    assert len(found) == len(expected) > len(METHODS) / 2


def test_what_a_report_shows_of_the_test_half_is_what_was_chosen_to_be_run(tmp_path):
    variant = answers(k_chunks=5, options={"order": "rank"}, f1=99.0)  # best, but an ablation
    path = written(tmp_path / "dev.jsonl", [*a_sweep(), variant])
    results = read_results([path]).results
    (part,) = parts_of(results, BUDGETS)
    for set_ in part.sets:
        shown = {test.configuration for test in part.chosen if test.set == set_}
        assert shown | {Configuration("standard_rag", 1, None)} == set(
            chosen(results, set_, BUDGETS)
        )


def test_choices_of_another_index_or_adapter_are_left_to_their_own_sweep(tmp_path):
    rows = [
        answers("standard_rag", k_chunks=1, k_nuggets=None, f1=20.0),
        answers("standard_cag", k_nuggets=None, index="windows", f1=40.0),
        answers("turborag", k_nuggets=None, adapter="lora", f1=50.0),
        answers("coinrag", f1=30.0),
        answers("epic", k_nuggets=None, f1=30.0, set="other"),
    ]
    results = read_results([written(tmp_path / "dev.jsonl", rows)]).results
    yardstick = Configuration("standard_rag", 1, None)
    assert chosen(results, "hotpotqa", [Budget()]) == [yardstick, Configuration("coinrag", 3, 10)]
    assert chosen(results, "hotpotqa", [Budget()], "windows") == [
        replace(yardstick, index="windows"),
        Configuration("standard_cag", 3, None, index="windows"),
    ]
    assert chosen(results, "hotpotqa", [Budget()], adapter="lora") == [
        Configuration("turborag", 3, None, adapter="lora")
    ]
    with pytest.raises(InputError, match="nothing with this adapter"):
        chosen(results, "hotpotqa", [Budget()], adapter="other")


def test_without_a_dev_half_nothing_can_be_chosen(tmp_path):
    path = written(tmp_path / "r.jsonl", [answers(half="test"), answers(set="musique")])
    results = read_results([path]).results
    for set_ in ("hotpotqa", "nowhere"):
        with pytest.raises(InputError, match=f"{set_}: the results hold no dev half"):
            chosen(results, set_, BUDGETS)


def test_of_several_backbones_none_is_chosen_from(tmp_path):
    rows = [answers(), answers(fingerprint="another")]
    results = read_results([written(tmp_path / "r.jsonl", rows)]).results
    with pytest.raises(InputError, match="cannot be compared"):
        chosen(results, "hotpotqa", BUDGETS)


def test_the_grids_that_come_with_the_project_can_be_read():
    for path in sorted((Path(__file__).parents[2] / "benchmarks" / "grids").glob("*.json")):
        assert read_grid(path)
