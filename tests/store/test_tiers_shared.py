"""Threads share the tiers and processes a folder; whoever is killed leaves it whole and exact."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from kv_blocks import bits
from tier_cases import (
    BLOCK_BYTES,
    files_of,
    holds,
    key_of,
    note_of,
    numbers_in,
    put,
    rows_of,
)

from coinkv.kv.codec import CodecName
from coinkv.store.base import BlockStore
from coinkv.store.encoded import EncodedBlock
from coinkv.store.reconcile import unlink
from coinkv.store.tiers import Tiers
from coinkv.store.usage import Usage
from coinkv.store.whole import WholeDiskStore

SPAWN = multiprocessing.get_context("spawn")
FILE_BYTES = 2600
KILLING_ROUNDS = 6


def together(count: int, work: Callable[[int], object]) -> list[object]:
    """What `count` threads return that begin at the same moment."""
    start = threading.Barrier(count)

    def begin(number: int) -> object:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


@pytest.mark.parametrize("codec", ["raw", "kivi"])
@pytest.mark.parametrize("with_folder", [False, True])
def test_threads_in_a_small_budget_see_whole_blocks_and_exact_bytes(
    tmp_path: Path, codec: CodecName, with_folder: bool
) -> None:
    alone = Tiers(10**6, codec=codec)
    for number in range(12):
        put(alone, number)
    reads = [alone.get(key_of(number)) for number in range(12)]
    whole = [bits(read.kv) for read in reads if read is not None]
    budget, disk_budget = 3 * BLOCK_BYTES, 5 * FILE_BYTES
    tiers = Tiers(
        budget,
        codec=codec,
        folder=tmp_path if with_folder else None,
        disk_budget_bytes=disk_budget if with_folder else None,
    )

    def work(seed: int) -> int:
        dice, lookups = random.Random(seed), 0
        for _ in range(60):
            number = dice.randrange(12)
            what = dice.random()
            if what < 0.4:
                put(tiers, number)
            elif what < 0.45:
                tiers.delete(key_of(number))
            elif what < 0.5:
                tiers.pin(key_of(0))
                tiers.unpin(key_of(0))
            else:
                lookups += 1
                read = tiers.get(key_of(number))
                assert read is None or bits(read.kv) == whole[number]
            assert tiers.stats().memory_bytes <= budget
        return lookups

    lookups = sum(int(str(each)) for each in together(8, work))
    stats = tiers.stats()
    assert stats.lookups == lookups
    assert stats.damaged == stats.read_failures == stats.write_failures == 0
    assert stats.memory_bytes == tiers._hot._room.held_bytes
    told = {key for key, _ in tiers.changes().added}
    assert told == set(tiers.keys())
    tiers.close()
    if with_folder:
        assert rows_of(tmp_path) == files_of(tmp_path)
        assert sum(files_of(tmp_path).values()) <= disk_budget


def test_threads_that_ask_for_one_block_read_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tiers(0, folder=tmp_path) as tiers:
        put(tiers, 1)
        put(tiers, 2)
    read = WholeDiskStore.encoded
    loads: list[str] = []

    def slow(store: WholeDiskStore, key: str) -> EncodedBlock | None:
        loads.append(key)
        time.sleep(0.1)
        return read(store, key)

    monkeypatch.setattr(WholeDiskStore, "encoded", slow)
    with Tiers(10 * BLOCK_BYTES, folder=tmp_path) as tiers:
        assert all(together(8, lambda number: holds(tiers, 1 + number % 2)))
        assert sorted(loads) == [key_of(1), key_of(2)]
        stats = tiers.stats()
        assert (stats.disk_hits, stats.memory_hits) == (2, 6)


def test_threads_that_ask_for_a_damaged_block_find_it_damaged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tiers(0, folder=tmp_path) as tiers:
        put(tiers, 1)
    read = WholeDiskStore.encoded

    def slow(store: WholeDiskStore, key: str) -> EncodedBlock | None:
        time.sleep(0.1)
        return read(store, key)

    monkeypatch.setattr(WholeDiskStore, "encoded", slow)
    (path,) = tmp_path.glob("blocks/*/*.safetensors")
    os.truncate(path, path.stat().st_size - 8)
    with Tiers(10 * BLOCK_BYTES, folder=tmp_path) as tiers:
        assert not any(together(6, lambda _: holds(tiers, 1)))
        stats = tiers.stats()
        assert (stats.damaged, stats.misses) == (1, 6)


def test_a_block_deleted_while_it_is_read_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tiers(0, folder=tmp_path) as tiers:
        put(tiers, 1)
    read = WholeDiskStore.encoded
    tiers = Tiers(10 * BLOCK_BYTES, folder=tmp_path)

    def deleted_meanwhile(store: WholeDiskStore, key: str) -> EncodedBlock | None:
        block = read(store, key)
        tiers.delete(key)
        return block

    monkeypatch.setattr(WholeDiskStore, "encoded", deleted_meanwhile)
    assert holds(tiers, 1)
    assert numbers_in(tiers) == []
    assert not holds(tiers, 1)
    tiers.close()


def test_what_one_process_keeps_another_is_told_of_and_reads(tmp_path: Path) -> None:
    ours, theirs = SPAWN.Pipe()
    other = SPAWN.Process(target=answer, args=(tmp_path, theirs))
    with Tiers(10 * BLOCK_BYTES, folder=tmp_path) as tiers:
        put(tiers, 1)
        other.start()
        assert ours.recv() == [key_of(1)]
        assert tiers.changes() == ([(key_of(1), note_of(1))], [])
        ours.send("put")
        ours.recv()
        assert tiers.changes() == ([(key_of(2), note_of(2))], [])
        assert tiers.changes() == ([], [])
        assert holds(tiers, 2)
        ours.send("delete")
        ours.recv()
        assert tiers.changes() == ([], [])
        assert holds(tiers, 2), "memory still has it"
        tiers.delete(key_of(2))
        ours.send("put")
        ours.recv()
        assert tiers.changes() == ([(key_of(2), note_of(2))], [])
        ours.send("delete")
        ours.recv()
        assert not holds(tiers, 2)
        assert tiers.changes() == ([], [key_of(2)])
        ours.send("end")
        other.join()
        assert other.exitcode == 0
    assert rows_of(tmp_path) == files_of(tmp_path)


def answer(folder: Path, orders: Connection) -> None:
    """The other process: says what it finds, then does as it is told."""
    with Tiers(0, folder=folder) as tiers:
        orders.send([key for key, _ in tiers.changes().added])
        while (order := orders.recv()) != "end":
            if order == "put":
                put(tiers, 2)
            else:
                tiers.delete(key_of(2))
            orders.send("done")


def work_for_a_while(folder: Path, seed: int, rounds: int) -> None:
    """Put, get, delete and pin at random in a shared folder."""
    dice = random.Random(seed)
    with Tiers(2 * BLOCK_BYTES, folder=folder, disk_budget_bytes=4 * FILE_BYTES) as tiers:
        for _ in range(rounds):
            number, what = dice.randrange(9), dice.random()
            if what < 0.5:
                put(tiers, number)
            elif what < 0.9:
                holds(tiers, number)
            elif what < 0.95:
                tiers.delete(key_of(number))
            else:
                tiers.pin(key_of(number))
                tiers.unpin(key_of(number))
        stats = tiers.stats()
        assert stats.damaged == stats.read_failures == stats.write_failures == 0


def forked(work: Callable[[], None]) -> int:
    """A child process; fork only where there is one thread."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def work_together(folder: Path, report: Connection) -> None:
    """Three processes at work on one folder; reports how they ended."""
    torch.set_num_threads(1)
    pids = [forked(partial(work_for_a_while, folder, seed, 200)) for seed in range(3)]
    report.send([os.waitpid(pid, 0)[1] for pid in pids])


