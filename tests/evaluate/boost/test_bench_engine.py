"""The bench with KVBoost itself behind the wire, on a tiny model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench_texts import made_set

from coinkv.evaluate.boost.run import BoostBench
from coinkv.evaluate.boost.systems import Conditions, systems_named


@pytest.fixture(scope="module")
def facts(model):
    texts = made_set(1, 3)
    text = "The river rose. Who counted 14 sheep? Marta took the lamp, the dog and a boat. " * 3
    rows = [replace(row, passages=(replace(row.passages[0], text=text),)) for row in texts.rows]
    return BoostBench(
        Conditions(model, 1, 10_000_000, 16, "raw", "content"),
        systems_named(["full", "exact_prefix", "coinkv_selective"]),
        layouts=("varying_preamble",),
        max_document_tokens=300,
        max_new_tokens=4,
        seed=1,
    ).run(replace(texts, rows=tuple(rows)), lambda *step: None)


@pytest.fixture(scope="module")
def systems(facts):
    return facts["layouts"]["varying_preamble"]["systems"]


def test_full_recomputation_reuses_nothing(systems):
    assert systems["full"]["reuse"]["computed"] == 1
    assert systems["full"]["top1_agreement"] == systems["full"]["answer_agreement"] == 1


def test_prefix_reuse_reuses_what_stands_before_the_preamble_and_moves_nothing(systems):
    reuse = systems["exact_prefix"]["reuse"]
    assert 0 < reuse["exact"] < 0.7
    assert reuse["moved"] == reuse["repaired"] == 0
    assert systems["exact_prefix"]["answer_agreement"] == 1


def test_kvboost_moves_the_text_behind_a_new_preamble_and_repairs_it(systems):
    reuse = systems["coinkv_selective"]["reuse"]
    assert reuse["moved"] > 0.1
    assert reuse["repaired"] > 0
    assert systems["coinkv_selective"]["repairs"] == {"selective": 2}


def test_the_shares_add_up_and_the_memory_is_that_of_a_process_with_a_model(systems):
    for measured in systems.values():
        assert sum(measured["reuse"].values()) == pytest.approx(1)
        assert measured["added_bytes"] >= 0
        assert 1 << 25 < measured["loaded_bytes"] < 1 << 34
        assert "torch" in measured["versions"]
