"""Generating: greedy text, streams, many prompts at once, many threads at once."""

from __future__ import annotations

import gc
import threading
import time
import warnings

import pytest
import torch
from pieces import gap, own_answer, own_logits, piece, prompt

from coinkv.boost.cache import ReuseCache
from coinkv.boost.engine import MANY
from coinkv.errors import InputError
from coinkv.model.cost import CostModel
from coinkv.model.decode import Sampling
from coinkv.model.fill import fill
from coinkv.repair.auto import Auto

AUTO = Auto(CostModel(per_pass=1e-3, per_layer_token=1e-5, per_pair=1e-8), layers=3)
REPAIRS = ["selective", "cacheblend", "epic", "none", AUTO]


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi-partial", "gemma2-sliding"])
def test_temperature_0_is_transformers_own_greedy_text(engine, tiny_backbone, name):
    """REFERENCE 1.4, row 9: logits were divided by a temperature of 0."""
    boost, ids = engine(name), prompt("a", tokens=60)
    for sampling in (None, Sampling(temperature=0.0)):
        result = boost.generate(ids, 24, sampling=sampling)
        assert list(result.token_ids) == own_answer(tiny_backbone(name), ids, 24)


def test_behind_moved_kv_the_text_is_the_greedy_one_for_that_kv(engine, tiny_backbone):
    boost, backbone = engine(), tiny_backbone()
    boost.warm(prompt("a", "b"))
    ids = prompt("x", "b")
    first = boost.first_token(ids, answer_tokens=12)
    result = boost.generate(ids, 12)
    live, chosen = first.placed.live, []
    row = first.placed.logits
    for position in range(len(ids), len(ids) + 12):
        chosen.append(int(row[-1].argmax()))
        if chosen[-1] in backbone.end_token_ids:
            break
        row = fill(backbone, live, [chosen[-1]], torch.tensor([position]))
    assert list(result.token_ids) == chosen


@pytest.mark.parametrize("reuse", ["all", "exact", "none"])
def test_no_new_token_asked_for_is_no_text_and_no_token(engine, reuse):
    """REFERENCE 1.4, row 24: one came nevertheless."""
    boost = engine()
    boost.warm(prompt("a", "b"))
    for ids in (prompt("a", "b"), prompt("x", "b"), prompt("y")):
        result = boost.generate(ids, 0, reuse=reuse)
        assert (result.text, result.token_ids, result.finish_reason) == ("", (), "length")
        assert list(boost.stream(ids, 0, reuse=reuse)) == []
    assert [each.token_ids for each in boost.generate_many([prompt("a")] * 2, 0)] == [(), ()]


def test_reuse_of_nothing_computes_everything_and_keeps_nothing(engine, tiny_backbone):
    boost, ids = engine(), prompt("a", "b")
    for _ in range(2):
        result = boost.generate(ids, 9, reuse="none")
        assert result.reuse.computed == len(ids)
        assert result.kept_tokens == 0
    assert boost.stats().cache.runs == 0
    assert list(result.token_ids) == own_answer(tiny_backbone(), ids, 9)


def test_a_prompt_that_fills_the_context_gets_the_one_token_that_fits(engine, tiny_backbone):
    boost = engine()
    ids = piece("long", 512)
    for _ in range(2):
        assert len(boost.generate(ids, 20).token_ids) <= 1
    assert len(boost.generate(ids[:-3], 20).token_ids) <= 4
    with pytest.raises(InputError, match="needs 513 tokens, the context window"):
        boost.generate([*ids, 5], 1)


