"""How a prompt is computed: in one pass, in several, or all of it though some is kept."""

from __future__ import annotations

import numpy as np
import pytest
from pieces import gap, own_logits, piece, prompt

import coinkv.boost.placing
from coinkv.errors import InputError
from coinkv.repair.epic import Epic
from coinkv.repair.selective import Selective


@pytest.fixture
def passes(monkeypatch):
    """Tokens of each forward pass."""
    counted = []
    fill = coinkv.boost.placing.fill

    def counting(backbone, cache, token_ids, live, **options):
        counted.append(len(live))
        return fill(backbone, cache, token_ids, live, **options)

    monkeypatch.setattr(coinkv.boost.placing, "fill", counting)
    return counted


def test_many_new_tokens_behind_kept_ones_are_computed_in_passes_of_512(engine, reader, passes):
    boost = engine(reader)
    known, new = piece("known", 400), piece("new", 1500)
    boost.warm(known)
    passes.clear()
    first = boost.first_token([*known, *new])
    assert first.placed.split.exact == 400
    assert passes == [512, 512, 476]
    assert gap(first.placed.logits[0], own_logits(reader, [*known, *new])[-1]) < 1e-5


def test_the_last_pass_is_never_a_short_one(engine, reader, passes):
    boost = engine(reader)
    for count in (767, 768, 769, 1023, 1024, 1030, 1280):
        boost.invalidate()
        known, new = piece("known", 400), piece("new", count)
        boost.warm(known)
        passes.clear()
        boost.first_token([*known, *new])
        assert sum(passes) == count
        assert passes == [count] or min(passes) >= 256


@pytest.mark.parametrize("repair", [Selective(40), Epic(8)])
def test_holes_and_repaired_tokens_in_several_passes_see_what_stands_before(
    engine, reader, passes, repair
):
    boost = engine(reader)
    first, second, third = (piece(name, 500) for name in "abc")
    boost.warm([*first, *second])
    ids = [*third, *second, *piece("d", 600), *first, 9]
    passes.clear()
    split = boost.first_token(ids, repair=repair).placed.split
    assert split.moved > 500
    assert split.repaired > 0
    assert len(passes) > 1
    full = boost.first_token(ids, repair=Selective(10**6), reuse="all")
    assert gap(full.placed.logits[0], own_logits(reader, ids)[-1]) < 1e-5


def test_repair_in_several_passes_gives_what_one_pass_gives(engine, reader, passes, monkeypatch):
    boost = engine(reader, repair=Selective(40))
    first, second, third = (piece(name, 500) for name in "abc")
    boost.warm([*first, *second])
    ids = [*third, *second, *piece("d", 600), *first, 9]
    several = boost.first_token(ids).placed
    assert len(passes) > 2
    monkeypatch.setattr(coinkv.boost.placing, "PASS_TOKENS", 10**6)
    passes.clear()
    one = boost.first_token(ids).placed
    assert len(passes) == 1
    assert several.split == one.split
    assert gap(several.logits[0], one.logits[0]) < 1e-5
    assert np.allclose(several.live.view().keys, one.live.view().keys, atol=1e-5)


def test_too_little_to_be_worth_a_mask_is_computed_again(engine):
    boost = engine()
    boost.warm(prompt("a"))
    ids = [*piece("a")[:30], *piece("b", 300)]
    assert boost.plan(ids).exact == 0
    assert boost.plan(ids[:200]).exact == 30
    assert engine(least_reuse=0).plan(ids).computed == len(ids)
    every = engine(least_reuse=0)
    every.warm(prompt("a"))
    assert every.plan(ids).exact == 30


def test_what_was_computed_again_is_found_exactly_afterwards(engine, tiny_backbone):
    boost = engine()
    boost.warm(prompt("a"))
    ids = [*piece("a")[:30], *piece("b", 300)]
    boost.warm(ids)
    first = boost.first_token([*ids, 5])
    assert first.placed.split.exact == len(ids)
    assert gap(first.placed.logits[0], own_logits(tiny_backbone(), [*ids, 5])[-1]) < 1e-5


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(engine, share):
    with pytest.raises(InputError, match="least_reuse"):
        engine(least_reuse=share)