def kill_writers(folder: Path, report: Connection) -> None:
    """Kill writers at random moments; after each look whether the folder opens, exact and whole."""
    torch.set_num_threads(1)
    dice, outcomes = random.Random(11), set[str]()
    for seed in range(KILLING_ROUNDS):
        works = [partial(work_for_a_while, folder, 10 * seed + n, 10**6) for n in range(2)]
        pids = [forked(work) for work in works]
        time.sleep(dice.uniform(0.05, 0.3))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        with Tiers(0, folder=folder, disk_budget_bytes=4 * FILE_BYTES) as tiers:
            exact = rows_of(folder) == files_of(folder)
            within = sum(files_of(folder).values()) <= 4 * FILE_BYTES
            whole = all(holds(tiers, number) for number in numbers_in(tiers))
            stats = tiers.stats()
            outcomes.add(f"{exact} {within} {whole} {stats.damaged + stats.write_failures}")
            outcomes.add("blocks" if numbers_in(tiers) else "empty")
    report.send(outcomes)


def in_a_process(work: Callable[[Path, Connection], None], folder: Path) -> object:
    """What `work` reports from a process with one thread."""
    ours, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=work, args=(folder, theirs))
    process.start()
    theirs.close()
    reported = ours.recv()
    process.join()
    return reported


