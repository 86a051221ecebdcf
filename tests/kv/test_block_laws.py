"""Laws of the algebra: moving, slicing and joining KV blocks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coinkv.errors import InputError
from coinkv.kv.block import KVBlock, concat
from coinkv.kv.rope import Rope

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def rope(layout="half", pairs=4, layers=1):
    frequencies = 1.0 / (10000.0 ** (torch.arange(pairs) / pairs))
    return Rope(frequencies.expand(layers, pairs).clone(), layout)


@st.composite
def blocks(draw, dtype=torch.float32):
    tokens = draw(st.integers(1, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    keys, values = torch.randn(2, 2, 3, tokens, 12, generator=generator).to(dtype)
    start = draw(st.integers(0, 4000))
    return KVBlock(keys, values, torch.arange(start, start + tokens))


layouts = st.sampled_from(["half", "interleaved"])
places = st.integers(0, 8000)


@given(blocks(), layouts, places, places)
@settings(max_examples=60, deadline=None)
def test_moving_twice_equals_moving_once(block, layout, a, b):
    r = rope(layout)
    at = torch.arange(len(block))
    twice = block.moved_to(at + a, r).moved_to(at + b, r)
    torch.testing.assert_close(twice.keys, block.moved_to(at + b, r).keys, atol=1e-5, rtol=1e-5)
    assert torch.equal(twice.positions, at + b)


@given(blocks(), layouts, places)
@settings(max_examples=60, deadline=None)
def test_slicing_commutes_with_moving(block, layout, to):
    r, at = rope(layout), torch.arange(len(block)) + to
    start, end = len(block) // 3, len(block)
    sliced_then_moved = block[start:end].moved_to(at[start:end], r)
    assert torch.equal(sliced_then_moved.keys, block.moved_to(at, r)[start:end].keys)
    assert torch.equal(sliced_then_moved.values, block.values[:, :, start:end])


@given(blocks(), blocks(), blocks())
@settings(max_examples=40, deadline=None)
def test_joining_is_associative_and_undone_by_slicing(a, b, c):
    left, right = concat([concat([a, b]), c]), concat([a, concat([b, c])])
    assert torch.equal(left.keys, right.keys)
    assert torch.equal(left.positions, right.positions)
    middle = left[len(a) : len(a) + len(b)]
    assert torch.equal(middle.keys, b.keys)
    assert torch.equal(middle.values, b.values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_move_by_zero_keeps_every_bit(dtype, layout):
    keys = torch.randn(2, 3, 5, 12).to(dtype)
    keys[0, 0, 0, :4] = torch.tensor([-0.0, 0.0, float("inf"), float("nan")]).to(dtype)
    block = KVBlock(keys, keys.clone(), torch.tensor([3, 4, 9, 2, 7]))
    same = block.moved_to(block.positions, rope(layout))
    assert same.keys.view(torch.uint8).equal(keys.view(torch.uint8))
    partly = block.moved_to(torch.tensor([3, 14, 9, 12, 7]), rope(layout))
    stays = [0, 2, 4]
    assert (
        partly.keys[:, :, stays]
        .contiguous()
        .view(torch.uint8)
        .equal(keys[:, :, stays].contiguous().view(torch.uint8))
    )
    assert not torch.equal(partly.keys[:, :, 1], keys[:, :, 1])


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-4), (torch.float16, 2e-2), (torch.bfloat16, 2e-1)]
)
def test_a_hundred_moves_and_back_stay_near(dtype, bound):
    keys = torch.randn(1, 2, 8, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    block = KVBlock(keys, keys.clone(), torch.arange(8))
    r = rope(pairs=8)
    for step in range(100):
        block = block.moved_to(torch.arange(8) + 37 * (step + 1), r)
    back = block.moved_to(torch.arange(8), r)
    assert float((back.keys - keys).abs().max()) < bound


def test_partial_rotary_leaves_the_rest_of_the_head_alone():
    keys = torch.randn(1, 2, 6, 16)
    moved = KVBlock(keys, keys, torch.arange(6)).moved_to(torch.arange(6) + 50, rope(pairs=4))
    assert torch.equal(moved.keys[..., 8:], keys[..., 8:])
    assert not torch.equal(moved.keys[..., :8], keys[..., :8])


def test_a_layer_with_zero_frequencies_does_not_rotate():
    frequencies = torch.stack([rope().inv_freq[0], torch.zeros(4)])
    keys = torch.randn(2, 3, 6, 12)
    block = KVBlock(keys, keys, torch.arange(6))
    moved = block.moved_to(torch.arange(6) + 9, Rope(frequencies, "half"))
    assert torch.equal(moved.keys[1], keys[1])
    assert not torch.equal(moved.keys[0], keys[0])


@given(blocks())
@settings(max_examples=30, deadline=None)
def test_token_major_and_back_is_the_identity(block):
    kv = block.token_major()
    assert kv.shape == (len(block), 2, 2, 3, 12)
    back = KVBlock.from_token_major(kv, block.positions)
    assert torch.equal(back.keys, block.keys)
    assert torch.equal(back.values, block.values)


def test_bad_shapes_are_named():
    keys = torch.randn(1, 2, 6, 8)
    with pytest.raises(InputError, match="not both"):
        KVBlock(keys, keys[:, :, :5], torch.arange(6))
    with pytest.raises(InputError, match="positions must be int64"):
        KVBlock(keys, keys, torch.arange(5))
    with pytest.raises(InputError, match="float16"):
        KVBlock(keys, keys.half(), torch.arange(6))
    with pytest.raises(InputError, match="empty list"):
        concat([])
    with pytest.raises(InputError, match="cannot move"):
        KVBlock(keys, keys, torch.arange(6)).moved_to(torch.arange(5), rope())
