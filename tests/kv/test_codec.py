"""Laws of the codecs: errors keep their bounds, groups leave each other alone, so do pages."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coinkv.errors import InputError
from coinkv.kv.codec import CODECS, PAGE_TOKENS, codec_named
from coinkv.kv.grid import packed, unpacked

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
QUANTISED = ["int8", "kivi"]
KEY_BOUND = (191, 607)
VALUE_BOUND = {"int8": (457, 4150), "kivi": (28.4, 43.8)}
KINDS = ["plain", "outlier channel", "outlier token", "constant", "far", "zero", "huge", "tiny"]


def page_lengths(tokens):
    full, rest = divmod(tokens, PAGE_TOKENS)
    return [PAGE_TOKENS] * full + [rest] * (rest > 0)


def decoded(name, kv):
    codec = codec_named(name)
    return codec.decode(codec.encode(kv), kv.shape[1:], kv.dtype, page_lengths(len(kv)))


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def made(tokens, layers, heads, dim, *, kinds=(), dtype=torch.float32, seed=0):
    """A block of normal numbers, some of whose channels or tokens are of another kind."""
    generator = torch.Generator().manual_seed(seed)
    kv = torch.randn(tokens, layers, 2, heads, dim, generator=generator, dtype=torch.float64)
    for number, kind in enumerate(kinds):
        channel, token = number % dim, number % tokens
        if kind == "outlier channel":
            kv[..., channel] *= 1000
        elif kind == "outlier token":
            kv[token] *= 1000
        elif kind == "constant":
            kv[..., channel] = 3.7
        elif kind == "far":
            kv[..., channel] += 150
        elif kind == "zero":
            kv[..., channel] = 0
            kv[token, 0] = 0
        elif kind == "huge":
            largest = min(torch.finfo(dtype).max, 1e30)
            kv[..., channel] = largest * kv[..., channel].sign()
        elif kind == "tiny":
            kv[..., channel] *= torch.finfo(dtype).tiny / 100
    return kv.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)


@st.composite
def blocks(draw):
    return made(
        draw(st.sampled_from([1, 31, 32, 33, 64, 65]) | st.integers(1, 70)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 9)),
        kinds=draw(st.lists(st.sampled_from(KINDS), max_size=4)),
        dtype=draw(st.sampled_from(DTYPES)),
        seed=draw(st.integers(0, 1000)),
    )


def bound_of(x, along, under, divisors):
    """The documented bound of every number: of its group's range R and largest magnitude M."""
    low, high = x.amin(along, keepdim=True), x.amax(along, keepdim=True)
    by_range, by_size = divisors
    own = torch.maximum((high - low) / by_range, x.abs().amax(along, keepdim=True) / by_size)
    floor = own.amax(under, keepdim=True) * 2**-15
    return torch.maximum(own, floor).clamp(min=2**-126).expand_as(x)


