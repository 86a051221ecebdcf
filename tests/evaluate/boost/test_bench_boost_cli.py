"""`coinkv bench boost`: one JSON object or a table a layout, and one line where it cannot run."""

from __future__ import annotations

import json

import pytest
from bench_texts import made_set, write_set


@pytest.fixture
def data(tmp_path):
    return write_set(tmp_path / "asked.jsonl", made_set(2, 3))


@pytest.fixture
def bench(coinkv, data, stand_ins, tiny_folder):
    def run(*arguments):
        return coinkv(
            "bench", "boost", "--data", data, "--model", tiny_folder("llama"), "--device", "cpu",
            "--threads", 1, *arguments,
        )  # fmt: skip

    return run


def test_the_json_has_what_was_promised(bench, stand_ins):
    ran = bench("--peer", f"kvboost={stand_ins.python}", "--json", "--seed", 3)
    assert (ran.code, ran.err) == (0, "")
    facts = json.loads(ran.out)
    systems = {
        "full", "exact_prefix", "coinkv_selective", "coinkv_cacheblend", "coinkv_epic",
        "coinkv_auto", "kvboost", "kvboost_selective", "vllm",
    }  # fmt: skip
    assert set(facts["layouts"]) == {"document_first", "varying_preamble", "two_documents"}
    for layout in facts["layouts"].values():
        assert set(layout["systems"]) == systems
        assert set(layout["systems"]["vllm"]) == {"skipped"}
        for name in systems - {"vllm"}:
            measured = layout["systems"][name]
            for when in ("ttft_first_ms", "ttft_later_ms"):
                assert set(measured[when]) == {"mean", "p50", "p99"}
            assert sum(measured["reuse"].values()) == pytest.approx(1)
            assert {"accuracy", "f1", "top1_agreement", "peak_bytes", "buckets"} <= set(measured)
    for ratios in facts["ratios"].values():
        assert ratios["full_over_auto"] > 0
        assert ratios["kvboost_over_auto"] > 0
        assert ratios["cold_auto_over_full"] > 0
    assert facts["command"].startswith("coinkv bench boost --data")
    assert (facts["versions"]["threads"], facts["seed"]) == (1, 3)


def test_without_json_it_prints_a_table_a_layout_and_what_was_not_measured(bench, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    ran = bench("--systems", "full,coinkv_auto,vllm", "--layouts", "document_first,two_documents")
    assert ran.code == 0
    assert "document_first, 2 texts" in ran.out
    assert "two_documents, 2 texts" in ran.out
    assert "vllm skipped: no environment: give --peer vllm=PYTHON" in ran.out
    assert "full_over_auto: " in ran.out
    assert "kvboost_over_auto" not in ran.out


def test_a_run_with_one_question_a_text_has_no_later_ones(bench, data, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    write_set(data, made_set(2, 1))
    ran = bench("--systems", "full,coinkv_auto", "--layouts", "document_first")
    assert ran.code == 0
    assert "cold_auto_over_full" in ran.out
    assert "full_over_auto: " not in ran.out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--layouts", "sideways"], "there is no layout 'sideways'; use some of document_first"),
        (["--layouts", ","], "there is no layout ','"),
        (["--systems", "magic"], "there is no system 'magic'; use some of full, exact_prefix"),
        (["--peer", "vllm"], "--peer 'vllm' is not NAME=PYTHON; NAME is one of kvboost, vllm"),
        (["--documents", "0"], "documents is 0; use 1 or more"),
        (["--documents", "9"], "texts have at most"),
        (["--documents", "1", "--layouts", "two_documents"], "two_documents needs two texts"),
        (["--max-document-tokens", "-1"], "max_document_tokens is -1"),
        (["--max-new-tokens", "0"], "max_new_tokens is 0"),
        (["--max-new-tokens", "9999"], "the context window of"),
        (["--budget-bytes", "0"], "budget_bytes is 0"),
        (["--chunk-tokens", "1"], "chunk_tokens is 1"),
        (["--codec", "zip"], "zip"),
        (["--boundaries", "none"], "boundaries is 'none'; use one of content"),
        (["--threads", "0"], "threads is 0"),
        (["--data", "gone.jsonl"], "gone.jsonl: no such file"),
        (["--model", "./gone"], "no such model folder"),
    ],
)
def test_what_cannot_be_measured_is_one_line(bench, stand_ins, wrong, said):
    ran = bench(*wrong)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert said in ran.err
    assert stand_ins.asked()[0] == {}


def test_nothing_answered_is_one_line(bench, stand_ins):
    stand_ins.fail(none="no module")
    ran = bench("--systems", "full")
    assert ran.code == 1
    assert ran.err.startswith("error: no system answered; full: its process ended: ModuleNotFound")
