"""Rows: answers that join and leave while others go on, each as if it were alone."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coinkv.errors import InputError
from coinkv.model.decode import Choice, Sampling, decode
from coinkv.model.fill import LiveCache, fill
from coinkv.model.rows import Rows

TEXT = "Seven herons stand in the cold water above the weir and wait for the trout to come by. " * 3


@pytest.fixture
def backbone(tiny_backbone):
    return replace(tiny_backbone(), end_token_ids=frozenset())


def filled(backbone, tokens, room=40):
    ids = backbone.tokenize(TEXT).ids[:tokens]
    cache = LiveCache.for_backbone(backbone, tokens + room)
    return cache, fill(backbone, cache, ids, torch.arange(tokens))


def alone(backbone, tokens, answer):
    cache, logits = filled(backbone, tokens)
    return [piece.token_id for piece in decode(backbone, cache, logits, Sampling(answer))]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=7
    )
)
def test_whoever_joins_or_leaves_the_others_go_on_as_if_alone(backbone, arrivals):
    arrivals = sorted(arrivals)
    rows, who, tokens, step = Rows(backbone), [], {}, 0
    waiting = list(enumerate(arrivals))
    while waiting or who:
        while waiting and waiting[0][1][0] <= step:
            number, (_, prompt, answer) = waiting.pop(0)
            cache, logits = filled(backbone, prompt)
            choice = Choice(backbone, cache, Sampling(answer))
            tokens[number] = choice.token_ids
            if choice.take(logits[-1]):
                rows.add(cache)
                who.append(choice)
        if who:
            logits = rows.step([choice.token for choice in who])
            ended = [row for row, choice in enumerate(who) if not choice.take(logits[row])]
            for row in reversed(ended):
                rows.remove(row)
                who[row] = who[-1]
                who.pop()
        assert len(rows) == len(who)
        step += 1
    for number, (_, prompt, answer) in enumerate(arrivals):
        assert tokens[number] == alone(backbone, prompt, answer)


def test_a_rows_kv_is_what_decoding_alone_would_have_written(backbone):
    rows, token = Rows(backbone), 5
    for prompt in (50, 9):
        rows.add(filled(backbone, prompt)[0])
    rows.step([3, token])
    rows.step([4, token])
    rows.remove(0)  # the second is the first now
    block = rows.block(0, 9)
    cache, _ = filled(backbone, 9)
    for at in (9, 10):
        fill(backbone, cache, [token], torch.tensor([at]))
    own = cache.block(9)
    assert block.positions.tolist() == own.positions.tolist() == [9, 10]
    torch.testing.assert_close(block.keys, own.keys, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(block.values, own.values, atol=1e-5, rtol=1e-4)


def test_a_single_row_computes_bit_for_bit_what_decoding_alone_does(backbone):
    cache, _ = filled(backbone, 30)
    rows = Rows(backbone)
    rows.add(cache)
    together = rows.step([7])
    assert torch.equal(together[0], fill(backbone, cache, [7], torch.tensor([30]))[-1])


def test_the_caches_are_not_changed(backbone):
    cache, _ = filled(backbone, 20)
    before = cache.block()
    rows = Rows(backbone)
    rows.add(cache)
    rows.step([7])
    assert cache.length == 20
    assert torch.equal(cache.block().keys, before.keys)


def test_each_row_needs_its_token(backbone):
    rows = Rows(backbone)
    rows.add(filled(backbone, 5)[0])
    with pytest.raises(InputError, match="2 tokens do not go to 1 rows"):
        rows.step([1, 2])
    rows.remove(0)
    with pytest.raises(InputError, match="0 rows"):
        rows.step([])
