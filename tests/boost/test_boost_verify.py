"""Verify compares reuse with full prefill on the user's own prompts and says what is safe."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from coinkv.boost.agreement import Agreement, Answered
from coinkv.boost.engine import KVBoost
from coinkv.boost.result import BoostResult, ReuseSplit
from coinkv.boost.verify import VERIFIED, StrategyReport, VerifyReport
from coinkv.cli import boost as boost_cli
from coinkv.errors import InputError
from coinkv.repair.cacheblend import CacheBlend
from coinkv.repair.selective import Selective
from coinkv.repair.strategies import STRATEGIES


def ids(count, seed):
    return np.random.default_rng(seed).integers(2, 380, count).tolist()


DOCUMENT, OTHER = ids(90, 1), ids(60, 2)
SHIFTED = [[*DOCUMENT, *ids(5, 3)], [*ids(23, 4), *DOCUMENT, *ids(6, 5)]]
SAME_BEGINNING = [[*DOCUMENT, *ids(5, 3)], [*DOCUMENT, *ids(7, 6)]]


@pytest.fixture
def engine(tiny_backbone):
    options = {"budget_bytes": 10**8, "chunk_tokens": 16, "repair": "none"}
    with KVBoost.from_pretrained(tiny_backbone("llama"), **options) as engine:
        yield engine


def test_moved_prompts_and_exact_ones_are_reported_apart(engine):
    (report,) = engine.verify(
        [*SHIFTED, *SAME_BEGINNING[1:], ids(30, 9)], answer_tokens=4, strategies=["none"]
    ).strategies
    assert (report.moved.prompts, report.exact.prompts) == (1, 1)
    assert report.moved.largest_gap > 0.05
    assert 0 <= report.exact.largest_gap < 1e-3
    assert report.exact.same_answers == report.exact.top1 == 1
    assert report.reuse.moved > 60
    assert report.reuse.exact >= 89


def test_the_figures_are_those_of_an_engine_that_is_used_by_hand(engine, tiny_backbone):
    (report,) = engine.verify(SHIFTED, answer_tokens=6, strategies=["selective"]).strategies
    options = {"budget_bytes": 10**8, "chunk_tokens": 16, "repair": "selective"}
    with KVBoost.from_pretrained(tiny_backbone("llama"), **options) as other:
        other.generate(SHIFTED[0], 6)
        full = other.first_token(SHIFTED[1], reuse="none").placed.logits[0]
        reused = other.first_token(SHIFTED[1]).placed.logits[0]
        answers = [other.generate(SHIFTED[1], 6, reuse=kind) for kind in ("none", "all")]
    assert report.moved.largest_gap == pytest.approx(float((full - reused).abs().max()), rel=1e-3)
    expected = torch.nn.functional.kl_div(
        reused.log_softmax(-1), full.log_softmax(-1), log_target=True, reduction="sum"
    )
    assert report.moved.mean_kl == pytest.approx(float(expected), rel=1e-3)
    assert report.moved.same_answers == (answers[0].token_ids == answers[1].token_ids)
    assert report.used == {"selective": 1}
    assert report.reuse.repaired == answers[1].reuse.repaired > 0


def test_a_set_in_which_nothing_moves_tests_nothing_and_is_not_called_safe(engine):
    report = engine.verify(SAME_BEGINNING, answer_tokens=3)
    assert [each.strategy for each in report.strategies] == list(VERIFIED)
    assert all(each.exact.prompts == 1 for each in report.strategies)
    assert (report.tested, report.safe) == (False, None)
    assert report.verdict.startswith("nothing was tested")


def test_thresholds_of_nothing_are_reached_and_the_verdict_names_a_strategy(engine):
    report = engine.verify(
        SHIFTED, answer_tokens=3, strategies=["none", "epic"], least_top1=0, least_answers=0
    )
    assert report.safe in ("none", "epic")
    assert report.verdict == f"{report.safe} is safe enough, and the fastest that is"


def test_a_strategy_that_computes_everything_again_is_exact_and_not_tested(engine):
    chosen = CacheBlend(ratio=1)
    (report,) = engine.verify(SHIFTED, answer_tokens=3, strategies=[chosen]).strategies
    assert report.strategy == str(chosen)
    assert (report.moved, report.reuse.moved) == (Agreement(), 0)


def test_more_repair_is_closer(engine):
    few, all_but_a_little = engine.verify(
        SHIFTED, answer_tokens=1, strategies=[Selective(window=1), Selective(window=80)]
    ).strategies
    assert all_but_a_little.moved.mean_kl < few.moved.mean_kl
    assert all_but_a_little.reuse.repaired > few.reuse.repaired


def test_what_the_engine_keeps_is_neither_used_nor_changed(engine):
    engine.generate([*OTHER, 7], 2)
    engine.generate([*DOCUMENT, 7], 2)
    before = engine.stats()
    (report,) = engine.verify([[*ids(9, 8), *OTHER, 9]], strategies=["none"]).strategies
    assert report.reuse == ReuseSplit(computed=70)
    assert engine.stats() == before
    assert engine.plan([*DOCUMENT, 9]).exact == 90


@pytest.mark.parametrize(("codec", "lossy"), [("raw", False), ("kivi", True)])
def test_the_engines_codec_is_what_is_verified(tiny_backbone, codec, lossy):
    options = {"budget_bytes": 10**8, "chunk_tokens": 16, "codec": codec, "repair": "none"}
    with KVBoost.from_pretrained(tiny_backbone("llama"), **options) as engine:
        (report,) = engine.verify(SAME_BEGINNING, answer_tokens=1, strategies=["none"]).strategies
    assert (report.exact.largest_gap > 1e-2) == lossy


def test_the_engines_chunks_are_what_is_verified(tiny_backbone):
    options = {"budget_bytes": 10**8, "chunk_tokens": 400, "repair": "none"}
    with KVBoost.from_pretrained(tiny_backbone("llama"), **options) as engine:
        assert not engine.verify(SHIFTED, answer_tokens=1).tested


def test_the_engines_memory_budget_is_what_is_verified(tiny_backbone):
    options = {"budget_bytes": 1000, "chunk_tokens": 16, "repair": "none"}
    with KVBoost.from_pretrained(tiny_backbone("llama"), **options) as engine:
        (report,) = engine.verify(SHIFTED, answer_tokens=1, strategies=["none"]).strategies
    assert report.reuse.moved == report.reuse.exact == 0


@pytest.mark.parametrize(
    ("prompts", "options", "says"),
    [
        ([], {}, "there is no prompt"),
        (["one", ""], {}, "prompt 2: the prompt is empty"),
        (["one", "two", ids(600, 1)], {}, "prompt 3: it needs 600 tokens"),
        (["one"], {"strategies": ["some"]}, "no repair is called 'some'"),
        (["one"], {"strategies": []}, "no strategy"),
        (["one"], {"answer_tokens": 0}, "answer_tokens is 0"),
        (["one"], {"least_top1": 1.1}, "least_top1 is 1.1"),
        (["one"], {"least_answers": math.nan}, "least_answers is nan"),
    ],
)
def test_bad_input_is_refused_before_anything_is_computed(engine, prompts, options, says):
    told = []
    with pytest.raises(InputError, match=says):
        engine.verify(prompts, on_progress=lambda *step: told.append(step), **options)
    assert told == []


def test_progress_is_told_and_an_interruption_leaves_the_engine_as_it_was(engine):
    told = []

    def interrupt(stage, done, total):
        told.append((stage, done, total))
        if stage == "none":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.verify(SHIFTED, answer_tokens=1, on_progress=interrupt)
    assert told == [("full prefill", 1, 2), ("full prefill", 2, 2), ("none", 1, 2)]
    assert engine.stats().cache.runs == 0
    assert engine.generate([*DOCUMENT, 3], 2).reuse.computed == 91


def answered(logits, token_ids):
    result = BoostResult(
        text="",
        token_ids=tuple(token_ids),
        finish_reason="length",
        prompt_tokens=1,
        reuse=ReuseSplit(),
        repair="none",
        ttft_seconds=1.0,
        stages_seconds={},
        decode_seconds=0.0,
        keep_seconds=0.0,
        kept_tokens=0,
        layer_tokens=0,
        flops=0,
    )
    return Answered(result, torch.tensor(logits).log())


def test_agreement_is_what_its_docstring_says():
    agreement = Agreement.of(
        [
            (answered([0.5, 0.25, 0.25], [4, 5, 6]), answered([0.25, 0.5, 0.25], [4, 9, 6])),
            (answered([0.5, 0.25, 0.25], [4, 5]), answered([0.5, 0.25, 0.25], [4, 5])),
        ]
    )
    assert (agreement.prompts, agreement.top1, agreement.same_answers) == (2, 0.5, 0.5)
    assert agreement.largest_gap == pytest.approx(math.log(2))
    expected = 0.5 * math.log(2) - 0.25 * math.log(2)
    assert agreement.largest_kl == pytest.approx(expected)
    assert agreement.mean_kl == pytest.approx(expected / 2)
    assert agreement.mean_common_tokens == 1.5
    assert Agreement.of([]) == Agreement()


@pytest.mark.parametrize(
    ("first", "second", "common"), [([], [], 0), ([1], [], 0), ([1, 2], [1, 2, 3], 2)]
)
def test_answers_of_different_lengths_are_not_the_same(first, second, common):
    agreement = Agreement.of([(answered([1.0], first), answered([1.0], second))])
    assert agreement.same_answers == (first == second)
    assert agreement.mean_common_tokens == common


def strategy(name, *, top1, answers, seconds):
    return StrategyReport(
        strategy=name,
        moved=Agreement(10, top1, 0.1, 0.1, 0.1, answers, 3.0),
        exact=Agreement(),
        used={name: 10},
        reuse=ReuseSplit(),
        ttft_seconds=seconds,
        ttft_over_full=seconds,
    )


REPORT = VerifyReport(
    prompts=10,
    prompt_tokens=100,
    answer_tokens=8,
    full_ttft_seconds=1.0,
    strategies=(
        strategy("none", top1=0.9, answers=1.0, seconds=0.1),
        strategy("epic", top1=1.0, answers=0.8, seconds=0.2),
        strategy("cacheblend", top1=0.97, answers=0.9, seconds=0.4),
        strategy("selective", top1=1.0, answers=1.0, seconds=0.3),
    ),
    least_top1=0.97,
    least_answers=0.9,
)


def test_the_fastest_strategy_that_reaches_both_thresholds_is_the_safe_one():
    assert REPORT.safe == "selective"
    assert replace(REPORT, least_answers=0.8).safe == "epic"
    assert replace(REPORT, strategies=REPORT.strategies[2:3]).safe == "cacheblend"
    assert replace(REPORT, strategies=REPORT.strategies[:2]).safe is None
    assert "use reuse='exact'" in replace(REPORT, strategies=REPORT.strategies[:2]).verdict


def test_a_report_is_one_json_object_with_milliseconds(engine):
    report = engine.verify(SHIFTED, answer_tokens=2, strategies=["none"])
    facts = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert facts["full_ttft_ms"] == pytest.approx(1000 * report.full_ttft_seconds)
    (only,) = facts["strategies"]
    assert set(only["reuse"]) == {"exact", "moved", "repaired", "computed"}
    assert only["ttft_ms"] == pytest.approx(1000 * report.strategies[0].ttft_seconds)
    assert {"tested", "safe", "verdict", "least_top1", "least_answers"} <= set(facts)
    assert not any(name.endswith("_seconds") for name in (*facts, *only))


def test_the_command_line_has_the_same_defaults():
    import inspect

    here = inspect.signature(KVBoost.verify).parameters
    there = inspect.signature(boost_cli.verify_command).parameters
    for name in ("answer_tokens", "least_top1", "least_answers"):
        assert there[name].default == here[name].default
    assert tuple(there["strategies"].default.split(",")) == here["strategies"].default
    assert set(VERIFIED) == set(STRATEGIES)
