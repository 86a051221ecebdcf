"""A backbone whose passes are bounded computes the same in several."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coinkv.model.fill import LiveCache, fill
from coinkv.model.turns import Turns

IDS = [int(n) for n in torch.randint(3, 300, (120,), generator=torch.Generator().manual_seed(5))]


def close(one, other):
    torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@pytest.fixture
def passes(tiny_backbone):
    """A backbone of bounded passes, and the tokens of each pass that it makes."""
    told = []
    turns = Turns(on_turn=lambda streams, tokens, seconds: told.append(tokens))
    return replace(tiny_backbone(), pass_tokens=32, turns=turns), told


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(1, 120), st.sampled_from(["last", "all", "none"]))
def test_a_prompt_in_passes_gives_what_one_pass_gives(tiny_backbone, passes, count, logits):
    backbone, told = passes
    told.clear()
    whole, parts = (LiveCache.for_backbone(backbone, count) for _ in range(2))
    live = torch.arange(count)
    want = fill(tiny_backbone(), whole, IDS[:count], live, logits=logits)
    got = fill(backbone, parts, IDS[:count], live, logits=logits)
    assert sum(told) == count
    assert max(told) <= 32
    close(parts.block().keys, whole.block().keys)
    if want is None:
        assert got is None
    else:
        close(got, want)


def test_slots_that_are_reserved_for_later_are_never_looked_at(tiny_backbone, passes):
    backbone, _ = passes
    cache = LiveCache.for_backbone(backbone, 130)
    cache.keys.fill_(float("nan"))
    cache.values.fill_(float("nan"))
    cache.reserve(torch.arange(120))
    got = fill(backbone, cache, IDS, torch.arange(120))
    whole = LiveCache.for_backbone(backbone, 120)
    close(got, fill(tiny_backbone(), whole, IDS, torch.arange(120)))


def test_holes_between_what_is_there_are_computed_in_passes_too(tiny_backbone, passes):
    backbone, told = passes
    whole = LiveCache.for_backbone(backbone, 120)
    want = fill(tiny_backbone(), whole, IDS, torch.arange(120))
    cache = LiveCache.for_backbone(backbone, 120)
    cache.append(whole.block())
    holes = torch.tensor([*range(10, 60), *range(80, 120)])
    cache.keys[:, :, holes] = 7.0
    got = fill(backbone, cache, [IDS[int(at)] for at in holes], holes)
    assert len(told) == 3
    close(got, want)
    close(cache.block().keys, whole.block().keys)


def test_vectors_in_place_of_tokens_go_with_their_pass(tiny_backbone, passes):
    backbone, _ = passes
    size = backbone.model.config.hidden_size
    vectors = {at: torch.full((size,), 0.01 * at) for at in (0, 31, 40, 99)}
    results = []
    for each in (tiny_backbone(), backbone):
        cache = LiveCache.for_backbone(each, 100)
        results.append(fill(each, cache, IDS[:100], torch.arange(100), embeddings=vectors))
    close(*results)


def test_positions_out_of_order_go_in_one_pass(passes):
    backbone, told = passes
    cache = LiveCache.for_backbone(backbone, 60)
    fill(backbone, cache, IDS[:60], torch.arange(59, -1, -1))
    assert told == [60]