@pytest.mark.parametrize("name", QUANTISED)
@given(kv=blocks())
@settings(max_examples=150, deadline=None)
def test_every_number_is_within_its_documented_bound(name, kv):
    got = decoded(name, kv)
    assert (got.shape, got.dtype) == (kv.shape, kv.dtype)
    assert got.isfinite().all()
    finfo = torch.finfo(kv.dtype)
    for page, back in zip(kv.double().split(32), got.double().split(32), strict=True):
        for half, along, under, divisors in (
            (0, 0, 3, KEY_BOUND),
            (1, 3, 0, VALUE_BOUND[name]),
        ):
            x, y = page[:, :, half], back[:, :, half]
            bound = bound_of(x, along, under, divisors)
            rounding = (x.abs() + bound) * finfo.eps / 2 + finfo.tiny * finfo.eps
            assert bool(((x - y).abs() <= bound * (1 + 1e-4) + rounding).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_raw_keeps_every_bit_pattern(dtype):
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    every = every if dtype.itemsize == 2 else every.to(torch.int32) << 16
    kv = every.view(dtype).reshape(64, 4, 2, 8, 16)
    assert torch.equal(bits(decoded("raw", kv)), bits(kv))


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_are_exact(name, dtype):
    kv = made(33, 2, 2, 5, dtype=dtype)
    kv[:, :, 0, :, 2] = 0
    kv[7, :, 1] = 0
    got = decoded(name, kv)
    assert not got[:, :, 0, :, 2].any()
    assert not got[7, :, 1].any()
    assert not decoded(name, torch.zeros_like(kv)).any()


@pytest.mark.parametrize("name", QUANTISED)
@given(tokens=st.integers(1, 66), channel=st.integers(0, 8), factor=st.sampled_from([0, 10, 1000]))
@settings(max_examples=60, deadline=None)
def test_an_outlier_in_a_key_channel_changes_no_other_number(name, tokens, channel, factor):
    kv = made(tokens, 2, 2, 9)
    changed = kv.clone()
    changed[:, :, 0, :, channel] *= factor
    before, after = decoded(name, kv), decoded(name, changed)
    before[:, :, 0, :, channel] = after[:, :, 0, :, channel] = 0
    # steps reach 2**-15 of the largest under the same top: what is smaller is rounded to that
    floor = 2.0**-15 * float(changed[:, :, 0].abs().max()) / 95
    assert (before - after).abs().max() <= floor
    assert torch.equal(before[:, :, 1], after[:, :, 1])


@pytest.mark.parametrize("name", QUANTISED)
@given(tokens=st.integers(2, 66), token=st.integers(0, 65), factor=st.sampled_from([0, 10, 1000]))
@settings(max_examples=60, deadline=None)
def test_an_outlier_in_a_tokens_values_changes_no_other_number(name, tokens, token, factor):
    kv, token = made(tokens, 2, 2, 9), token % tokens
    changed = kv.clone()
    changed[token, :, 1] *= factor
    before, after = decoded(name, kv), decoded(name, changed)
    before[token, :, 1] = after[token, :, 1] = 0
    assert torch.equal(before, after)


@pytest.mark.parametrize("name", QUANTISED)
def test_keys_are_quantised_per_channel_and_values_per_token(name):
    kv = made(32, 1, 1, 64)
    per_channel, per_token = kv.clone(), kv.clone()
    per_channel[..., 5] *= 1000
    per_token[9] *= 1000
    others, rest = torch.arange(64) != 5, torch.arange(32) != 9
    from_channel = (decoded(name, per_channel) - per_channel).abs()[..., others].amax((0, 1, 3, 4))
    from_token = (decoded(name, per_token) - per_token).abs()[rest].amax((0, 1, 3, 4))
    assert from_channel[0] < 0.05 < 0.5 < from_channel[1]
    assert from_token[1] < 0.3 < 0.5 < from_token[0]


@pytest.mark.parametrize("name", QUANTISED)
def test_a_key_channel_far_from_zero_keeps_a_step_that_fits_its_range(name):
    kv = made(32, 1, 1, 16)
    kv[..., 3] += 150
    error = (decoded(name, kv) - kv)[:, 0, 0, 0, 3].abs().max()
    assert error <= (kv[:, 0, 0, 0, 3].abs().max() + 1e-3) / 607
    assert error < kv[:, 0, 0, 0, 3].abs().max() / 255 / 2  # what a step from zero would cost


@pytest.mark.parametrize("name", CODECS)
@given(kv=blocks(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_decoding_some_pages_equals_slicing_what_all_decode_to(name, kv, data):
    codec, lengths = codec_named(name), page_lengths(len(kv))
    coded, whole = codec.encode(kv), decoded(name, kv)
    sizes = [codec.page_bytes(kv.shape[1:], kv.dtype, tokens) for tokens in lengths]
    assert sum(sizes) == len(coded) == codec.block_bytes(kv.shape[1:], kv.dtype, len(kv))
    starts = [0, *itertools.accumulate(sizes)]
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=6))
    pages = [coded[starts[page] : starts[page + 1]] for page in chosen]
    some = codec.decode(
        torch.cat([coded[:0], *pages]), kv.shape[1:], kv.dtype, [lengths[page] for page in chosen]
    )
    expected = [whole[page * PAGE_TOKENS : (page + 1) * PAGE_TOKENS] for page in chosen]
    assert some.shape == (sum(len(rows) for rows in expected), *kv.shape[1:])
    assert torch.equal(bits(some), bits(torch.cat([whole[:0], *expected])))


@pytest.mark.parametrize("name", CODECS)
def test_a_page_is_written_the_same_whatever_stands_before_and_behind_it(name):
    codec, kv = codec_named(name), made(300, 2, 2, 7)
    alone = [codec.encode(page) for page in kv.split(PAGE_TOKENS)]
    assert torch.equal(codec.encode(kv), torch.cat(alone))


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_refused_with_what_to_do(name, dtype, half, bad):
    for token in (0, 31, 39):
        kv = made(40, 2, 2, 5, dtype=dtype)
        kv[token, 1, half, 1, 4] = bad
        with pytest.raises(InputError, match=f"{name} cannot hold NaN.*use the codec raw"):
            codec_named(name).encode(kv)


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_numbers_of_a_dtype_stay_finite(name, dtype):
    largest = torch.finfo(dtype).max
    for kv in (
        torch.full((33, 1, 2, 1, 4), largest, dtype=dtype),
        torch.tensor([largest, -largest, largest, 0], dtype=dtype).expand(33, 1, 2, 1, 4),
        made(33, 1, 1, 4, dtype=dtype).sign() * largest,
    ):
        got = decoded(name, kv)
        assert got.isfinite().all()
        torch.testing.assert_close(got.double(), kv.double(), rtol=0.08, atol=largest / 10)


@pytest.mark.parametrize("name", CODECS)
def test_the_block_may_be_a_view_and_is_left_alone(name):
    kv = made(40, 3, 2, 6)
    turned = kv.flip(1).transpose(3, 4)
    before = turned.clone()
    assert not turned.is_contiguous()
    got = decoded(name, turned.requires_grad_())
    assert torch.equal(turned, before)
    assert torch.equal(got, decoded(name, before))


@given(count=st.integers(1, 40), rows=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_packing_two_to_a_byte_is_undone_by_unpacking(count, rows):
    numbers = torch.arange(rows * count, dtype=torch.uint8).reshape(rows, count) * 7 % 16
    pairs = packed(numbers)
    assert pairs.shape == (rows, -(-count // 2))
    assert torch.equal(unpacked(pairs, count), numbers)


def test_bytes_of_a_token_of_smollm2():
    shape = (30, 2, 3, 64)
    per_token = {
        name: codec_named(name).page_bytes(shape, torch.float16, PAGE_TOKENS) / PAGE_TOKENS
        for name in CODECS
    }
    assert per_token == {"raw": 23040, "int8": 11885.625, "kivi": 9005.625}


def test_an_unknown_codec_is_an_error_that_names_the_known():
    with pytest.raises(InputError, match=r"'zip'; use one of raw, int8, kivi"):
        codec_named("zip")
