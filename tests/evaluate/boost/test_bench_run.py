"""A run: every prompt to every system, resumable by sittings, and no failure ends it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_texts import made_set

from coinkv.errors import CoinKVError, InputError, StorageError
from coinkv.evaluate.boost import run as running
from coinkv.evaluate.boost.run import BoostBench
from coinkv.evaluate.boost.systems import systems_named

PROMPTS = 12
ENDED = "its process ended: "


@pytest.fixture
def bench(conditions, stand_ins, tmp_path):
    return BoostBench(
        conditions,
        systems_named(["full", "exact_prefix", "kvboost"]),
        {"kvboost": Path(stand_ins.python)},
        ("document_first",),
        max_new_tokens=8,
        out=tmp_path / "answers.jsonl",
    )


def run(bench, eval_set=None):
    told = []
    facts = bench.run(eval_set or made_set(), lambda *step: told.append(step))
    return json.loads(json.dumps(facts)), told


def test_every_system_gets_every_prompt_and_every_answer_is_a_row(bench, stand_ins):
    facts, told = run(bench)
    counts, _ = stand_ins.asked()
    assert counts == {"none none": PROMPTS, "exact none": PROMPTS, " cacheblend": PROMPTS}
    rows = [json.loads(line) for line in bench.out.read_text().splitlines()]
    assert len(rows) == 3 * PROMPTS
    assert {(row["system"], row["id"]) for row in rows} == {
        (system.name, row.id) for system in bench.systems for row in made_set().rows
    }
    for system in bench.systems:
        assert facts["layouts"]["document_first"]["systems"][system.name]["questions"] == PROMPTS
    assert told[-1] == ("document_first", PROMPTS, PROMPTS)
    assert (facts["documents"], facts["fingerprint"]) == (4, bench.conditions.model.fingerprint)


def test_systems_take_turns_in_an_order_that_changes(bench, stand_ins):
    run(bench)
    _, lines = stand_ins.asked()
    turns = [tuple(lines[at : at + 3]) for at in range(0, len(lines), 3)]
    assert all(len(set(turn)) == 3 for turn in turns)
    assert len(set(turns)) > 1


def test_the_answers_are_scored_without_their_end_token(bench, model):
    rows = bench.out
    run(bench)
    for row in map(json.loads, rows.read_text().splitlines()):
        assert row["token_ids"] == [7, row["prompt_tokens"]]  # the third is </s>
        assert (row["text"], row["accurate"]) == ("The answer is seven", True)
        assert row["f1"] == pytest.approx(50)  # one word of three is right
        assert sum(row["reuse"].values()) == row["prompt_tokens"]


def test_what_is_there_is_not_asked_again(bench, stand_ins):
    before, _ = run(bench)
    stand_ins.asked()
    after, told = run(bench)
    assert stand_ins.asked()[0] == {}
    assert told == []
    assert after == before


def test_a_sitting_of_which_rows_are_missing_is_asked_again_as_a_whole(bench, stand_ins):
    run(bench)
    stand_ins.asked()
    lines = bench.out.read_text().splitlines(keepends=True)
    bench.out.write_text("".join(lines[:-1]) + lines[-1][:40])  # killed while it wrote
    facts, _ = run(bench)
    counts, _ = stand_ins.asked()
    assert sum(counts.values()) == 3
    assert len(counts) == 1
    for measured in facts["layouts"]["document_first"]["systems"].values():
        assert measured["questions"] == PROMPTS


def test_a_system_that_is_added_is_asked_alone(bench, stand_ins):
    run(bench)
    stand_ins.asked()
    wider = replace(
        bench, systems=systems_named(["full", "exact_prefix", "kvboost", "coinkv_epic"])
    )
    facts, _ = run(wider)
    assert stand_ins.asked()[0] == {"all epic": PROMPTS}
    assert "questions" in facts["layouts"]["document_first"]["systems"]["coinkv_epic"]


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({"codec": "kivi"}, ["exact none"]),
        ({"chunk_tokens": 32}, ["exact none"]),
        ({"threads": 2}, ["exact none", "none none", " cacheblend"]),
        ({"budget_bytes": 5}, ["exact none", "none none", " cacheblend"]),
    ],
)
def test_what_depends_on_a_setting_is_asked_again_under_another(bench, stand_ins, changes, asked):
    run(bench)
    stand_ins.asked()
    run(replace(bench, conditions=replace(bench.conditions, **changes)))
    assert stand_ins.asked()[0] == dict.fromkeys(asked, PROMPTS)


def test_a_system_that_dies_is_marked_and_the_others_go_on(bench, stand_ins):
    stand_ins.fail(exact="crash")
    facts, _ = run(bench)
    systems = facts["layouts"]["document_first"]["systems"]
    assert systems["exact_prefix"] == {
        "failed": "its process ended: RuntimeError: the roof fell in"
    }
    assert systems["full"]["questions"] == systems["kvboost"]["questions"] == PROMPTS
    assert stand_ins.asked()[0]["exact none"] == 3


def test_a_system_that_fell_out_is_tried_again_in_the_next_layout_and_run(bench, stand_ins):
    both = replace(bench, layouts=("document_first", "varying_preamble"))
    stand_ins.fail(cacheblend="no module")
    facts, _ = run(both)
    for layout in both.layouts:
        peer = facts["layouts"][layout]["systems"]["kvboost"]
        assert peer == {
            "failed": "its process ended: ModuleNotFoundError: No module named 'kvboost'"
        }
        assert facts["ratios"][layout]["full_over_auto"] is None
    stand_ins.asked()
    stand_ins.fail()
    facts, _ = run(both)
    assert stand_ins.asked()[0] == {" cacheblend": 2 * PROMPTS}


def test_a_peer_without_environment_is_skipped_with_a_word(bench):
    facts, _ = run(replace(bench, peers={}))
    skipped = facts["layouts"]["document_first"]["systems"]["kvboost"]["skipped"]
    assert skipped.startswith("no environment: give --peer kvboost=PYTHON")
    assert "kvboost" not in facts["settings"]


def test_each_layout_begins_with_empty_caches(bench):
    facts, _ = run(replace(bench, layouts=("document_first", "two_documents")))
    rows = [json.loads(line) for line in bench.out.read_text().splitlines()]
    first = {}
    for row in rows:
        if row["system"] == "exact_prefix":
            first.setdefault(row["layout"], row)
    assert {row["reuse"]["exact"] for row in first.values()} == {0}
    assert set(facts["layouts"]) == set(first)


def test_a_run_where_nothing_answers_is_an_error(bench, stand_ins):
    stand_ins.fail(none="no module", cacheblend="no module")
    with pytest.raises(CoinKVError, match="no system answered; full: its process ended"):
        run(bench)
    with pytest.raises(CoinKVError, match="no system answered; kvboost: no environment"):
        run(replace(bench, systems=systems_named(["kvboost"]), peers={}))


def test_a_file_of_something_else_is_refused_before_any_work(bench, stand_ins):
    bench.out.write_text('{"kind": "answers"}\n')
    with pytest.raises(InputError, match="no answer of coinkv bench boost"):
        run(bench)
    bench.out.write_text('{"kind": "boost", "key": "x", "ttft_ms": "fast"}\n')
    with pytest.raises(InputError, match="`ttft_ms` is 'fast'"):
        run(bench)
    bench.out.unlink()
    bench.out.mkdir()
    with pytest.raises((InputError, StorageError)):
        run(bench)
    assert stand_ins.asked()[0] == {}


def test_no_worker_outlives_a_run_that_is_interrupted(bench, monkeypatch):
    crews = []

    class Noted(running.Crew):
        def start(self, systems, on_start):
            super().start(systems, on_start)
            crews.append(list(self.workers.values()))

    def interrupted(stage, done, total):
        if stage == "document_first":
            raise KeyboardInterrupt

    monkeypatch.setattr(running, "Crew", Noted)
    with pytest.raises(KeyboardInterrupt):
        bench.run(made_set(), interrupted)
    (workers,) = crews
    assert len(workers) == 3
    assert all(worker._process.returncode is not None for worker in workers)


def test_by_default_texts_are_so_long_that_two_fit_into_a_prompt(bench, model):
    texts = made_set(8, 1)
    long = "It rains. " * model.context_length
    passages = (replace(texts.rows[0].passages[0], text=long),)
    rows = (replace(texts.rows[0], passages=passages), *texts.rows[1:])
    facts, _ = run(replace(bench, layouts=("two_documents",)), replace(texts, rows=rows))
    assert 2 <= facts["documents"] <= 7
