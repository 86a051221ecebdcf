"""Exact reuse: behind the very same tokens the stored KV itself is used, and nothing else is."""

from __future__ import annotations

import pytest
import torch
from pieces import gap, own_answer, own_logits, piece, prompt, same_bits, stored

from tiny_models import SUPPORTED, VOCABULARY

RUN = 256


def parted(ids, place):
    """A prompt that goes another way from a place on."""
    return [*ids[:place], (ids[place] - 1) % (VOCABULARY - 2) + 2, *piece("tail", 3)]


def test_at_every_prefix_length_the_logits_are_those_of_a_plain_prefill(engine, tiny_backbone):
    boost, known = engine(), piece("known", 300)
    boost.warm(known)
    expected = own_logits(tiny_backbone(), known)
    for length in range(1, 301):
        first = boost.first_token(known[:length])
        assert (first.placed.split.exact, first.placed.split.computed) == (length - 1, 1)
        logits = first.placed.logits[0]
        assert float((logits - expected[length - 1]).abs().max()) < 1e-3
        assert int(logits.argmax()) == int(expected[length - 1].argmax())


@pytest.mark.parametrize("length", [0, 1, 2, 15, 16, 17, 100, 254, RUN - 1, RUN, RUN + 1, 298])
def test_a_prompt_that_parts_from_a_known_one_gets_the_logits_of_a_plain_prefill(
    engine, tiny_backbone, length
):
    boost, known = engine(), piece("known", 300)
    boost.warm(known)
    ids = parted(known, length)
    first = boost.first_token(ids)
    assert (first.placed.split.exact, first.placed.split.computed) == (length, len(ids) - length)
    expected = own_logits(tiny_backbone(), ids)[-1]
    assert float((first.placed.logits[0] - expected).abs().max()) < 1e-3
    assert int(first.placed.logits[0].argmax()) == int(expected.argmax())


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_every_architecture_reuses_a_prefix_exactly(engine, tiny_backbone, name):
    boost, backbone = engine(name), tiny_backbone(name)
    known = piece("known", 200)
    boost.warm(known)
    for length in (1, 77, 199):
        ids = parted(known, length)
        first = boost.first_token(ids)
        assert first.placed.split.exact == length
        assert gap(first.placed.logits[0], own_logits(backbone, ids)[-1]) < 1e-5


def test_the_kv_used_is_the_stored_kv_bit_for_bit(engine):
    boost, known = engine(), piece("known", 300)
    made = boost.first_token(known).placed.live.block()
    boost.warm(known)
    for length in (1, 100, RUN - 1, RUN, RUN + 1, 299):
        used = boost.first_token(parted(known, length)).placed.live.block(0, length)
        assert same_bits(used, made[:length])
        assert used.positions.tolist() == list(range(length))


def test_the_same_prompt_again_computes_its_last_token_only(engine, tiny_backbone):
    boost, ids = engine(), prompt("a", "b", "c")
    first = boost.generate(ids, 20)
    again = boost.generate(ids, 20)
    assert (first.reuse.computed, first.reuse.exact) == (len(ids), 0)
    assert (again.reuse.computed, again.reuse.exact) == (1, len(ids) - 1)
    assert again.token_ids == first.token_ids
    assert list(first.token_ids) == own_answer(tiny_backbone(), ids, 20)


def test_a_prompt_that_is_the_beginning_of_an_earlier_one_is_reused(engine, tiny_backbone):
    boost, ids = engine(), prompt("a", "b", "c")
    boost.warm(ids)
    for length in (2, 50, 255, 256, 257):
        first = boost.first_token(ids[:length])
        assert first.placed.split.exact == length - 1
        assert gap(first.placed.logits[0], own_logits(tiny_backbone(), ids[:length])[-1]) < 1e-5


@pytest.mark.parametrize("place", [40, RUN - 1, RUN, RUN + 1, 270, 290])
def test_prompts_that_part_anywhere_share_what_they_have_in_common(engine, tiny_backbone, place):
    boost, one = engine(), piece("one", 300)
    two = [*one[:place], *piece("two", 60)]
    three = [*two[: place + 30], *piece("three", 20)]
    for ids in (one, two, three):
        boost.warm(ids)
    for ids, common in ((one, 299), (two, place + 59), (three, place + 49)):
        first = boost.first_token(ids)
        assert first.placed.split.exact == common
        assert gap(first.placed.logits[0], own_logits(tiny_backbone(), ids)[-1]) < 1e-5


def test_what_is_kept_of_two_prompts_that_part_is_kept_once(engine):
    boost, one = engine(), piece("one", 300)
    two = [*one[:120], *piece("two", 60)]
    assert boost.warm(one).kept_tokens == 300
    assert boost.warm(two).kept_tokens == 60
    assert boost.warm(two).kept_tokens == 0
    assert boost.stats().cache.tokens == 360


def test_a_conversation_is_reused_exactly_turn_by_turn(engine, tiny_backbone):
    boost, backbone = engine(), tiny_backbone()
    talk = piece("system", 60)
    for turn in range(4):
        asked = [*talk, *piece(f"turn {turn}", 20)]
        result = boost.generate(asked, 24)
        assert list(result.token_ids) == own_answer(backbone, asked, 24)
        if turn:
            # all but the answer's last token, which was chosen and never computed
            assert result.reuse.exact == len(talk) - 1
            assert result.reuse.moved == result.reuse.repaired == 0
        talk = [*asked, *result.token_ids]


@pytest.mark.parametrize("chunk_tokens", [16, 64])
@pytest.mark.parametrize("known", [(), ("another way on",)])
def test_an_answer_to_a_prompt_that_was_kept_before_is_reused_by_the_next_turn(
    engine, chunk_tokens, known
):
    boost, asked = engine(chunk_tokens=chunk_tokens), piece("asked", 100)
    boost.warm([*asked, *(token for name in known for token in piece(name, 30))])
    answer = boost.generate(asked, 40).token_ids
    assert len(answer) == 40
    plan = boost.plan([*asked, *answer, *piece("next", 20)])
    assert plan.exact == 100 + 39
    assert boost.generate(asked, 40).kept_tokens == 0


def test_using_kv_changes_no_bit_of_what_is_stored(engine):
    boost, known = engine(), prompt("a", "b")
    boost.warm(known)
    before = stored(boost, known)
    for other in (prompt("b", "a"), prompt("a"), prompt("x", "b"), prompt("a", "x", "b")):
        for repair in ("selective", "cacheblend", "epic", "none"):
            boost.first_token(other, repair=repair)
    assert same_bits(stored(boost, known), before)


def test_the_same_stored_kv_used_twice_gives_the_same_logits(engine):
    boost = engine()
    boost.warm(prompt("a", "b", "c"))
    for ids in (prompt("a", "b"), prompt("c", "a"), prompt("x", "c")):
        once, twice = (boost.first_token(ids).placed.logits for _ in range(2))
        assert torch.equal(once, twice)


def test_fewer_tokens_than_are_worth_keeping_are_computed_again_and_lose_no_later_ones(engine):
    boost, known = engine(), piece("known", 100)
    boost.warm(known)
    boost.warm([*known, *piece("few", 10)])
    assert boost.stats().cache.tokens == 100
    longer = [*known, *piece("few", 10), *piece("more", 10)]
    assert boost.warm(longer).kept_tokens == 20
    assert boost.plan([*longer, 5]).exact == 120
