"""`coinkv sweep` survives being killed, and runs on the test half what was best on the dev half."""

from __future__ import annotations

import json
import time

import pytest

from coinkv.evaluate.budget import Budget
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.grid import Axes, chosen, grid
from coinkv.evaluate.results import read_results
from command_line import start
from fixtures.refusals import require_one_line
from fixtures.village_questions import write_rows
from small_corpus import contents_of
from sweep_rows import answers, written

TIMEOUT_SECONDS = 120


@pytest.fixture
def village(tmp_path):
    return write_rows(tmp_path / "sets" / "village.jsonl")


@pytest.fixture
def command(village, model_folder, tmp_path):
    """A sweep over a set of the village with the tiny model; more may follow."""
    folder, to = tmp_path / "indexes", tmp_path / "results.jsonl"
    places = ("--folder", folder, "--to", to, "--model", model_folder)
    return ("sweep", village, *places, "--answer-tokens", 3, "--json")


@pytest.fixture
def swept(coinkv, command):
    """Runs the sweep; returns the object it prints."""

    def run(*more):
        ran = coinkv(*command, *more)
        assert ran.code == 0, ran
        return json.loads(ran.out)

    return run


def rows_of(path):
    content = path.read_bytes()
    assert content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


def test_a_sweep_killed_in_the_middle_goes_on_behind_its_last_row(command, swept, tmp_path):
    values = ("--k-chunks", "1,2,3", "--k-nuggets", "1,2,3,4,5")
    more = ("--methods", "standard_cag,coinrag", *values, "--half", "all", "--answer-tokens", 32)
    configurations = grid(["standard_cag", "coinrag"], Axes((1, 2, 3), (1, 2, 3, 4, 5)))
    results = tmp_path / "results.jsonl"
    process = start(*command, *more)
    until = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < until and process.poll() is None:
        if results.exists() and results.read_bytes().count(b"\n") >= 3:
            break
        time.sleep(0.005)
    process.kill()
    process.communicate()
    before = results.read_bytes()
    before = before[: before.rindex(b"\n") + 1]
    done = before.count(b"\n")
    assert 3 <= done < len(configurations)
    with results.open("ab") as file:
        file.write(b'{"set": "village", "half": "all", "kind": "ans')  # a kill in a write
    facts = swept(*more)
    assert (facts["kept"], facts["answered"]) == (done, len(configurations) - done)
    assert results.read_bytes().startswith(before)
    assert [Configuration.of_row(row) for row in rows_of(results)] == configurations
    assert {len(row["per_question"]) for row in rows_of(results)} == {6}


def test_the_test_half_gets_what_was_best_on_the_dev_half_and_the_yardstick(swept, tmp_path):
    dev, test = tmp_path / "dev.jsonl", tmp_path / "test.jsonl"
    methods = ("--methods", "standard_rag,standard_cag,coinrag,cacheblend")
    swept("--to", dev, *methods, "--k-chunks", "1,2", "--k-nuggets", "1,3", "--timed-queries", 6)
    results = read_results([dev]).results
    for given, budgets in (
        (("--budget", "9000ms", "--budget", "0.0001x"), (Budget(9000), Budget(multiple=0.0001))),
        ((), (Budget(multiple=1), Budget())),
    ):
        test.unlink(missing_ok=True)
        facts = swept("--to", test, "--half", "test", "--chosen-from", dev, *given)
        run = {Configuration.of_row(row) for row in rows_of(test)}
        assert run == set(chosen(results, "village", budgets))
        assert Configuration("standard_rag", 1, None) in run
        assert facts["answered"] == len(run) < len(results)
        assert {row["half"] for row in rows_of(test)} == {"test"}


def test_a_sweep_says_what_it_did_and_what_it_left_out(coinkv, command, tmp_path):
    grid_file = tmp_path / "grid.json"
    grid_file.write_text('[{"method": "standard_rag", "k_chunks": [1, 99]}]')
    people = [part for part in command if part != "--json"]
    ran = coinkv(*people, "--grid", grid_file)
    assert ran.code == 0
    assert "1 runs answered, 0 timing rounds, 0 runs kept from before" in ran.out
    assert ran.err.startswith("left out: village, standard_rag 99: k_chunks is 99")
    facts = json.loads(coinkv(*command, "--grid", grid_file).out)
    assert (facts["kept"], len(facts["left_out"])) == (1, 1)


