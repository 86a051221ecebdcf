"""A sweep runs what its ledger does not hold yet, and says what could not be run."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import pytest

from coinkv.errors import InputError, StorageError
from coinkv.evaluate import sweep as sweeping
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.dataset import EvalSet, read_set
from coinkv.evaluate.grid import Axes, grid, method_list
from coinkv.evaluate.ledger import Ledger
from coinkv.evaluate.results import read_results
from coinkv.evaluate.run import Asking
from coinkv.evaluate.sweep import Sweep
from coinkv.methods.registry import METHODS
from coinkv.model.load import load
from coinkv.rag.ask import CoinRAG
from fixtures.village_questions import PASSAGES, ROWS, write_rows
from small_corpus import contents_of
from tiny_adapters import save_tiny_adapter
from tiny_models import save_tiny_model

SHORT = Asking(answer_tokens=3)
RAG = Configuration("standard_rag", 1, None)
CAG = Configuration("standard_cag", 1, None)
COINRAG = Configuration("coinrag", 2, 3)
DEV = 3
"""Questions of the set's dev half."""


@pytest.fixture
def village(tmp_path):
    """The evaluation set, in place of the village's documents."""
    return read_set(write_rows(tmp_path / "sets" / "village.jsonl"))


@pytest.fixture
def a_sweep(options, tmp_path):
    """A sweep of this test's folder and results file, with what else is asked for."""

    def made(**more):
        ledger = Ledger(tmp_path / "results.jsonl")
        return Sweep(tmp_path / "indexes", ledger, **{"build": options, "asking": SHORT, **more})

    return made


@pytest.fixture
def rows(tmp_path):
    """The rows of the results file so far, by kind."""

    def read(kind):
        lines = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
        return [row for row in map(json.loads, lines) if row["kind"] == kind]

    return read


def plan(eval_set, *configurations):
    return {eval_set.name: list(configurations)}


def test_every_method_there_is_runs(a_sweep, village, rows):
    configurations = grid(method_list("all"), Axes((2,), (3,)))
    facts = a_sweep(timed_queries=1).run([village], plan(village, *configurations))
    assert (facts["answered"], facts["timed"]) == (len(METHODS), len(METHODS))
    assert (facts["kept"], facts["left_out"]) == (0, [])
    for kind in ("answers", "timing"):
        assert [Configuration.of_row(row) for row in rows(kind)] == configurations
        assert {(row["set"], row["half"]) for row in rows(kind)} == {("village", "dev")}
    assert {len(row["per_question"]) for row in rows("answers")} == {DEV}
    answers = [tuple(q["answer"] for q in row["per_question"]) for row in rows("answers")]
    assert len(set(answers)) > 1


def test_what_is_done_is_kept(a_sweep, village, tmp_path, monkeypatch):
    def written():
        return {name: c for name, c in contents_of(tmp_path).items() if ".sqlite" not in name}

    a_sweep(timed_queries=2).run([village], plan(village, RAG, COINRAG))
    before = written()
    monkeypatch.setattr(sweeping, "run", None)
    monkeypatch.setattr(sweeping, "timing_round", None)
    facts = a_sweep(timed_queries=2).run([village], plan(village, RAG, COINRAG))
    assert (facts["answered"], facts["timed"], facts["kept"]) == (0, 0, 2)
    assert written() == before


def test_an_index_is_built_once_a_set_and_label_from_all_passages(
    a_sweep, village, encodings, tmp_path
):
    a_sweep().run([village], plan(village, RAG))
    built = list(encodings)
    folder = tmp_path / "indexes" / "village"
    passages = [json.loads(line) for line in (folder / "passages.jsonl").open(encoding="utf-8")]
    assert {row["title"]: row["text"] for row in passages} == PASSAGES
    a_sweep(half="test").run([village], plan(village, CAG))
    assert encodings == built
    windows = replace(CAG, index="windows")
    a_sweep(index="windows").run([village], plan(village, windows))
    assert encodings == built * 2
    assert {entry.name for entry in folder.iterdir()} == {"sentences", "windows", "passages.jsonl"}


def test_other_questions_or_longer_answers_are_run_again(a_sweep, village, rows):
    a_sweep(limit=2).run([village], plan(village, CAG))
    assert a_sweep(limit=2).run([village], plan(village, CAG))["kept"] == 1
    for more in ({}, {"asking": replace(SHORT, answer_tokens=4)}, {"half": "all"}):
        assert a_sweep(**more).run([village], plan(village, CAG))["answered"] == 1
    assert [row["questions"] for row in rows("answers")] == [2, DEV, DEV, len(ROWS)]
    batch = a_sweep(asking=replace(SHORT, answer_tokens=4, batch=1))
    assert batch.run([village], plan(village, CAG))["kept"] == 1