def test_processes_that_evict_from_one_folder_keep_its_books_exact(tmp_path: Path) -> None:
    assert in_a_process(work_together, tmp_path) == [0, 0, 0]
    files = files_of(tmp_path)
    assert rows_of(tmp_path) == files
    assert 0 < sum(files.values()) <= 4 * FILE_BYTES
    with Tiers(0, folder=tmp_path) as tiers:
        assert all(holds(tiers, number) for number in numbers_in(tiers))


def test_writers_that_are_killed_leave_a_folder_that_opens_exact_and_whole(
    tmp_path: Path,
) -> None:
    outcomes = in_a_process(kill_writers, tmp_path)
    assert isinstance(outcomes, set)
    assert outcomes - {"empty"} == {"True True True 0", "blocks"}


class Killed(BaseException):
    """Stands for a signal that ends the process at one point of a put."""


@pytest.mark.parametrize("step", ["Usage.add", "Usage.standings", "WholeDiskStore.delete"])
def test_a_put_that_ends_at_any_step_is_put_right_by_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tiers = Tiers(0, folder=tmp_path, disk_budget_bytes=2 * FILE_BYTES)
    for number in range(2):
        put(tiers, number)

    def die(*_: object) -> None:
        raise Killed

    owner, name = step.split(".")
    with monkeypatch.context() as patch:
        patch.setattr({"Usage": Usage, "WholeDiskStore": WholeDiskStore}[owner], name, die)
        with pytest.raises(Killed):
            put(tiers, 2)
    assert rows_of(tmp_path) != files_of(tmp_path)
    with Tiers(0, folder=tmp_path, disk_budget_bytes=2 * FILE_BYTES) as again:
        assert rows_of(tmp_path) == files_of(tmp_path)
        assert sum(files_of(tmp_path).values()) <= 2 * FILE_BYTES
        assert all(holds(again, number) for number in numbers_in(again))
        put(again, 2)
        assert holds(again, 2)
    tiers.close()


def test_a_block_removed_between_its_file_and_its_row_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = Tiers(0, folder=tmp_path)
    write, removed = WholeDiskStore.put, []

    def removed_at_once(
        store: WholeDiskStore, key: str, kv: torch.Tensor, positions: torch.Tensor
    ) -> int:
        written = write(store, key, kv, positions)
        if len(removed) < often:
            removed.append(store.delete(key))
        return written

    monkeypatch.setattr(WholeDiskStore, "put", removed_at_once)
    often = 2
    assert put(tiers, 1) > 0
    assert holds(tiers, 1)
    often = 9
    assert put(tiers, 2) == 0
    assert tiers.stats().write_failures == 1
    assert rows_of(tmp_path) == files_of(tmp_path)
    tiers.close()


def test_an_eviction_does_not_unlink_a_block_that_came_again_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = Tiers(0, folder=tmp_path, disk_budget_bytes=FILE_BYTES)
    other = Tiers(0, folder=tmp_path)
    put(tiers, 0)

    def late(books: Usage, disk: BlockStore, keys: list[str]) -> None:
        if keys == [key_of(0)]:
            assert put(other, 0) == 0, "its file is still there"
        unlink(books, disk, keys)

    monkeypatch.setattr("coinkv.store.keeping.unlink", late)
    put(tiers, 1)
    assert holds(tiers, 0)
    assert holds(tiers, 1)
    assert rows_of(tmp_path) == files_of(tmp_path)
    for each in (tiers, other):
        each.close()


def test_books_kept_busy_by_another_process_cost_the_write_and_not_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coinkv.store.opening.BUSY_TIMEOUT_SECONDS", 0.2)
    with Tiers(10 * BLOCK_BYTES, folder=tmp_path) as tiers:
        other = Usage(tmp_path / "usage.sqlite")
        with other.writing():
            assert put(tiers, 1) == BLOCK_BYTES
            assert holds(tiers, 1)
            assert tiers.stats().write_failures == 1
        other.close()
        assert put(tiers, 2) > BLOCK_BYTES
        assert rows_of(tmp_path) == files_of(tmp_path)
