"""The disk tier gives back what it was given, bit for bit, in a file that says what it is."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_blocks import KEY, OTHER_KEY, bits, block, path_of
from safetensors import safe_open

from coinkv.store.base import block_key
from coinkv.store.disk import DiskStore

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
PAGE = 32
PROJECT = Path(__file__).parents[2]


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
    return kv, positions, draw(st.none() | st.lists(span, max_size=8))


@settings(max_examples=150, deadline=None)
@given(case=blocks_and_spans())
def test_reading_spans_equals_slicing_the_tensor_bit_for_bit(
    case: tuple[torch.Tensor, torch.Tensor, list[tuple[int, int]] | None],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    kv, positions, spans = case
    store = DiskStore(tmp_path_factory.mktemp("law"), fsync=False)
    store.put(KEY, kv, positions)
    wanted = [(0, len(kv))] if spans is None else spans
    rows = torch.tensor([row for start, end in wanted for row in range(start, end)], dtype=int)
    touched = {int(row) // PAGE for row in rows}
    row_bytes = kv[0].numel() * kv.element_size()
    page_bytes = sum(min(PAGE, len(kv) - page * PAGE) * row_bytes for page in touched)
    for warm in (False, True):
        read = store.get(KEY, spans)
        assert read is not None
        assert read.kv.dtype == kv.dtype
        assert read.kv.shape == kv[rows].shape
        assert bits(read.kv) == bits(kv[rows])
        assert read.positions.dtype == torch.int64
        assert torch.equal(read.positions, positions[rows])
        assert read.page_bytes == page_bytes
        assert not warm or read.bytes_read == page_bytes


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_pattern_survives_nan_and_infinity_included(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    every = every if dtype.itemsize == 2 else every.to(torch.int32) << 16
    kv = every.view(dtype).reshape(64, 4, 2, 8, 16)
    DiskStore(tmp_path).put(KEY, kv, torch.arange(64))
    read = DiskStore(tmp_path).get(KEY)
    assert read is not None
    assert bits(read.kv) == bits(kv)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_file_is_a_safetensors_file_that_says_what_it_is(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    kv, positions = block(70, dtype=dtype)
    DiskStore(tmp_path).put(KEY, kv, positions)
    with safe_open(path_of(tmp_path), framework="pt") as file:
        assert sorted(file.keys()) == ["kv", "positions"]
        assert bits(file.get_tensor("kv")) == bits(kv)
        assert torch.equal(file.get_tensor("positions"), positions)
        facts = file.metadata()
    assert facts["format"] == "coinkv-block"
    assert (facts["format_version"], facts["page_tokens"], facts["key"]) == ("1", "32", KEY)
    assert len(facts["kv_pages"].split(",")) == 3


def test_the_reader_printed_in_the_format_page_reads_a_block(tmp_path: Path) -> None:
    text = (PROJECT / "docs" / "on-disk-format.md").read_text()
    reader = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    kv, positions = block(70)
    DiskStore(tmp_path).put(KEY, kv, positions)
    names: dict[str, object] = {}
    exec(reader[0], names)
    read_page = names["read_page"]
    assert callable(read_page)
    path = path_of(tmp_path)
    assert b"".join(read_page(path, page) for page in range(3)) == bits(kv)


def test_a_read_belongs_to_its_reader(tmp_path: Path) -> None:
    kv, positions = block(40)
    store = DiskStore(tmp_path)
    store.put(KEY, kv, positions)
    for _ in range(2):
        read = store.get(KEY)
        assert read is not None
        assert torch.equal(read.positions, positions)
        assert bits(read.kv) == bits(kv)
        read.kv.zero_()
        read.positions.zero_()


def test_a_tensor_that_is_not_contiguous_is_kept_as_it_reads(tmp_path: Path) -> None:
    kv, _ = block(50)
    turned, positions = kv.flip(1).transpose(3, 4), torch.arange(100)[::2]
    assert not turned.is_contiguous()
    store = DiskStore(tmp_path)
    store.put(KEY, turned.requires_grad_(), positions)
    read = store.get(KEY)
    assert read is not None
    assert torch.equal(read.kv, turned)
    assert torch.equal(read.positions, positions)


def test_putting_a_key_again_writes_nothing_even_with_another_block(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    kv, positions = block(40)
    written = store.put(KEY, kv, positions)
    assert written == store.size_bytes(KEY) == path_of(tmp_path).stat().st_size
    before = path_of(tmp_path).stat()
    assert store.put(KEY, *block(40, seed=9)) == 0
    assert DiskStore(tmp_path).put(KEY, *block(40, dtype=torch.float32)) == 0
    after = path_of(tmp_path).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_the_four_verbs_agree_on_what_is_there(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "not yet made")
    assert list(store.keys()) == []
    assert (store.get(KEY), store.delete(KEY), store.verify(KEY)) == (None, False, False)
    assert (store.size_bytes(KEY), store.total_bytes(), store.sweep()) == (0, 0, 0)
    sizes = [store.put(key, *block(40 + n)) for n, key in enumerate((OTHER_KEY, KEY))]
    assert list(store.keys()) == [KEY, OTHER_KEY]
    assert store.total_bytes() == sum(sizes)
    assert store.verify(KEY)
    assert store.delete(KEY)
    assert list(store.keys()) == [OTHER_KEY]
    assert store.get(KEY) is None


def test_files_that_are_no_blocks_are_not_listed(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.put(KEY, *block(3))
    for stray in ("notes.txt", "ab/abc.safetensors", f"cd/{KEY}.safetensors", f"ab/{KEY}.txt"):
        (tmp_path / stray).parent.mkdir(exist_ok=True)
        (tmp_path / stray).write_text("stray")
    assert list(store.keys()) == [KEY]


def test_a_block_deleted_after_listing_is_a_miss(tmp_path: Path) -> None:
    store, other = DiskStore(tmp_path), DiskStore(tmp_path)
    store.put(KEY, *block(40))
    assert store.get(KEY) is not None
    (listed,) = store.keys()
    assert other.delete(listed)
    assert store.get(listed, [(0, 1)]) is None


def test_threads_reading_and_replacing_blocks_never_see_a_mixed_one(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, fsync=False)
    keys = [f"{n:064x}" for n in range(4)]
    made = {key: [block(90, seed=10 * n + i) for i in range(2)] for n, key in enumerate(keys)}
    whole = {key: {(bits(kv), bits(at)) for kv, at in pair} for key, pair in made.items()}

    def read_all() -> list[bool]:
        reads = [(key, store.get(key)) for key in keys * 30]
        return [(bits(read.kv), bits(read.positions)) in whole[key] for key, read in reads if read]

    def replace_all() -> list[bool]:
        for turn, key in enumerate(keys * 15):
            store.delete(key)
            store.put(key, *made[key][turn // 4 % 2])
        return []

    for key in keys:
        store.put(key, *made[key][0])
    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(work) for work in [read_all, replace_all, read_all] * 2]
        served = [each for future in running for each in future.result()]
    assert served
    assert all(served)


def test_keys_differ_whenever_a_part_or_its_border_differs() -> None:
    parts = [
        ("ab", "c", None),
        ("a", "bc", None),
        ("ab", "c", ""),
        ("ab", "c", "null"),
        ("ab", "c\n", ""),
        ("ab\n", "c", ""),
        ('ab", "c', "", None),
    ]
    keys = {block_key(*each) for each in parts}
    assert len(keys) == len(parts)
    assert all(re.fullmatch("[0-9a-f]{64}", key) for key in keys)


def test_a_key_is_the_same_in_every_process_and_version() -> None:
    expected = "849763cf554f6273ab69b164dcd3b0768829524d819e0f87aff280e6da64c957"
    assert block_key("model", "chunk", None) == expected
    assert block_key("model", "chunk", "prefix") != block_key("model", "chunk", None)
