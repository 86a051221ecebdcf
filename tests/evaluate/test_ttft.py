"""The measurement of TTFT states all it promises, and what it states hangs together."""

from __future__ import annotations

import json

import pytest

from coinkv.errors import InputError
from coinkv.evaluate import ttft
from coinkv.evaluate.provenance import spread_ms
from coinkv.evaluate.timing import STAGES
from coinkv.evaluate.ttft import METHODS, bench_ttft
from coinkv.rag.ask import CoinRAG
from small_corpus import QUESTIONS


@pytest.fixture
def facts(index):
    return bench_ttft(index, QUESTIONS, k_chunks=3, k_nuggets=5, repeat=3)


def test_the_facts_have_all_that_was_promised(facts, index):
    facts = json.loads(json.dumps(facts))
    assert set(facts["methods"]) == {"standard_rag", "standard_cag", "coinrag"}
    for measured in facts["methods"].values():
        assert set(measured["ttft_ms"]) == {"mean", "p50", "p99"}
        assert 0 < measured["ttft_ms"]["p50"] <= measured["ttft_ms"]["p99"]
        assert set(measured["stages_ms"]) == {"embed", "retrieve", "read", "compose", "prefill"}
        assert measured["len_tokens"] > 0
    assert set(facts["ratios"]) == {
        "standard_rag_over_coinrag",
        "standard_cag_over_coinrag",
        "coinrag_over_floor",
        "bytes_read_over_page_bytes",
    }
    assert all(ratio > 0 for ratio in facts["ratios"].values())
    assert (facts["questions"], facts["repeat"]) == (len(QUESTIONS), 3)
    assert (facts["k_chunks"], facts["k_nuggets"]) == (3, 5)
    assert facts["fingerprint"] == index.backbone.fingerprint
    assert {"coinkv", "python", "torch", "transformers"} <= set(facts["versions"])


def test_the_stages_are_the_whole_time(facts):
    for measured in facts["methods"].values():
        stages = sum(measured["stages_ms"].values())
        assert stages == pytest.approx(measured["ttft_ms"]["mean"])
        assert 0.9 < measured["stages_over_wall"] <= 1  # what is between is this machine's noise


def test_a_warm_store_reads_the_pages_of_the_nuggets_and_little_more(facts):
    assert 1 <= facts["ratios"]["bytes_read_over_page_bytes"] <= 1.1


def test_the_lengths_are_those_of_the_methods(facts, index):
    for method in METHODS:
        asker = CoinRAG(index, method=method, k_chunks=3, k_nuggets=5)
        lengths = [asker.first_token(q, answer_tokens=8).context_tokens for q in QUESTIONS]
        mean = sum(lengths) / len(lengths)
        assert facts["methods"][method]["len_tokens"] == pytest.approx(mean)


def test_every_question_is_asked_of_every_method_as_often_as_said(index, monkeypatch):
    asked = []
    first_token = CoinRAG.first_token

    def noted(self, question, **room):
        asked.append((self.method.name, question))
        return first_token(self, question, **room)

    monkeypatch.setattr(CoinRAG, "first_token", noted)
    monkeypatch.setattr(ttft, "_WARM_UP", 0)
    told = []
    bench_ttft(index, QUESTIONS, repeat=2, on_progress=lambda done, total: told.append(done))
    assert sorted(asked) == sorted(
        (method, question) for method in METHODS for question in QUESTIONS for _ in range(2)
    )
    assert told == list(range(2 * len(QUESTIONS)))
    in_turn = [{q for _, q in asked[at : at + 3]} for at in range(0, len(asked), 3)]
    assert all(len(questions) == 1 for questions in in_turn)


def test_the_floor_is_the_suffix_alone_on_the_same_context(index, monkeypatch):
    live = []
    fill = ttft.fill

    def noted(backbone, cache, token_ids, positions):
        live.append((len(token_ids), cache.length))
        return fill(backbone, cache, token_ids, positions)

    first = CoinRAG(index).first_token(QUESTIONS[0], answer_tokens=8)
    monkeypatch.setattr(ttft, "fill", noted)
    assert ttft._floor(index, first) > 0
    assert live == [(len(first.suffix_ids), first.context_tokens)]


def test_a_choice_of_methods_is_measured_alone(index):
    facts = bench_ttft(index, QUESTIONS[:1], methods=["standard_rag"])
    assert list(facts["methods"]) == ["standard_rag"]
    assert (facts["floor"], facts["ratios"]) == (None, {})
    facts = bench_ttft(index, QUESTIONS[:1], methods=["coinrag"])
    assert set(facts["ratios"]) == {"coinrag_over_floor", "bytes_read_over_page_bytes"}


@pytest.mark.parametrize("wrong", [{"repeat": 0}, {"methods": ["magic"]}, {"k_chunks": 0}])
def test_measurements_that_make_no_sense_are_refused(index, wrong):
    with pytest.raises(InputError):
        bench_ttft(index, QUESTIONS[:1], **wrong)


def test_spread_is_mean_median_and_99th_percentile():
    seconds = [0.001 * n for n in range(1, 101)]
    assert spread_ms(seconds) == pytest.approx({"mean": 50.5, "p50": 50.5, "p99": 99.01})
    assert set(STAGES) == {"embed", "retrieve", "read", "compose", "prefill"}
