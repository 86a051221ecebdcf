"""The exactness ladder over tiny random models of every supported architecture."""

from __future__ import annotations

import pytest
import torch

from coinkv.errors import InputError
from coinkv.kv.block import KVBlock, concat
from coinkv.model.fill import LiveCache, fill
from tiny_models import SUPPORTED, VOCABULARY

ALL = sorted(SUPPORTED)


def random_ids(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (n,), generator=generator).tolist()


def encoded(backbone, ids, start=0):
    cache = LiveCache.for_backbone(backbone, len(ids))
    fill(backbone, cache, ids, torch.arange(start, start + len(ids)), logits="none")
    return cache.block()


def own_output(backbone, ids):
    """What transformers computes by itself: logits and its own cache."""
    with torch.no_grad():
        output = backbone.model(torch.tensor([ids]), use_cache=True)
    return output.logits[0].float(), output[backbone.cache_argument]


def suffix_logits(backbone, cache, ids, start):
    return fill(backbone, cache, ids, torch.arange(start, start + len(ids)), logits="all")


def close(a, b, tolerance):
    return float((a - b).abs().max()) <= tolerance * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("name", ALL)
def test_rung_1_a_block_cut_from_a_prefill_equals_the_models_own_cache(tiny_backbone, name):
    backbone, ids = tiny_backbone(name), random_ids(40)
    block = encoded(backbone, ids)[7:31]
    _, own = own_output(backbone, ids)
    for layer in range(backbone.shape.layers):
        torch.testing.assert_close(block.keys[layer], own.layers[layer].keys[0, :, 7:31])
        torch.testing.assert_close(block.values[layer], own.layers[layer].values[0, :, 7:31])
    assert block.positions.tolist() == list(range(7, 31))


@pytest.mark.parametrize("offset", [1, 37, 200])
@pytest.mark.parametrize("name", ALL)
def test_rung_2_moved_keys_equal_keys_encoded_at_the_target(tiny_backbone, name, offset):
    backbone, ids = tiny_backbone(name), random_ids(40)
    there = encoded(backbone, ids, start=offset)
    moved = encoded(backbone, ids).moved_to(there.positions, backbone.rope)
    assert close(moved.keys[0], there.keys[0], 1e-6)
    assert close(moved.keys, there.keys, 2e-4)
    assert close(moved.values, there.values, 2e-4)


@pytest.mark.parametrize("name", ALL)
def test_rung_2_unmoved_keys_would_be_wrong(tiny_backbone, name):
    backbone, ids = tiny_backbone(name), random_ids(40)
    there = encoded(backbone, ids, start=37)
    assert not close(encoded(backbone, ids).keys[0], there.keys[0], 1e-2)


@pytest.mark.parametrize("name", ALL)
def test_rung_3_a_chunk_behind_its_own_prefix_gives_the_logits_of_full_prefill(tiny_backbone, name):
    backbone, ids = tiny_backbone(name), random_ids(60)
    behind = LiveCache.for_backbone(backbone, 45)
    fill(backbone, behind, ids[:15], torch.arange(15), logits="none")
    fill(backbone, behind, ids[15:45], torch.arange(15, 45), logits="none")
    prefix, chunk = behind.block(0, 15), behind.block(15, 45)
    cache = LiveCache.for_backbone(backbone, 60)
    cache.append(prefix)
    cache.append(chunk.moved_to(torch.arange(15, 45), backbone.rope))
    reference, _ = own_output(backbone, ids)
    assert close(suffix_logits(backbone, cache, ids[45:], 45), reference[45:], 1e-5)


def composed_out_of_order(backbone, ids):
    """Three pieces of `ids`, each encoded alone, joined in the order of `ids`."""
    blocks = [encoded(backbone, ids[a:b]) for a, b in ((0, 20), (20, 31), (31, 50))]
    joined = concat(blocks)
    return joined.moved_to(torch.arange(50), backbone.rope)


@pytest.mark.parametrize("name", ALL)
def test_rung_5_repairing_every_token_equals_full_prefill(tiny_backbone, name):
    backbone, ids = tiny_backbone(name), random_ids(60, seed=1)
    reference, _ = own_output(backbone, ids)
    cache = LiveCache.for_backbone(backbone, 60)
    cache.append(composed_out_of_order(backbone, ids))
    unrepaired = suffix_logits(backbone, cache, ids[50:], 50)
    assert not close(unrepaired, reference[50:], 1e-3)
    cache.truncate(50)
    fill(backbone, cache, ids[:50], torch.arange(50), logits="none")
    assert close(suffix_logits(backbone, cache, ids[50:], 50), reference[50:], 1e-5)


