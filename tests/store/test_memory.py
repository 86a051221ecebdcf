"""The memory tier keeps its own bits, gives views of them, and notices who writes into those."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_blocks import KEY, OTHER_KEY, bits, block

from coinkv.errors import CorruptBlockError, InputError
from coinkv.kv.codec import CODECS, CodecName, codec_named
from coinkv.store.memory import MemoryStore

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@st.composite
def blocks_and_spans(
    draw: st.DrawFn,
) -> tuple[torch.Tensor, torch.Tensor, list[tuple[int, int]] | None]:
    kv, positions = block(
        draw(st.integers(1, 110)),
        dtype=draw(st.sampled_from(DTYPES)),
        heads=draw(st.integers(1, 3)),
        dim=draw(st.integers(1, 9)),
        seed=draw(st.integers(0, 5)),
    )
    ends = st.tuples(st.integers(0, len(kv)), st.integers(0, len(kv)))
    span = ends.map(lambda pair: (min(pair), max(pair)))
    return kv, positions, draw(st.none() | st.lists(span, max_size=6))


@settings(max_examples=120, deadline=None)
@given(case=blocks_and_spans(), codec=st.sampled_from(CODECS))
def test_reading_spans_equals_slicing_the_whole_block_bit_for_bit(
    case: tuple[torch.Tensor, torch.Tensor, list[tuple[int, int]] | None], codec: CodecName
) -> None:
    kv, positions, spans = case
    store = MemoryStore(codec)
    written = store.put(KEY, kv, positions)
    whole, read = store.get(KEY), store.get(KEY, spans)
    assert whole is not None
    assert read is not None
    wanted = [(0, len(kv))] if spans is None else spans
    rows = torch.tensor([row for start, end in wanted for row in range(start, end)], dtype=int)
    assert read.kv.dtype == kv.dtype
    assert read.kv.shape == kv[rows].shape
    assert bits(read.kv) == bits(whole.kv[rows])
    assert torch.equal(read.positions, positions[rows])
    coded, shape = codec_named(codec), kv.shape[1:]
    assert written == coded.block_bytes(shape, kv.dtype, len(kv)) + 8 * len(kv)
    assert store.size_bytes(KEY) == store.total_bytes() == written
    page_bytes = {
        page: coded.page_bytes(shape, kv.dtype, min(32, len(kv) - 32 * page))
        for page in {int(row) // 32 for row in rows}
    }
    assert read.page_bytes == read.bytes_read == sum(page_bytes.values())


@pytest.mark.parametrize("dtype", DTYPES)
def test_raw_keeps_every_bit_nan_included(dtype: torch.dtype) -> None:
    kv, positions = block(40, dtype=dtype)
    kv[3, 1, 0, 1, 2], kv[5, 0, 1, 0, 0] = float("nan"), float("-inf")
    store = MemoryStore()
    store.put(KEY, kv, positions)
    read = store.get(KEY)
    assert read is not None
    assert bits(read.kv) == bits(kv)


@pytest.mark.parametrize("codec", CODECS)
def test_what_the_caller_does_to_its_tensors_afterwards_changes_nothing(codec: CodecName) -> None:
    kv, positions = block(40)
    store = MemoryStore(codec)
    store.put(KEY, kv, positions)
    before, at = store.get(KEY), positions.clone()
    assert before is not None
    then = bits(before.kv)
    kv.zero_()
    positions.zero_()
    after = store.get(KEY)
    assert after is not None
    assert bits(after.kv) == then
    assert torch.equal(after.positions, at)


def test_a_tensor_that_is_not_contiguous_or_part_of_a_larger_one_is_kept_as_it_reads() -> None:
    kv, _ = block(50)
    turned, positions = kv.flip(1).transpose(3, 4)[4:44], torch.arange(80)[::2]
    store = MemoryStore()
    assert store.put(KEY, turned.requires_grad_(), positions) == turned.nbytes + 8 * 40
    read = store.get(KEY)
    assert read is not None
    assert torch.equal(read.kv, turned)
    assert torch.equal(read.positions, positions)
    part = kv[10:20]
    store.put(OTHER_KEY, part, torch.arange(10))
    other = store.get(OTHER_KEY)
    assert other is not None
    assert other.kv.untyped_storage().nbytes() == part.nbytes, "the rest is held too"


def test_one_span_of_a_raw_block_is_read_without_a_copy() -> None:
    store = MemoryStore()
    store.put(KEY, *block(90))
    whole, part = store.get(KEY), store.get(KEY, [(33, 80)])
    assert whole is not None
    assert part is not None
    assert part.kv.data_ptr() == whole.kv[33].data_ptr()
    assert part.kv.is_contiguous()


def test_whoever_writes_into_a_read_is_noticed_and_nothing_wrong_is_served_again() -> None:
    store = MemoryStore()
    store.put(KEY, *block(90))
    store.put(OTHER_KEY, *block(90))
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            read = store.get(KEY, [(3, 40)])
            assert read is not None
            read.kv.narrow(0, 2, 5).mul_(2)
        with pytest.raises(CorruptBlockError, match="copy what"):
            store.get(KEY)
        assert store.get(OTHER_KEY) is not None
        assert store.delete(KEY)
        with torch.inference_mode():
            store.put(KEY, *block(90))


def test_positions_belong_to_the_reader() -> None:
    store = MemoryStore()
    kv, positions = block(40)
    store.put(KEY, kv, positions)
    for spans in (None, [(0, 40)], [(3, 9)]):
        read = store.get(KEY, spans)
        assert read is not None
        read.positions.zero_()
    again = store.get(KEY)
    assert again is not None
    assert torch.equal(again.positions, positions)


def test_a_read_outlives_its_block() -> None:
    store = MemoryStore()
    kv, positions = block(40)
    store.put(KEY, kv, positions)
    read = store.get(KEY)
    assert store.delete(KEY)
    store.put(KEY, *block(40, seed=4))
    assert read is not None
    assert bits(read.kv) == bits(kv)


def test_the_four_verbs_agree_on_what_is_there() -> None:
    store = MemoryStore()
    assert list(store.keys()) == []
    assert (store.get(KEY), store.delete(KEY), store.verify(KEY)) == (None, False, False)
    assert (store.size_bytes(KEY), store.total_bytes(), store.sweep()) == (0, 0, 0)
    sizes = [store.put(key, *block(40 + n)) for n, key in enumerate((OTHER_KEY, KEY))]
    assert store.put(KEY, *block(7)) == 0
    assert list(store.keys()) == [KEY, OTHER_KEY]
    assert store.total_bytes() == sum(sizes)
    assert store.delete(KEY)
    assert store.total_bytes() == sizes[0]
    assert store.get(KEY) is None


@pytest.mark.parametrize("span", [(-1, 3), (0, 41), (5, 4), (41, 41), (-3, -1)])
@pytest.mark.parametrize("codec", CODECS)
def test_a_span_outside_the_block_is_refused(codec: CodecName, span: tuple[int, int]) -> None:
    store = MemoryStore(codec)
    store.put(KEY, *block(40))
    with pytest.raises(InputError, match=re.escape(f"[{span[0]}, {span[1]})")):
        store.get(KEY, [(0, 1), span])


def test_bad_keys_blocks_and_codecs_are_refused() -> None:
    store = MemoryStore()
    kv, positions = block(4)
    for verb in (store.get, store.delete, store.size_bytes):
        with pytest.raises(InputError, match="64 lower-case hex digits"):
            verb("ab")
    with pytest.raises(InputError, match="64 lower-case hex digits"):
        store.put("ab", kv, positions)
    for bad in ((kv[:0], positions[:0]), (kv.double(), positions), (kv, positions.int())):
        with pytest.raises(InputError, match="shape"):
            store.put(KEY, *bad)
    with pytest.raises(InputError, match="no codec"):
        MemoryStore("zip")  # type: ignore[arg-type]
    assert list(store.keys()) == []


@pytest.mark.parametrize("codec", ["int8", "kivi"])
def test_numbers_that_a_codec_cannot_hold_are_refused_and_nothing_is_kept(codec: CodecName) -> None:
    kv, positions = block(40)
    kv[3, 1, 0, 1, 2] = float("nan")
    store = MemoryStore(codec)
    with pytest.raises(InputError, match="NaN"):
        store.put(KEY, kv, positions)
    assert (list(store.keys()), store.total_bytes()) == ([], 0)
