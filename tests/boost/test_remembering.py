"""Warm, plan, pin, invalidate, stats: what is remembered, for how long, and what is forgotten."""

from __future__ import annotations

import pytest
from pieces import gap, own_logits, piece, prompt
from tokenizers.processors import TemplateProcessing

from coinkv.boost import engine as engine_module
from coinkv.boost.engine import KVBoost
from coinkv.errors import InputError
from coinkv.model.cost import CostModel
from coinkv.model.load import load
from coinkv.repair import strategies
from tiny_models import SUPPORTED, make_tokenizer, save_tiny_model

SHEEP = "Marta counted 14 sheep on the hill; two were missing. She took the lamp and the dog. "
RIVER = "The river had risen in the night, and by 6 o'clock the lower fields were under water. "


def token_bytes(backbone):
    return backbone.shape.values_per_token * backbone.dtype.itemsize + 8


def kept_ids(boost):
    return [run.ids.tolist() for run in boost._cache._tree]


def holds(boost, ids):
    """Whether a run of tokens is kept in one piece anywhere."""
    return any(
        kept[at : at + len(ids)] == list(ids)
        for kept in kept_ids(boost)
        for at in range(len(kept) - len(ids) + 1)
    )


def test_warming_keeps_a_text_for_prompts_that_begin_with_it_or_hold_it(engine):
    boost = engine()
    report = boost.warm(piece("a"))
    assert (report.prompt_tokens, report.kept_tokens, report.reuse.computed) == (90, 90, 90)
    assert report.seconds > 0
    again = boost.warm(piece("a"))
    assert (again.kept_tokens, again.reuse.exact) == (0, 89)
    assert boost.plan(prompt("a", "x")).exact == 90
    assert boost.plan(prompt("x", "a")).moved == 90


def test_planning_calls_no_model_and_keeps_nothing(engine, tiny_backbone):
    boost, calls = engine(), []
    boost.warm(prompt("a", "b"))
    before = boost.stats()
    hook = tiny_backbone().model.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        for repair in (None, "selective", "cacheblend", "epic", "none"):
            for reuse in ("all", "exact", "none"):
                boost.plan(prompt("x", "b", "a"), reuse=reuse, repair=repair)
    finally:
        hook.remove()
    assert calls == []
    assert boost.stats() == before


def test_reuse_that_is_allowed_less_plans_less(engine):
    boost = engine()
    boost.warm(prompt("a", "b"))
    ids = prompt("a", "x", "b", question="!")
    figures = [
        (plan.exact, plan.moved, plan.computed)
        for plan in (boost.plan(ids, reuse=reuse) for reuse in ("all", "exact", "none"))
    ]
    assert figures == [(90, 90, 99), (90, 0, 189), (0, 0, 279)]


def test_auto_measures_the_machine_once_an_engine(engine, monkeypatch):
    measured = []

    def calibrated(backbone):
        measured.append(backbone)
        return CostModel(1e-3, 1e-6, 1e-9)

    monkeypatch.setattr(strategies, "calibrated", calibrated)
    boost = engine(repair="selective")
    assert measured == []
    boost.warm(prompt("a", "b"))
    for _ in range(3):
        boost.plan(prompt("x", "b"), repair="auto")
        boost.generate(prompt("y", "b"), 1, repair="auto")
    assert len(measured) == 1
    default = engine(repair="auto")
    default.generate(prompt("x"), 1, repair="auto")
    assert len(measured) == 2


def test_a_pinned_text_outlasts_many_others_and_an_unpinned_one_does_not(engine, tiny_backbone):
    boost = engine(budget_bytes=600 * token_bytes(tiny_backbone()))
    boost.warm(prompt("a", "b"))
    assert boost.pin(prompt("a", "b")) == 188
    assert boost.stats().cache.tiers.pinned == 1

    def crowd(name):
        for number in range(12):
            boost.warm(prompt(f"{name} {number}", f"more {name} {number}", question=f"{number}"))

    crowd("one")
    assert boost.plan(prompt("a", "b")).exact == 188
    assert boost.unpin(prompt("a", "b")) == 188
    assert boost.stats().cache.tiers.pinned == 0
    for number in range(3):
        crowd(f"two {number}")
    assert boost.plan(prompt("a", "b")).exact == 0


def test_pins_that_fill_the_budget_leave_everything_right(engine, tiny_backbone):
    boost = engine(budget_bytes=200 * token_bytes(tiny_backbone()))
    boost.warm(prompt("a", "b"))
    boost.pin(prompt("a", "b"))
    for _ in range(2):
        assert boost.warm(prompt("c", "d", question="!")).kept_tokens == 0
    first = boost.first_token(prompt("x", "b"))
    assert first.placed.split.moved + first.placed.split.repaired > 0


def test_pinning_what_is_not_kept_is_refused(engine):
    boost = engine()
    for change in (boost.pin, boost.unpin):
        with pytest.raises(InputError, match="nothing of this text is kept; warm it first"):
            change(prompt("a"))


def test_of_a_text_that_is_invalidated_nothing_is_left_and_others_stay(engine):
    boost = engine()
    boost.warm(prompt("a", "b"))
    boost.generate(prompt("x", "b"), 0, reuse="exact")
    boost.warm(prompt("c", "d"))
    boost.generate([*piece("e"), *piece("b")], 40)
    assert holds(boost, piece("b")[20:60])
    assert boost.invalidate(piece("b")) == 2
    for at in range(0, 90 - 16):
        assert not holds(boost, piece("b")[at : at + 16])
    assert boost.plan(prompt("y", "b", question="!")).moved == 0
    assert boost.plan(prompt("c", "d")).exact == 188
    assert boost.invalidate(piece("b")) == 0