def test_windows_are_nuggets_of_an_index_of_their_own(swept, tmp_path):
    only = ("--methods", "coinrag", "--k-chunks", "1", "--k-nuggets", "2")
    swept(*only)
    swept(*only, "--extractor", "windows")
    swept(*only, "--extractor", "windows", "--label", "strips")
    rows = rows_of(tmp_path / "results.jsonl")
    assert [row["index"] for row in rows] == ["sentences", "windows", "strips"]
    lengths = [row["len_tokens"] for row in rows]
    assert lengths[0] != lengths[1] == lengths[2]


REFUSED = {
    "an unknown method": (("--methods", "coinrag,magic"), "no method is called 'magic'"),
    "no method": (("--methods", ","), "no method is named"),
    "a grid that is not there": (("--grid", "none.json"), "none.json: the grid cannot be read"),
    "no number": (("--k-chunks", "1,two"), "--k-chunks is '1,two'"),
    "a chunk count of 0": (("--k-chunks", "0"), "k_chunks is 0"),
    "a ratio above 1": (("--ratios", "2"), "ratio is 2.0"),
    "an unknown half": (("--half", "dusk"), "there is no half 'dusk'"),
    "limit 0": (("--limit", 0), "limit is 0"),
    "fewer than no queries": (("--timed-queries", -1), "timed_queries is -1"),
    "batch 0": (("--batch", 0), "batch is 0"),
    "an unknown extractor": (("--extractor", "magic"), "'magic'"),
    "a label with a path": (("--label", "../other"), "'../other' is no label"),
    "an adapter that is not there": (("--adapter", "none"), "none: no such adapter folder"),
    "a budget alone": (("--budget", "1x"), "add --chosen-from FILE"),
    "no results to choose from": (
        ("--half", "test", "--chosen-from", "none.jsonl"),
        "none.jsonl: no such file",
    ),
    "a wrong budget": (
        ("--half", "test", "--chosen-from", "dev.jsonl", "--budget", "fast"),
        "is no budget",
    ),
    "results of other sets": (
        ("--half", "test", "--chosen-from", "dev.jsonl"),
        "village: the results hold no dev",
    ),
    "a choice run where it was made": (("--chosen-from", "dev.jsonl"), "add --half test"),
    "a choice and methods": (
        ("--half", "test", "--chosen-from", "dev.jsonl", "--methods", "epic"),
        "leave out",
    ),
    "a grid and values": (("--grid", "grid.json", "--ratios", "0.1"), "leave out --methods"),
    "a second set of one name": (("copy/village.jsonl",), "two sets have the same name"),
    "a set without answers": (("bare.jsonl",), "bare.jsonl, line 1: this question has no answers"),
    "a set that is not there": (("none.jsonl",), "none.jsonl: no such file"),
    "results of another kind": (("--to", "sets/village.jsonl"), "this is no row of a sweep"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_used_is_one_line_and_nothing_is_written(
    coinkv, command, tmp_path, monkeypatch, what
):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "dev.jsonl", [answers()])
    (tmp_path / "grid.json").write_text('[{"method": "cacheblend"}]')
    write_rows(tmp_path / "copy" / "village.jsonl")
    write_rows(tmp_path / "bare.jsonl", [{"id": "q0", "question": "Why?"}])
    before = contents_of(tmp_path)
    more, says = REFUSED[what]
    require_one_line(coinkv(*command, *more), says)
    assert contents_of(tmp_path) == before


def test_a_results_file_that_cannot_be_written_is_found_before_any_work(
    coinkv, command, village, tmp_path
):
    require_one_line(coinkv(*command, "--to", village / "r"), "cannot be written", code=1)
    require_one_line(coinkv(*command, "--to", tmp_path), "Is a directory")
    assert not (tmp_path / "indexes").exists()
