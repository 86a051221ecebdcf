"""Memory, then disk: where blocks are, what goes when budgets are full, and what is said of it."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
from kv_blocks import KEY, OTHER_KEY, bits, block
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

from coinkv.errors import InputError
from coinkv.kv.codec import CODECS, CodecName
from coinkv.store.eviction import importance_of
from coinkv.store.tiers import Tiers
from coinkv.store.usage import Usage

FILE_BYTES = 2600
"""More than the file of one block of `kv_of`, less than those of two."""


def test_a_block_is_kept_in_memory_and_written_through_to_disk(tmp_path: Path) -> None:
    with Tiers(10 * BLOCK_BYTES, folder=tmp_path) as tiers:
        written = put(tiers, 1)
        (file_bytes,) = files_of(tmp_path).values()
        assert written == BLOCK_BYTES + file_bytes
        assert put(tiers, 1) == 0
        stats = tiers.stats()
        assert (stats.memory_blocks, stats.memory_bytes) == (1, BLOCK_BYTES)
        assert (stats.disk_blocks, stats.disk_bytes) == (1, file_bytes)
        assert tiers.size_bytes(key_of(1)) == tiers.total_bytes() == BLOCK_BYTES
        assert rows_of(tmp_path) == files_of(tmp_path)


def test_what_memory_evicts_is_still_had_from_disk_and_comes_back_to_memory(
    tmp_path: Path,
) -> None:
    with Tiers(2 * BLOCK_BYTES, folder=tmp_path) as tiers:
        for number in range(4):
            put(tiers, number)
        assert numbers_in(tiers) == [0, 1, 2, 3]
        assert tiers.stats().memory_evictions == 2
        assert holds(tiers, 0)
        assert holds(tiers, 0)
        stats = tiers.stats()
        assert (stats.disk_hits, stats.memory_hits, stats.memory_blocks) == (1, 1, 2)
        assert tiers.changes().dropped == []


def test_without_a_folder_what_is_evicted_is_gone_and_said_to_be() -> None:
    tiers = Tiers(2 * BLOCK_BYTES)
    for number in range(2):
        put(tiers, number)
    assert [key for key, _ in tiers.changes().added] == [key_of(0), key_of(1)]
    for number in range(2, 5):
        put(tiers, number)
    added, dropped = tiers.changes()
    assert added == [(key_of(n), note_of(n)) for n in (3, 4)]
    assert sorted(dropped) == [key_of(0), key_of(1)]
    assert numbers_in(tiers) == [3, 4]
    assert tiers.changes() == ([], [])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("with_folder", [False, True])
def test_every_codec_gives_the_same_numbers_from_either_tier(
    tmp_path: Path, codec: CodecName, with_folder: bool
) -> None:
    kv, positions = block(70, dtype=torch.float32)
    tiers = Tiers(10**6, codec=codec, folder=tmp_path if with_folder else None)
    tiers.put(KEY, kv, positions)
    from_memory, rows = tiers.get(KEY), tiers.get(KEY, [(30, 65), (3, 9)])
    assert from_memory is not None
    assert rows is not None
    tiers.close()
    reads = [rows]
    if with_folder:
        for budget in (10**6, 0):  # loaded into memory, and served from disk
            with Tiers(budget, codec=codec, folder=tmp_path) as again:
                for _ in range(2):
                    read, part = again.get(KEY), again.get(KEY, [(30, 65), (3, 9)])
                    assert read is not None
                    assert bits(read.kv) == bits(from_memory.kv)
                    assert torch.equal(read.positions, positions)
                    assert part is not None
                    reads.append(part)
    for part in reads:
        assert bits(part.kv) == bits(torch.cat([from_memory.kv[30:65], from_memory.kv[3:9]]))
        assert torch.equal(part.positions, torch.cat([positions[30:65], positions[3:9]]))
    assert (bits(from_memory.kv) == bits(kv)) == (codec == "raw")


def test_a_folder_of_another_codec_is_read(tmp_path: Path) -> None:
    with Tiers(10**6, folder=tmp_path) as tiers:
        put(tiers, 1)
    with Tiers(10**6, codec="kivi", folder=tmp_path) as tiers:
        assert holds(tiers, 1)
        assert holds(tiers, 1)


def test_a_block_larger_than_memory_is_served_from_disk(tmp_path: Path) -> None:
    with Tiers(BLOCK_BYTES - 1, folder=tmp_path) as tiers:
        assert put(tiers, 1) == sum(files_of(tmp_path).values())
        for _ in range(3):
            assert holds(tiers, 1)
            assert tiers.get(key_of(1), [(3, 9)]) is not None
        stats = tiers.stats()
        assert (stats.memory_blocks, stats.disk_hits, stats.memory_evictions) == (0, 6, 0)


def test_a_block_larger_than_both_budgets_is_kept_nowhere(tmp_path: Path) -> None:
    with Tiers(10, folder=tmp_path, disk_budget_bytes=10) as tiers:
        assert put(tiers, 1) == 0
        assert files_of(tmp_path) == rows_of(tmp_path) == {}
        assert tiers.changes() == ([], [])
    assert put(Tiers(0), 1) == 0


def test_memory_full_of_pinned_blocks_serves_disk_hits_and_takes_nothing_in(
    tmp_path: Path,
) -> None:
    with Tiers(2 * BLOCK_BYTES + 500, folder=tmp_path) as tiers:
        put(tiers, 1)
        put(tiers, 2)
        assert tiers.pin(key_of(1))
        assert tiers.pin(key_of(2))
        put(tiers, 3)
        for _ in range(3):
            assert holds(tiers, 3)
        stats = tiers.stats()
        assert (stats.disk_hits, stats.memory_evictions, stats.pinned) == (3, 0, 2)
        assert tiers.unpin(key_of(1))
        assert holds(tiers, 3)
        assert holds(tiers, 3)
        assert tiers.stats().memory_hits == 1
        assert not tiers.pin(key_of(9))


def test_pinned_blocks_stay_and_new_ones_are_not_kept_where_pins_fill_the_budget() -> None:
    tiers = Tiers(3 * BLOCK_BYTES)
    for number in range(3):
        put(tiers, number)
        tiers.pin(key_of(number))
        tiers.pin(key_of(number))
    assert put(tiers, 7) == 0
    tiers.unpin(key_of(1))
    assert put(tiers, 8) == BLOCK_BYTES
    assert numbers_in(tiers) == [0, 2, 8]


def test_the_disk_keeps_its_budget_and_its_pins(tmp_path: Path) -> None:
    with Tiers(0, folder=tmp_path, disk_budget_bytes=2 * FILE_BYTES) as tiers:
        put(tiers, 0)
        tiers.pin(key_of(0))
        for number in range(1, 6):
            put(tiers, number)
            files = files_of(tmp_path)
            assert sum(files.values()) <= 2 * FILE_BYTES
            assert files == rows_of(tmp_path)
        stats = tiers.stats()
        assert 0 in numbers_in(tiers)
        assert stats.disk_evictions == 6 - stats.disk_blocks > 0
        assert stats.disk_bytes == sum(files.values())
        for number in numbers_in(tiers):
            tiers.pin(key_of(number))
        assert put(tiers, 9) == 0
        assert files_of(tmp_path) == files == rows_of(tmp_path)


def test_what_both_tiers_evicted_is_dropped_and_what_one_still_has_is_not(tmp_path: Path) -> None:
    with Tiers(3 * BLOCK_BYTES, folder=tmp_path, disk_budget_bytes=FILE_BYTES) as tiers:
        for number in range(3):
            put(tiers, number)
        assert len(files_of(tmp_path)) == 1
        assert tiers.changes().dropped == []
        for number in range(3, 5):
            put(tiers, number)
        assert sorted(tiers.changes().dropped) == [key_of(0), key_of(1)]
        assert numbers_in(tiers) == [2, 3, 4]


def test_everything_known_of_a_block_outlives_the_process(tmp_path: Path) -> None:
    kv, _ = kv_of(1)
    with Tiers(10**6, folder=tmp_path) as tiers:
        put(tiers, 1)
        put(tiers, 2)
        tiers.pin(key_of(2))
        for _ in range(3):
            assert holds(tiers, 1)
        before = tiers.stats()
    usage = Usage(tmp_path / "usage.sqlite")
    one, two = usage.standings().values()
    usage.close()
    assert (one.hits, one.pinned, two.hits, two.pinned) == (3, False, 0, True)
    assert one.importance == pytest.approx(importance_of(kv))
    assert one.last_used > two.last_used
    with Tiers(10**6, folder=tmp_path) as tiers:
        assert list(tiers.notes()) == [(key_of(n), note_of(n)) for n in (1, 2)]
        assert tiers.changes() == ([(key_of(n), note_of(n)) for n in (1, 2)], [])
        stats = tiers.stats()
        assert (stats.pinned, stats.disk_bytes) == (1, before.disk_bytes)
        assert put(tiers, 1) == 0
        assert holds(tiers, 2)
        assert tiers._hot._room.pinned() == {key_of(2)}


def test_a_restart_with_a_full_disk_goes_on_taking_blocks(tmp_path: Path) -> None:
    for start in range(0, 9, 3):
        with Tiers(10**6, folder=tmp_path, disk_budget_bytes=2 * FILE_BYTES) as tiers:
            for number in range(start, start + 3):
                assert put(tiers, number) > BLOCK_BYTES
            assert tiers.stats().write_failures == 0
            assert tiers.stats().disk_bytes <= 2 * FILE_BYTES


def test_a_smaller_budget_evicts_when_the_folder_is_opened(tmp_path: Path) -> None:
    with Tiers(0, folder=tmp_path) as tiers:
        for number in range(6):
            put(tiers, number)
    with Tiers(0, folder=tmp_path, disk_budget_bytes=FILE_BYTES) as tiers:
        assert numbers_in(tiers) == [5]
        assert tiers.stats().disk_bytes <= FILE_BYTES
        assert tiers.changes().added == [(key_of(5), note_of(5))]


def test_deleting_forgets_a_block_in_every_tier_and_it_can_come_again(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        tiers = Tiers(10**6, folder=folder)
        put(tiers, 1)
        put(tiers, 2)
        tiers.changes()
        assert tiers.delete(key_of(1))
        assert not tiers.delete(key_of(1))
        assert not holds(tiers, 1)
        assert tiers.changes() == ([], [key_of(1)])
        assert numbers_in(tiers) == [2]
        assert put(tiers, 1) > 0
        assert tiers.changes() == ([(key_of(1), note_of(1))], [])
        assert holds(tiers, 1)
        tiers.close()
    assert rows_of(tmp_path) == files_of(tmp_path)


def test_nothing_is_told_twice_and_nothing_untold_is_taken_back(tmp_path: Path) -> None:
    with Tiers(2 * BLOCK_BYTES, folder=tmp_path) as tiers:
        assert tiers.changes() == ([], [])
        put(tiers, 1)
        tiers.delete(key_of(1))
        assert tiers.changes() == ([], [])
        put(tiers, 1)
        assert tiers.changes() == ([(key_of(1), note_of(1))], [])
        assert not holds(tiers, 3)
        with Tiers(0, folder=tmp_path) as other:
            put(other, 4)
        assert tiers.changes() == ([(key_of(4), note_of(4))], []), "its own are no news"
        assert tiers.changes() == ([], [])
        tiers.delete(key_of(1))
        put(tiers, 1)
        assert tiers.changes() == ([(key_of(1), note_of(1))], [])


def test_whoever_puts_a_block_that_is_here_is_told_of_it_again(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with Tiers(10**6, folder=folder) as tiers:
            put(tiers, 1)
            tiers.changes()
            assert put(tiers, 1) == 0
            assert tiers.changes() == ([(key_of(1), note_of(1))], [])


def test_every_lookup_is_a_hit_or_a_miss(tmp_path: Path) -> None:
    dice = random.Random(3)
    with Tiers(3 * BLOCK_BYTES, folder=tmp_path, disk_budget_bytes=5 * FILE_BYTES) as tiers:
        for count in range(1, 120):
            if dice.random() < 0.4:
                put(tiers, dice.randrange(12))
            tiers.get(key_of(dice.randrange(12)), [(2, 5)])
            stats = tiers.stats()
            assert stats.lookups == stats.memory_hits + stats.disk_hits + stats.misses == count
        assert min(stats.memory_hits, stats.disk_hits, stats.misses) > 0


def test_a_refused_span_is_no_lookup(tmp_path: Path) -> None:
    with Tiers(10**6, folder=tmp_path) as tiers:
        put(tiers, 1)
    for budget in (10**6, 0):
        with Tiers(budget, folder=tmp_path) as tiers:
            with pytest.raises(InputError, match=re.escape(f"[0, {TOKENS + 1})")):
                tiers.get(key_of(1), [(0, TOKENS + 1)])
            assert tiers.stats().lookups == 0
            assert holds(tiers, 1)


@pytest.mark.parametrize("with_folder", [False, True])
def test_what_is_no_key_is_refused_by_every_verb(tmp_path: Path, with_folder: bool) -> None:
    with Tiers(10**6, folder=tmp_path if with_folder else None) as tiers:
        for verb in (
            tiers.get,
            tiers.delete,
            tiers.verify,
            tiers.size_bytes,
            tiers.pin,
            tiers.unpin,
            lambda key: tiers.put(key, *block(4)),
        ):
            with pytest.raises(InputError, match="64 lower-case hex digits"):
                verb("../" + "0" * 61)
        with pytest.raises(InputError, match="shape"):
            tiers.put(KEY, torch.zeros(4, 2, 2, 2), torch.arange(4))
        assert list(tiers.keys()) == []


def test_bad_options_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for build in (
        lambda: Tiers(-1),
        lambda: Tiers(1, folder=tmp_path, disk_budget_bytes=-1),
        lambda: Tiers(1, codec="zip"),  # type: ignore[arg-type]
        lambda: Tiers(1, folder=file),
    ):
        with pytest.raises(InputError):
            build()


def test_numbers_that_the_codec_cannot_hold_are_refused_and_kept_nowhere(tmp_path: Path) -> None:
    kv, positions = block(40)
    kv[3, 1, 0, 1, 2] = float("inf")
    with Tiers(10**6, codec="kivi", folder=tmp_path) as tiers:
        with pytest.raises(InputError, match="infinite"):
            tiers.put(KEY, kv, positions)
        assert files_of(tmp_path) == rows_of(tmp_path) == {}
        assert tiers.changes() == ([], [])


def test_the_four_verbs_agree_on_what_is_there(tmp_path: Path) -> None:
    with Tiers(10**6, folder=tmp_path) as tiers:
        assert (tiers.get(KEY), tiers.delete(KEY), tiers.verify(KEY)) == (None, False, False)
        assert (tiers.size_bytes(KEY), tiers.total_bytes(), tiers.sweep()) == (0, 0, 0)
        tiers.put(OTHER_KEY, *block(41))
        tiers.put(KEY, *block(40))
        assert list(tiers.keys()) == [KEY, OTHER_KEY]
        assert tiers.total_bytes() == tiers.size_bytes(KEY) + tiers.size_bytes(OTHER_KEY)
        assert tiers.verify(KEY)


@pytest.mark.parametrize("seed", range(4))
def test_the_bytes_are_exact_whatever_is_done(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    budget, disk_budget = 5 * BLOCK_BYTES, 6 * FILE_BYTES
    tiers = Tiers(budget, folder=tmp_path, disk_budget_bytes=disk_budget)
    told: set[str] = set()
    for _ in range(120):
        number = dice.randrange(14)
        what = dice.choice(["put"] * 5 + ["get"] * 5 + ["delete", "pin", "unpin", "reopen"])
        if what == "put":
            put(tiers, number, 10 + number)
        elif what == "get":
            holds(tiers, number, 10 + number)
        elif what == "delete":
            tiers.delete(key_of(number))
        elif what == "reopen":
            tiers.close()
            tiers = Tiers(budget, folder=tmp_path, disk_budget_bytes=disk_budget)
            told = set()
        elif what == "unpin" or tiers.stats().pinned < 3:
            getattr(tiers, what)(key_of(number))
        stats, files = tiers.stats(), files_of(tmp_path)
        in_memory = list(tiers._hot.store.keys())
        assert stats.memory_bytes == sum(tiers._hot.store.size_bytes(key) for key in in_memory)
        assert stats.memory_bytes == tiers._hot._room.held_bytes <= budget
        assert stats.disk_bytes == sum(files.values()) <= disk_budget
        assert rows_of(tmp_path) == files
        assert list(tiers.keys()) == sorted({*files, *in_memory})
        added, dropped = tiers.changes()
        told = (told - set(dropped)) | {key for key, _ in added}
        assert told == set(tiers.keys()) == {key for key, _ in tiers.notes()}
    tiers.close()