def test_every_prompt_is_prefilled_in_one_pass_and_never_again_to_be_kept(engine, tiny_backbone):
    """REFERENCE 1.4, row 7: chunks were encoded a second time, each alone."""
    boost, passes = engine(), []
    hook = tiny_backbone().model.register_forward_pre_hook(
        lambda _, args, kwargs: passes.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        for ids, computed in (
            (prompt("a", "b"), 189),
            (prompt("a", "b"), 1),
            (prompt("x", "b", "y", question="!"), 32 + 189),
        ):
            boost.generate(ids, 1)
            assert passes == [computed]
            passes.clear()
    finally:
        hook.remove()


def test_the_pieces_of_a_stream_joined_are_the_text(engine):
    boost = engine()
    boost.warm(prompt("a", "b"))
    for names in ("ab", "xb", "yz"):
        stream = boost.stream(prompt(*names), 24)
        assert stream.ttft_seconds > 0
        pieces = list(stream)
        assert len(pieces) > 5
        assert "".join(pieces) == stream.result.text
        assert stream.result.ttft_seconds == stream.ttft_seconds
        if stream.result.reuse.moved == 0:
            assert stream.result.text == boost.generate(prompt(*names), 24, reuse="none").text


def test_a_stream_that_is_not_read_to_its_end_has_no_result(engine):
    stream = engine().stream(prompt("a"), 10)
    with pytest.raises(InputError, match="not complete"):
        _ = stream.result
    next(iter(stream))
    with pytest.raises(InputError, match="not complete"):
        _ = stream.result


def test_a_stream_given_up_in_the_middle_keeps_its_kv(engine, tiny_backbone):
    boost, ids = engine(), prompt("a", "b")
    answer = own_answer(tiny_backbone(), ids, 40)
    stream = boost.stream(ids, 40)
    for number, _ in enumerate(stream):
        if number == 24:
            break
    del stream
    gc.collect()
    plan = boost.plan([*ids, *answer[:24], *piece("next", 9)])
    assert len(ids) + 20 <= plan.exact <= len(ids) + 40
    first = boost.first_token([*ids, *answer], reuse="exact")
    expected = own_logits(tiny_backbone(), [*ids, *answer])[-1]
    assert gap(first.placed.logits[0], expected) < 1e-5


def test_stop_strings_end_a_text_and_what_was_computed_is_kept_right(engine, tiny_backbone):
    boost, ids = engine(), prompt("a", "b")
    whole = boost.generate(ids, 40, reuse="none").text
    stop = whole[len(whole) // 2 : len(whole) // 2 + 2]
    result = boost.generate(ids, 40, sampling=Sampling(stop=(stop,)))
    assert result.text == whole[: whole.index(stop)]
    assert result.finish_reason == "stop"
    again = [*ids, *result.token_ids, 7]
    first = boost.first_token(again)
    assert first.placed.split.exact >= len(ids)
    assert gap(first.placed.logits[0], own_logits(tiny_backbone(), again)[-1]) < 1e-5


@pytest.fixture
def many(engine):
    """A library was seen; prompts of different lengths hit it exactly, moved, or not at all."""

    def make(**options):
        boost = engine(**options)
        boost.warm(prompt("a", "b", "c"))
        boost.warm(prompt("d"))
        return boost

    names = ["ab", "xb", "ab", "cxa", "y", "da", "xb", "xbd", "c", "zz", "db"]
    return make, [prompt(*each) for each in names]


@pytest.mark.parametrize("repair", REPAIRS, ids=str)
def test_many_prompts_at_once_get_the_texts_they_get_one_by_one(many, repair):
    """REFERENCE 1.4, rows 10 and 11: padding was attended, identical prompts failed."""
    make, prompts = many
    together = make(repair=repair).generate_many(prompts, 12)
    assert len(together) == len(prompts) > MANY
    for ids, result in zip(prompts, together, strict=True):
        alone = make(repair=repair).generate(ids, 12)
        assert result.token_ids == alone.token_ids
        assert result.text == alone.text
        assert result.finish_reason == alone.finish_reason
        assert result.prompt_tokens == result.reuse.total == len(ids)


def test_two_identical_prompts_at_once_get_the_same_text(engine, tiny_backbone):
    ids = prompt("a", "b")
    one, two = engine().generate_many([ids, ids], 15)
    assert one.token_ids == two.token_ids == tuple(own_answer(tiny_backbone(), ids, 15))
    assert (one.reuse.exact, two.reuse.exact) == (0, len(ids) - 1)


def test_none_one_and_twenty_prompts_at_once(engine, tiny_backbone):
    boost, backbone = engine(), tiny_backbone()
    assert boost.generate_many([], 10) == []
    every = [prompt(f"text {number}", tokens=10 + 7 * number) for number in range(20)]
    for prompts in (every[:1], every):
        for ids, result in zip(prompts, boost.generate_many(prompts, 6), strict=True):
            assert list(result.token_ids) == own_answer(backbone, ids, 6)


def test_prompts_of_one_call_reuse_each_other_exactly_but_are_not_moved_into_each_other(engine):
    boost = engine()
    results = boost.generate_many([prompt("a", "b"), prompt("a", "x"), prompt("y", "b")], 4)
    assert [result.reuse.exact for result in results] == [0, 90, 0]
    assert [result.reuse.moved + result.reuse.repaired for result in results] == [0, 0, 0]
    assert boost.generate(prompt("z", "b"), 4).reuse.moved > 0


def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_computed(engine):
    boost = engine()
    with pytest.raises(InputError, match="513"):
        boost.generate_many([prompt("a"), piece("long", 513)], 4)
    assert boost.stats().prompts == 0
    assert boost.stats().cache.runs == 0


def test_eight_threads_get_the_texts_of_single_calls(engine):
    """REFERENCE 7, row 15: answers depended on what else was asked."""
    prompts = [prompt(*names) for names in ("ab", "ab", "ac", "d", "ef", "ab", "gh", "d")]
    expected = [engine().generate(ids, 12).token_ids for ids in prompts]
    for reuse in ("all", "exact"):
        boost, texts = engine(), [None] * 8

        def ask(number, boost=boost, texts=texts, reuse=reuse):
            texts[number] = boost.generate(prompts[number], 12, reuse=reuse).token_ids

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert texts == expected
        assert [boost.generate(ids, 12, reuse=reuse).token_ids for ids in prompts] == expected


def test_what_reading_takes_is_part_of_the_time_to_the_first_token(engine, monkeypatch):
    """REFERENCE 1.3, flaw 4; 7, row 17: the clock began after lookup and repair."""
    boost, read = engine(), ReuseCache.read
    boost.warm(prompt("a"))

    def slow(cache, part):
        time.sleep(0.2)
        return read(cache, part)

    monkeypatch.setattr(ReuseCache, "read", slow)
    result = boost.generate(prompt("a"), 1)
    assert result.stages_seconds["read"] >= 0.2
    assert set(result.stages_seconds) == {"tokenize", "plan", "read", "compose", "prefill"}
    assert sum(result.stages_seconds.values()) == pytest.approx(result.ttft_seconds)
    facts = result.to_dict()
    assert facts["ttft_ms"] == pytest.approx(1000 * result.ttft_seconds)
    assert sum(facts["stages_ms"].values()) == pytest.approx(facts["ttft_ms"])


def test_generating_warns_of_nothing(engine):
    """REFERENCE 7, row 1."""
    boost = engine()
    boost.warm(prompt("a", "b"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for repair in ("selective", "cacheblend"):
            boost.generate(prompt("x", "b"), 4, repair=repair)
        boost.generate_many([prompt("a"), prompt("b")], 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reuse": "some"}, "reuse is 'some'"),
        ({"repair": "magic"}, "no repair is called 'magic'"),
        ({"max_new_tokens": -1}, "max_tokens is -1"),
    ],
)
def test_options_that_make_no_sense_are_refused(engine, options, message):
    boost = engine()
    for call in (boost.generate, boost.stream):
        with pytest.raises(InputError, match=message):
            call(prompt("a"), **options)
    with pytest.raises(InputError, match=message):
        boost.generate_many([prompt("a")], **options)
    assert boost.stats().cache.runs == 0


def test_figures_of_an_engine_are_the_sums_of_its_results(engine):
    boost = engine()
    results = [boost.generate(prompt(*names), 2) for names in ("ab", "xb", "ab", "cb")]
    stats = boost.stats()
    assert stats.prompts == 4
    for name in ("exact", "moved", "repaired", "computed", "total"):
        assert getattr(stats.reuse, name) == sum(getattr(r.reuse, name) for r in results)
    assert stats.cache.tokens == sum(result.kept_tokens for result in results)
    full = boost.generate(prompt("ab"), 2, reuse="none")
    assert all(result.flops < full.flops for result in results[2:3])
    assert full.layer_tokens == full.prompt_tokens * 3
