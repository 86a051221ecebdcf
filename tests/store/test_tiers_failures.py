"""Damaged files, disks that refuse, books that are garbage: never an error, never a wrong block."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kv_blocks import block
from tier_cases import (
    BLOCK_BYTES,
    TOKENS,
    files_of,
    holds,
    key_of,
    kv_of,
    note_of,
    numbers_in,
    put,
    rows_of,
)

from coinkv.errors import CorruptBlockError, StorageError
from coinkv.kv.codec import CodecName
from coinkv.store.opening import ASIDE
from coinkv.store.tiers import Tiers

BUDGETS = pytest.mark.parametrize("budget", [0, 10 * BLOCK_BYTES], ids=["disk", "brought in"])


def file_of(folder: Path, number: int) -> Path:
    return folder / "blocks" / key_of(number)[:2] / f"{key_of(number)}.safetensors"


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    with Tiers(0, folder=tmp_path) as tiers:
        for number in range(3):
            put(tiers, number)
    return tmp_path


DAMAGE: dict[str, Callable[[Path], None]] = {
    "flipped row": lambda path: flip(path, -5),
    "flipped header": lambda path: flip(path, 40),
    "cut off": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "another block's": lambda path: shutil.copy(path.with_stem(key_of(2)), path) and None,
}


@BUDGETS
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("codec", ["raw", "kivi"])
def test_a_damaged_block_is_counted_dropped_everywhere_and_can_be_put_again(
    tmp_path: Path, budget: int, damage: str, codec: CodecName, caplog: pytest.LogCaptureFixture
) -> None:
    with Tiers(0, codec=codec, folder=tmp_path) as tiers:
        for number in range(3):
            put(tiers, number)
    with Tiers(budget, codec=codec, folder=tmp_path) as tiers:
        tiers.changes()
        DAMAGE[damage](file_of(tmp_path, 1))
        assert tiers.get(key_of(1)) is None
        stats = tiers.stats()
        assert (stats.damaged, stats.misses, stats.disk_blocks) == (1, 1, 2)
        assert tiers.changes() == ([], [key_of(1)])
        assert rows_of(tmp_path) == files_of(tmp_path)
        assert "a damaged block is dropped" in caplog.text
        assert put(tiers, 1) > 0
        assert tiers.get(key_of(1)) is not None
        assert tiers.stats().damaged == 1


def test_verify_says_what_is_damaged(filled: Path) -> None:
    with Tiers(10 * BLOCK_BYTES, folder=filled) as tiers:
        assert holds(tiers, 1)
        flip(file_of(filled, 1), -5)
        with pytest.raises(CorruptBlockError):
            tiers.verify(key_of(1))
        assert tiers.verify(key_of(2))


@pytest.mark.parametrize("with_folder", [False, True])
def test_a_reader_that_writes_into_memory_costs_the_copy_in_memory_and_nothing_else(
    tmp_path: Path, with_folder: bool
) -> None:
    with Tiers(10 * BLOCK_BYTES, folder=tmp_path if with_folder else None) as tiers:
        put(tiers, 1)
        read = tiers.get(key_of(1))
        assert read is not None
        read.kv.zero_()
        assert holds(tiers, 1) == with_folder
        stats = tiers.stats()
        assert (stats.damaged, stats.memory_bytes) == (1, BLOCK_BYTES * with_folder)


@BUDGETS
def test_a_file_that_somebody_removed_is_a_miss_and_no_longer_counts(
    filled: Path, budget: int
) -> None:
    with Tiers(budget, folder=filled) as tiers:
        tiers.changes()
        file_of(filled, 1).unlink()
        assert not holds(tiers, 1)
        assert tiers.changes().dropped == [key_of(1)]
        assert rows_of(filled) == files_of(filled)
        assert tiers.stats().disk_bytes == sum(files_of(filled).values())
        put(tiers, 1)
        assert holds(tiers, 1)


@pytest.mark.parametrize("content", [b"garbage" * 999, b""], ids=["garbage", "empty"])
def test_books_that_are_garbage_are_begun_anew_and_account_for_every_file(
    filled: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (filled / "usage.sqlite").write_bytes(content)
    with Tiers(0, folder=filled) as tiers:
        assert ("set aside" in caplog.text) == bool(content)
        assert (filled / f"usage.sqlite{ASIDE}").exists() == bool(content)
        assert list(tiers.notes()) == []
        assert tiers.stats().disk_bytes == sum(files_of(filled).values()) > 0
        assert holds(tiers, 1)
        assert put(tiers, 5) > 0
        assert tiers.changes() == ([(key_of(5), note_of(5))], [])
        put(tiers, 1)
        assert list(tiers.notes()) == [(key_of(n), note_of(n)) for n in (1, 5)]
        assert rows_of(filled) == files_of(filled)


def test_a_folder_that_is_emptied_under_it_is_filled_again(filled: Path) -> None:
    with Tiers(0, folder=filled) as tiers:
        shutil.rmtree(filled)
        assert not holds(tiers, 1)
        assert put(tiers, 1) > 0
        assert holds(tiers, 1)
        assert rows_of(filled) == files_of(filled)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    try:
        mounted = os.geteuid() == 0 and not subprocess.run(command, capture_output=True).returncode
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a small disk takes root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_counted_and_memory_goes_on(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = small_disk / "cache"
    with Tiers(10**8, folder=folder) as tiers:
        for number in range(30):
            put(tiers, number, 400)
        stats = tiers.stats()
        assert stats.memory_blocks == 30
        assert 0 < stats.disk_blocks < 30
        assert stats.write_failures >= 30 - stats.disk_blocks
        assert all(holds(tiers, number, 400) for number in range(30))
        assert caplog.text.count("the disk tier is passed over") == 1
        for path in list(folder.glob("blocks/*/*.safetensors"))[::2]:
            tiers.delete(path.stem)
        assert put(tiers, 77, 40) > 0
        assert key_of(77) in files_of(folder)
    with Tiers(0, folder=folder) as tiers:
        assert rows_of(folder) == files_of(folder)
        assert all(holds(tiers, int(key, 16), 400) for key in files_of(folder) if key != key_of(77))


def test_a_disk_without_room_for_books_is_used_once_there_is_some(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                break
    with Tiers(10**6, folder=small_disk / "cache") as tiers:
        put(tiers, 1)
        assert holds(tiers, 1)
        assert tiers.stats().write_failures > 0
        ballast.unlink()
        put(tiers, 2)
        assert tiers.stats().disk_blocks == 1
        assert holds(tiers, 2)


def test_a_read_only_folder_is_served_from_and_memory_goes_on(small_disk: Path) -> None:
    with Tiers(0, folder=small_disk / "cache") as tiers:
        for number in range(3):
            put(tiers, number)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with Tiers(2 * BLOCK_BYTES + 500, folder=small_disk / "cache") as tiers:
        assert tiers.changes().added == [(key_of(n), note_of(n)) for n in range(3)]
        for number in range(3):
            assert holds(tiers, number)
        assert put(tiers, 5) == BLOCK_BYTES
        assert holds(tiers, 5)
        assert tiers.pin(key_of(5))
        stats = tiers.stats()
        assert (stats.disk_blocks, stats.read_failures) == (3, 0)
        assert stats.write_failures > 0
        with pytest.raises(StorageError, match="; make that folder writable"):
            tiers.delete(key_of(1))
        tiers.flush()


def test_a_read_only_place_without_a_folder_leaves_memory_alone(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with Tiers(10**6, folder=small_disk / "cache") as tiers:
        assert put(tiers, 1) == BLOCK_BYTES
        assert holds(tiers, 1)
        assert tiers.stats().write_failures > 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_write_the_system_refuses_leaves_memory_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with Tiers(10**6, folder=tmp_path) as tiers:

        def refuse(*_: object) -> int:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", refuse)
            assert put(tiers, 1) == BLOCK_BYTES
        assert files_of(tmp_path) == rows_of(tmp_path) == {}
        assert tiers.stats().write_failures == 1
        assert tiers.changes().added == [(key_of(1), note_of(1))]
        assert put(tiers, 2) > BLOCK_BYTES


def test_a_read_the_system_refuses_is_a_miss_and_the_block_stays(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tiers(0, folder=filled) as tiers:

        def refuse(*_: object) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", refuse)
            patch.setattr(os, "pread", refuse)
            assert tiers.get(key_of(1)) is None
        stats = tiers.stats()
        assert (stats.read_failures, stats.misses, stats.damaged) == (1, 1, 0)
        assert holds(tiers, 1)


def test_books_that_refuse_leave_no_file_that_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tiers(10**6, folder=tmp_path) as tiers:
        put(tiers, 1)

        def refuse(*_: object) -> None:
            raise StorageError("the books cannot be used")

        with monkeypatch.context() as patch:
            patch.setattr("coinkv.store.usage.Usage.add", refuse)
            assert put(tiers, 2) == BLOCK_BYTES
        assert rows_of(tmp_path) == files_of(tmp_path)
        assert len(files_of(tmp_path)) == 1


def test_stray_files_are_left_alone(filled: Path) -> None:
    strays = [filled / "notes.txt", filled / "blocks" / "ab" / "stray.txt"]
    for stray in strays:
        stray.parent.mkdir(exist_ok=True)
        stray.write_text("mine")
    with Tiers(0, folder=filled, disk_budget_bytes=0) as tiers:
        assert numbers_in(tiers) == []
    assert all(stray.read_text() == "mine" for stray in strays)


def test_another_block_under_a_key_that_is_there_changes_nothing(
    tmp_path: Path,
) -> None:
    with Tiers(10**6, folder=tmp_path) as tiers:
        put(tiers, 1)
        assert tiers.put(key_of(1), *block(TOKENS, seed=9)) == 0
        kv, _ = kv_of(1)
        read = tiers.get(key_of(1))
        assert read is not None
        assert read.kv.equal(kv)