def test_another_backbone_or_index_is_run_again(a_sweep, village, options, rows, tmp_path):
    folder = save_tiny_model(tmp_path / "other", {"model_type": "llama"}, seed=1)
    other = replace(options, model=load(str(folder), device="cpu"))
    a_sweep().run([village], plan(village, CAG))
    for more in (
        {"build": other, "folder": tmp_path / "others"},
        {"build": replace(options, chunk_tokens=48), "folder": tmp_path / "smaller"},
    ):
        again = replace(a_sweep(), **more)
        assert again.run([village], plan(village, CAG))["answered"] == 1
    made = [(row["fingerprint"], row["settings"]["chunk_tokens"]) for row in rows("answers")]
    assert len(set(made)) == 3


def test_another_content_or_scope_of_an_adapter_is_run_again(
    a_sweep, village, model_folder, rows, tmp_path
):
    asking = replace(SHORT, adapter=tmp_path / "lora")
    asked = plan(village, replace(CAG, adapter="lora"))
    for seed, scope, answered in ((0, "live", 1), (0, "live", 0), (0, "all", 1), (1, "all", 1)):
        save_tiny_adapter(model_folder, tmp_path / "lora", seed=seed)
        again = a_sweep(asking=replace(asking, adapter_scope=scope), timed_queries=1)
        facts = again.run([village], asked)
        assert (facts["answered"], facts["timed"]) == (answered, answered)
    made = [(row["adapter_digest"], row["adapter_scope"]) for row in rows("answers")]
    assert len(set(made)) == 3


def test_what_cannot_be_asked_is_left_out_and_named_and_the_rest_is_run(a_sweep, village, rows):
    too_many, too_long = replace(RAG, k_chunks=99), replace(RAG, k_chunks=4)
    asking = Asking(answer_tokens=1700)  # leaves room for a short context only
    facts = a_sweep(asking=asking, limit=1, timed_queries=1).run(
        [village], plan(village, too_many, too_long, COINRAG)
    )
    first, second = facts["left_out"]
    assert first.startswith("village, standard_rag 99: k_chunks is 99, the index holds")
    assert second.startswith("village, standard_rag 4: the retrieved context")
    assert (facts["answered"], facts["timed"]) == (1, 1)
    assert [row["method"] for row in rows("answers") + rows("timing")] == ["coinrag"] * 2


def refused(sweep, sets, asked, says, error=InputError):
    with pytest.raises(error, match=says):
        sweep.run(sets, asked)


def test_what_makes_no_sense_is_refused_before_anything_is_written(a_sweep, village, tmp_path):
    before = contents_of(tmp_path)
    twin = replace(village, rows=village.rows[:1])
    mute = replace(village, rows=tuple(replace(row, answers=()) for row in village.rows))
    absent = replace(SHORT, adapter=tmp_path / "none")
    adapted = plan(village, replace(CAG, adapter="none"))
    strange = replace(CAG, options=(("speed", 1),))
    refused(a_sweep(), [village, twin], plan(village, CAG), "two sets have the same name")
    refused(a_sweep(), [village], {}, "the plan says nothing of this set")
    refused(a_sweep(), [mute], plan(mute, CAG), "no answers to compare with")
    refused(a_sweep(), [village], plan(village, replace(CAG, method="magic")), "called 'magic'")
    refused(a_sweep(), [village], plan(village, strange), "no option 'speed'")
    refused(a_sweep(), [village], plan(village, replace(CAG, index="windows")), "another index")
    refused(a_sweep(), [village], adapted, "another index or adapter")
    refused(a_sweep(asking=absent), [village], adapted, "no such adapter folder")
    refused(a_sweep(asking=absent), [village], plan(village, CAG), "no such adapter folder")
    for wrong in ({"limit": 0}, {"timed_queries": -1}, {"slow_queries": -1}, {"index": "../x"}):
        with pytest.raises(InputError):
            a_sweep(**wrong)
    assert contents_of(tmp_path) == before


def test_a_results_file_of_something_else_is_found_before_any_work(a_sweep, village, tmp_path):
    write_rows(tmp_path / "results.jsonl")
    refused(a_sweep(), [village], plan(village, CAG), "no row of a sweep")
    (tmp_path / "file").write_text("")
    blocked = replace(a_sweep(), ledger=Ledger(tmp_path / "file" / "results.jsonl"))
    refused(blocked, [village], plan(village, CAG), "cannot be written", StorageError)
    assert not (tmp_path / "indexes").exists()


