"""What a read costs and what it may remember: pages and calls counted, replaced files noticed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from kv_blocks import KEY, bits, block, path_of

from coinkv.store import ranges
from coinkv.store.disk import DiskStore

PAGE = 32


@dataclass
class Reads:
    """Every positional read that a test makes: (offset, length)."""

    calls: list[tuple[int, int]] = field(default_factory=list)
    most: int | None = None


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    seen = Reads()
    preadv, pread = os.preadv, os.pread

    def watched_preadv(file: int, buffers: Sequence[memoryview], offset: int) -> int:
        (buffer,) = buffers
        count = preadv(file, [buffer[: seen.most]], offset)
        seen.calls.append((offset, count))
        return count

    def watched_pread(file: int, length: int, offset: int) -> bytes:
        content = pread(file, min(length, seen.most or length), offset)
        seen.calls.append((offset, len(content)))
        return content

    monkeypatch.setattr(os, "preadv", watched_preadv)
    monkeypatch.setattr(os, "pread", watched_pread)
    return seen


def test_a_cold_read_counts_the_header_and_a_warm_one_only_pages(
    tmp_path: Path, reads: Reads
) -> None:
    kv, positions = block(512, dim=64)
    DiskStore(tmp_path).put(KEY, kv, positions)
    reads.calls.clear()
    store = DiskStore(tmp_path)
    for expected_calls in (3, 2):
        read = store.get(KEY, [(10, 20), (70, 130)])
        assert read is not None
        assert len(reads.calls) == expected_calls
        assert read.bytes_read == sum(count for _, count in reads.calls)
        assert read.page_bytes == 5 * PAGE * 3 * 2 * 2 * 64 * 2 - PAGE * 3 * 2 * 2 * 64 * 2
        reads.calls.clear()


def test_each_touched_page_is_read_once_and_neighbours_in_one_call(
    tmp_path: Path, reads: Reads
) -> None:
    kv, positions = block(320)
    store = DiskStore(tmp_path)
    store.put(KEY, kv, positions)
    store.get(KEY, [])
    reads.calls.clear()
    read = store.get(KEY, [(200, 201), (0, 40), (10, 70), (200, 201), (5, 5), (319, 320)])
    assert read is not None
    row = 3 * 2 * 2 * 4 * 2
    start = path_of(tmp_path).stat().st_size - 320 * row
    pages = [(0, 3), (6, 1), (9, 1)]
    assert reads.calls == [(start + first * PAGE * row, n * PAGE * row) for first, n in pages]


def test_calls_that_bring_less_than_asked_are_continued(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv, positions = block(100)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:97]))
    DiskStore(tmp_path).put(KEY, kv, positions)
    reads.most = 501
    read = DiskStore(tmp_path).get(KEY, [(3, 90)])
    assert read is not None
    assert bits(read.kv) == bits(kv[3:90])
    assert torch.equal(read.positions, positions[3:90])


def test_a_longer_header_than_the_first_read_is_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv, positions = block(2000, heads=1, dim=1)
    DiskStore(tmp_path).put(KEY, kv, positions)
    for first in (8, 100, ranges.FIRST_READ_BYTES):
        monkeypatch.setattr(ranges, "FIRST_READ_BYTES", first)
        read = DiskStore(tmp_path).get(KEY, [(1990, 2000)])
        assert read is not None
        assert torch.equal(read.positions, positions[1990:])
        assert bits(read.kv) == bits(kv[1990:])
        length = int.from_bytes(path_of(tmp_path).read_bytes()[:8], "little")
        assert read.bytes_read - read.page_bytes == 8 + length + 8 * 2000


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.put(KEY, *block(40))
    assert store.get(KEY) is not None
    path_of(tmp_path).unlink()
    kv, positions = block(40, seed=5)
    DiskStore(tmp_path).put(KEY, kv, positions)
    read = store.get(KEY)
    assert read is not None
    assert bits(read.kv) == bits(kv)
    assert torch.equal(read.positions, positions)


def test_a_file_rewritten_in_place_with_the_same_size_and_time_is_read_afresh(
    tmp_path: Path,
) -> None:
    store, path = DiskStore(tmp_path), path_of(tmp_path)
    store.put(KEY, *block(40))
    assert store.get(KEY) is not None
    kv, positions = block(40, seed=5)
    DiskStore(tmp_path / "other").put(KEY, kv, positions)
    before = path.stat()
    path.write_bytes(path_of(tmp_path / "other").read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    read = store.get(KEY)
    assert read is not None
    assert bits(read.kv) == bits(kv)
    assert torch.equal(read.positions, positions)


def test_no_more_headers_are_kept_than_promised(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coinkv.store.disk.HEADS_KEPT", 2)
    store = DiskStore(tmp_path)
    keys = [f"{n:064x}" for n in range(3)]
    for key in keys:
        store.put(key, *block(4))

    def is_kept(key: str) -> bool:
        read = store.get(key, [(0, 1)])
        assert read is not None
        return read.bytes_read == read.page_bytes

    assert [is_kept(key) for key in (keys[0], keys[1], keys[0], keys[2])] == [
        False,
        False,
        True,
        False,
    ]
    assert is_kept(keys[0])
    assert not is_kept(keys[1])