@pytest.mark.parametrize("name", ALL)
def test_rung_5_holds_for_slots_in_any_order_and_live_tokens_in_any_order(tiny_backbone, name):
    backbone, ids = tiny_backbone(name), random_ids(60, seed=2)
    reference, _ = own_output(backbone, ids)
    cache = LiveCache.for_backbone(backbone, 60)
    composed = composed_out_of_order(backbone, ids)
    cache.append(concat([composed[30:], composed[:30]]))  # slots out of the order of positions
    live = torch.randperm(50, generator=torch.Generator().manual_seed(3))
    fill(backbone, cache, [ids[i] for i in live], live, logits="none")
    assert close(suffix_logits(backbone, cache, ids[50:], 50), reference[50:], 1e-5)


@pytest.mark.parametrize("name", ALL)
def test_a_hole_between_exact_blocks_is_filled_as_full_prefill_would(tiny_backbone, name):
    backbone, ids = tiny_backbone(name), random_ids(50, seed=4)
    whole = encoded(backbone, ids)
    cache = LiveCache.for_backbone(backbone, 50)
    cache.append(whole[:12])
    cache.append(whole[29:40])
    live = torch.tensor([*range(12, 29), *range(40, 50)])
    logits = fill(backbone, cache, [ids[i] for i in live], live)
    reference, _ = own_output(backbone, ids)
    assert close(logits[0], reference[-1], 1e-5)
    order = cache.positions.argsort()
    assert close(cache.block().keys[:, :, order], whole.keys, 1e-5)
    assert close(cache.block().values[:, :, order], whole.values, 1e-5)


@pytest.mark.parametrize("name", ALL)
def test_decoding_one_token_at_a_time_equals_full_prefill(tiny_backbone, name):
    backbone, ids = tiny_backbone(name), random_ids(30, seed=5)
    reference, _ = own_output(backbone, ids)
    cache = LiveCache.for_backbone(backbone, 30)
    fill(backbone, cache, ids[:20], torch.arange(20))
    for at in range(20, 30):
        logits = fill(backbone, cache, [ids[at]], torch.tensor([at]))
        assert close(logits[0], reference[at], 1e-5)


def test_using_a_block_changes_no_bit_of_it(tiny_backbone):
    backbone, ids = tiny_backbone("llama"), random_ids(30)
    block = encoded(backbone, ids)
    before = (block.keys.clone(), block.values.clone(), block.positions.clone())
    for _ in range(2):
        cache = LiveCache.for_backbone(backbone, 60)
        cache.append(block[3:20].moved_to(torch.arange(17), backbone.rope))
        fill(backbone, cache, ids[:5], torch.arange(5))  # repairs part of it in place
        fill(backbone, cache, ids[:9], torch.arange(17, 26))
    assert torch.equal(block.keys, before[0])
    assert torch.equal(block.values, before[1])
    assert torch.equal(block.positions, before[2])


def test_the_same_context_used_twice_gives_the_same_logits(tiny_backbone):
    backbone, ids = tiny_backbone("llama"), random_ids(40)
    cache = LiveCache.for_backbone(backbone, 60)
    cache.append(encoded(backbone, ids))
    first = suffix_logits(backbone, cache, ids[:9], 40)
    cache.truncate(40)
    assert torch.equal(first, suffix_logits(backbone, cache, ids[:9], 40))


@pytest.mark.parametrize("name", ["gemma2-sliding", "mistral-sliding", "gemma3-two-thetas"])
def test_sliding_models_are_right_up_to_their_window_and_refused_beyond(tiny_backbone, name):
    backbone = tiny_backbone(name)
    assert backbone.context_length == 256
    ids = random_ids(256, seed=6)
    cache = LiveCache.for_backbone(backbone, 256)
    cache.append(encoded(backbone, ids[:200]))
    reference, _ = own_output(backbone, ids)
    assert close(suffix_logits(backbone, cache, ids[200:], 200), reference[200:], 1e-5)
    with pytest.raises(InputError, match="context window"):
        backbone.require_room(257, "this question")


def test_fill_rejects_arguments_that_do_not_fit(tiny_backbone):
    backbone = tiny_backbone("llama")
    cache = LiveCache.for_backbone(backbone, 4)
    with pytest.raises(InputError, match="3 tokens do not go to 2 positions"):
        fill(backbone, cache, [1, 2, 3], torch.arange(2))
    with pytest.raises(InputError, match="cannot hold 5"):
        fill(backbone, cache, [1] * 5, torch.arange(5))
    assert cache.length == 0


def test_blocks_of_another_shape_do_not_join(tiny_backbone):
    a = encoded(tiny_backbone("llama"), random_ids(5))
    b = encoded(tiny_backbone("qwen3"), random_ids(5))
    with pytest.raises(InputError, match="different models"):
        concat([a, b])
    with pytest.raises(InputError, match="int64"):
        KVBlock(a.keys, a.values, a.positions.int())