def test_an_index_that_lacks_passages_of_the_set_is_refused(a_sweep, village, tmp_path):
    few = replace(village, rows=village.rows[:1])
    a_sweep(half="all").run([few], plan(few, CAG))
    refused(a_sweep(), [village], plan(village, CAG), "lacks 2 of the 4 passages of village")
    bare = replace(village, rows=tuple(replace(row, passages=()) for row in village.rows))
    assert a_sweep().run([bare], plan(bare, CAG))["answered"] == 1  # has nothing to compare with
    nothing = replace(a_sweep(), folder=tmp_path / "new")
    refused(nothing, [bare], plan(bare, CAG), "no row has passages")


def test_a_set_is_known_by_its_name_and_its_indexes_stay_in_the_folder(a_sweep, village, tmp_path):
    outside = tmp_path / "data" / "set"
    named = [EvalSet(name, village.rows) for name in (str(outside), "../up", "some/hub:set")]
    facts = a_sweep(limit=1).run(named, {each.name: [CAG] for each in named})
    assert facts["answered"] == 3
    assert not outside.exists()
    assert not (tmp_path / "up").exists()
    results = read_results([tmp_path / "results.jsonl"]).results
    assert [result.set for result in results] == [each.name for each in named]
    assert len(list((tmp_path / "indexes").iterdir())) == 3


def test_timing_goes_on_behind_the_rounds_there_are(a_sweep, village, rows, tmp_path):
    a_sweep(timed_queries=2 * DEV).run([village], plan(village, CAG))
    assert [row["round"] for row in rows("timing")] == [0, 1]
    asked = plan(village, CAG, COINRAG)
    facts = a_sweep(timed_queries=3 * DEV).run([village], asked)
    assert facts["timed"] == 4
    assert a_sweep(timed_queries=3 * DEV).run([village], asked)["timed"] == 0
    numbers = [(row["method"], row["round"]) for row in rows("timing")]
    assert len(set(numbers)) == len(numbers)
    results = read_results([tmp_path / "results.jsonl"]).results
    assert {r.method: r.ttft.timed_queries for r in results} == {
        "standard_cag": 3 * DEV,
        "coinrag": 3 * DEV,
    }


def test_rounds_of_other_questions_do_not_count(a_sweep, village, rows):
    a_sweep(limit=1, timed_queries=3).run([village], plan(village, CAG))
    facts = a_sweep(timed_queries=3).run([village], plan(village, CAG))
    assert facts["timed"] == 1
    assert [len(row["ttft_ms"]) for row in rows("timing")] == [1, 1, 1, DEV]


def test_a_slow_configuration_is_timed_on_fewer_queries(a_sweep, village, rows, monkeypatch):
    first_token = CoinRAG.first_token

    def slower(self, question, **room):
        first = first_token(self, question, **room)
        if self.method.name == "standard_rag":
            first.clock.stages_seconds["prefill"] += sweeping.SLOW_MS / 1000
        return first

    monkeypatch.setattr(CoinRAG, "first_token", slower)
    asked = plan(village, RAG, CAG)
    sizes = {"timed_queries": 4 * DEV, "slow_queries": 2 * DEV}
    a_sweep(**sizes).run([village], asked)
    timed = [(row["round"], row["method"]) for row in rows("timing")]
    both = list(product((0, 1), ("standard_rag", "standard_cag")))
    assert timed == [*both, (2, "standard_cag"), (3, "standard_cag")]
    assert a_sweep(**sizes).run([village], asked)["timed"] == 0


def test_progress_counts_questions_over_all_configurations(a_sweep, village):
    told = []
    asked = plan(village, RAG, CAG)
    a_sweep(timed_queries=4).run([village], asked, lambda *step: told.append(step))
    answering = [(done, of) for stage, done, of in told if stage == "village: answering"]
    assert answering == [(DEV, 2 * DEV), (2 * DEV, 2 * DEV)]
    timing = [(done, of) for stage, done, of in told if stage == "village: timing"]
    assert timing == [(done, 2 * DEV) for done in range(1, 2 * DEV + 1)]


def test_two_sweeps_into_one_file_at_once_lose_no_row(a_sweep, village, rows):
    a_sweep(limit=1).run([village], plan(village, RAG))
    configurations = [Configuration("coinrag", k, n) for k in (1, 2, 3) for n in (1, 2, 3)]

    def swept(asked):
        return a_sweep().run([village], plan(village, *asked))

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(swept, (configurations, configurations[::-1])))
    there = [Configuration.of_row(row) for row in rows("answers")]
    assert set(there) == {RAG, *configurations}
    assert len(there) == 1 + sum(facts["answered"] for facts in found)
    assert [facts["answered"] + facts["kept"] for facts in found] == [len(configurations)] * 2
    assert a_sweep().run([village], plan(village, *configurations))["kept"] == len(configurations)