@pytest.mark.parametrize("place", [236, 240, 245, 250, 255, 256])
def test_a_text_across_the_border_of_two_runs_is_forgotten_too(engine, place):
    boost, text = engine(), piece("text", 20)
    boost.warm([*piece("before", place), *text, *piece("behind", 60)])
    assert boost.stats().cache.runs == 2
    boost.invalidate(text)
    for at in range(0, 20):
        for length in range(2, 21 - at):
            assert not holds(boost, text[at : at + length])


def test_a_text_where_two_prompts_part_is_forgotten_too(engine):
    boost, text = engine(), piece("text", 40)
    boost.warm([*piece("before", 100), *text[:12], *piece("one", 60)])
    boost.warm([*piece("before", 100), *text, *piece("two", 60)])
    boost.warm(prompt("other"))
    assert boost.invalidate(text) == 2
    assert boost.plan(prompt("other")).exact == 98
    assert boost.stats().cache.runs == 1


def test_a_short_text_is_forgotten_wherever_it_stands(engine, tmp_path):
    folder = save_tiny_model(tmp_path, SUPPORTED["llama"])
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer.save_pretrained(folder)
    boost = engine(load(str(folder), device="cpu"))
    secret = "the password is 714"
    boost.warm(SHEEP * 2)
    boost.warm(f"{RIVER * 3}{secret}. {RIVER}")
    assert 0 < len(boost.backbone.tokenize(secret).ids) < 16
    assert boost.invalidate(f" {secret}") + boost.invalidate(secret) >= 1
    ids = boost.backbone.tokenize(secret).ids
    assert not holds(boost, ids)
    assert boost.plan(SHEEP * 2).exact > 0


def test_everything_is_forgotten_at_once(engine, tmp_path):
    boost = engine(folder=tmp_path)
    boost.warm(prompt("a", "b", "c"))
    boost.warm(prompt("d"))
    assert boost.invalidate() == 3
    assert boost.invalidate() == 0
    stats = boost.stats().cache
    assert (stats.runs, stats.tokens, stats.tiers.disk_blocks, stats.tiers.memory_bytes) == (
        0,
        0,
        0,
        0,
    )
    assert not list(tmp_path.rglob("*.safetensors"))
    assert boost.plan(prompt("a", "b")).computed == 189


def test_what_was_forgotten_is_kept_again_when_it_is_seen_again(engine, tiny_backbone):
    boost, ids = engine(), prompt("a", "b")
    boost.warm(ids)
    boost.invalidate(ids)
    assert boost.warm(ids).kept_tokens == len(ids)
    first = boost.first_token(ids)
    assert first.placed.split.exact == len(ids) - 1
    assert gap(first.placed.logits[0], own_logits(tiny_backbone(), ids)[-1]) < 1e-5


def test_stats_count_what_is_kept(engine, tiny_backbone):
    boost = engine()
    assert boost.stats().cache.tokens == 0
    boost.warm(prompt("a", "b", "c"))
    boost.warm([*piece("x", 30), *piece("b"), *piece("y")])
    stats = boost.stats().cache
    assert (stats.runs, stats.exact_runs, stats.tokens) == (4, 3, 279 + 30 + 90)
    assert stats.tiers.memory_bytes == stats.tokens * token_bytes(tiny_backbone())
    assert stats.tiers.memory_blocks == stats.runs


def test_text_ids_and_text_are_the_same_prompt(engine):
    boost = engine()
    boost.warm(RIVER * 2 + SHEEP)
    ids = boost.backbone.tokenize(RIVER * 2 + SHEEP).ids
    assert boost.plan(ids).exact == len(ids) - 1


def test_an_engine_is_used_in_a_with_block_and_loads_models_by_folder(tiny_folder, tmp_path):
    for exact in (False, True):
        with KVBoost.from_pretrained(
            str(tiny_folder("llama")),
            budget_bytes=10**6,
            folder=str(tmp_path),
            device="cpu",
            repair="none",
        ) as boost:
            assert (boost.plan(RIVER * 3).exact > 0) == exact
            boost.warm(RIVER * 3)


def test_the_default_strategy_is_auto_and_the_default_chunks_are_by_content(monkeypatch, engine):
    names = KVBoost.from_pretrained.__func__.__kwdefaults__
    assert (names["repair"], names["boundaries"], names["codec"]) == ("auto", "content", "raw")
    assert names["chunk_tokens"] == engine_module.BOOST_CHUNK_TOKENS


@pytest.mark.parametrize("bad", ["", [], (), [400], [-1], [1.5], b"sheep", None, 7, [[1, 2]]])
def test_every_door_refuses_a_prompt_that_is_none(engine, bad):
    boost = engine()
    doors = [boost.generate, boost.stream, boost.warm, boost.plan, boost.pin, boost.unpin]
    doors += [lambda prompt: boost.generate_many([prompt])]
    doors += [] if bad is None else [boost.invalidate]
    for door in doors:
        with pytest.raises(InputError):
            door(bad)
    assert boost.stats().prompts == 0
