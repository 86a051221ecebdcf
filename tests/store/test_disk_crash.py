"""Writers that are killed at any moment leave whole blocks or none, and litter that is swept."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from kv_blocks import KEY, bits, block, files_in, path_of

from coinkv.errors import CorruptBlockError
from coinkv.store import atomic
from coinkv.store.disk import DiskStore

TOKENS, DIM = 512, 64
KILLING_ROUNDS = 12
DEAD_PID = 2**22 + 1  # above the largest process number there can be


def part_name(pid: int, host: str | None = None) -> str:
    return f"{KEY}.{atomic._host() if host is None else host}-{pid}-{'0' * 32}.part"


def keep_writing(root: Path, kv: torch.Tensor, positions: torch.Tensor) -> None:
    """Store, delete and store again until killed, or until nobody is left to do that."""
    store, until = DiskStore(root, fsync=False), time.monotonic() + 10
    while time.monotonic() < until:
        store.put(KEY, kv, positions)
        time.sleep(0.001)
        store.delete(KEY)


def forked(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


def outcome(store: DiskStore, whole: tuple[bytes, bytes]) -> str:
    try:
        read = store.get(KEY)
    except CorruptBlockError:
        return "refused"
    if read is None:
        return "miss"
    return "whole" if (bits(read.kv), bits(read.positions)) == whole else "mixed"


def kill_writers(root: Path, report: Connection) -> None:
    """Have four processes write one key, kill two, read on, kill the rest; many times over.

    It runs in a process of its own with one thread, where forking is safe.
    """
    torch.set_num_threads(1)
    kv, positions = block(TOKENS, dim=DIM)
    whole, dice, store = (bits(kv), bits(positions)), random.Random(7), DiskStore(root)
    counts = Counter[str]()
    rounds = 0
    # on a slow machine a kill may hit no write for many rounds: go on until one has
    while rounds < KILLING_ROUNDS or (not counts["leftovers"] and rounds < 10 * KILLING_ROUNDS):
        rounds += 1
        writers = [forked(lambda: keep_writing(root, kv, positions)) for _ in range(4)]
        for doomed in (writers[:2], writers[2:]):
            until = time.monotonic() + dice.uniform(0.02, 0.15)
            while time.monotonic() < until:
                counts[outcome(store, whole)] += 1
            kill(doomed)
        counts["leftovers"] += sum(name.endswith(".part") for name in files_in(root))
        DiskStore(root).sweep()
    report.send(counts)


def test_every_read_is_whole_or_a_miss_while_writers_of_one_key_are_killed(
    tmp_path: Path,
) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=kill_writers, args=(tmp_path, theirs))
    process.start()
    theirs.close()
    counts = ours.recv()
    process.join()
    assert set(counts) == {"whole", "miss", "leftovers"}
    assert counts["leftovers"] > 0, "no writer was killed in the middle of a write"
    assert [name for name in files_in(tmp_path) if name.endswith(".part")] == []
    store = DiskStore(tmp_path)
    store.put(KEY, *block(TOKENS, dim=DIM))
    assert store.verify(KEY)


def die_in_fsync(root: Path) -> None:
    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    (root / KEY[:2]).mkdir(parents=True)
    DiskStore(root).put(KEY, *block(40))


def test_a_writer_killed_before_its_rename_leaves_no_block_and_litter_that_is_swept(
    tmp_path: Path,
) -> None:
    process = multiprocessing.get_context("spawn").Process(target=die_in_fsync, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    store = DiskStore(tmp_path)
    assert (store.get(KEY), list(store.keys()), store.total_bytes()) == (None, [], 0)
    (litter,) = files_in(tmp_path)
    assert litter.endswith(".part")
    assert store.sweep() == 1
    assert files_in(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks Linux for file names")
def test_the_content_is_synced_before_the_rename_and_the_folders_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(file: int) -> None:
        target = Path(f"/proc/self/fd/{file}").readlink()
        size = f" {os.fstat(file).st_size}" if target.suffix == ".part" else ""
        steps.append(f"sync {target.suffix or target.name}{size}")
        fsync(file)

    def watched_replace(path: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    root = tmp_path / "root"
    written = DiskStore(root).put(KEY, *block(40))
    assert sorted(steps[:2]) == sorted([f"sync {tmp_path.name}", "sync root"])
    assert steps[2:] == [f"sync .part {written}", "rename", "sync ab"]
    steps.clear()
    assert DiskStore(tmp_path / "quick", fsync=False).put(KEY, *block(40)) == written
    assert steps == ["rename"]


def test_a_failed_write_over_a_damaged_file_leaves_it_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(tmp_path)
    store.put(KEY, *block(40))
    path_of(tmp_path).write_bytes(b"short")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.put(KEY, *block(40))
    assert files_in(tmp_path) == [path_of(tmp_path).name]
    assert path_of(tmp_path).read_bytes() == b"short"


@pytest.mark.parametrize(
    ("name", "hours", "goes"),
    [
        (part_name(DEAD_PID), 0, True),
        (part_name(os.getpid()), 0, False),
        (part_name(os.getpid()), 2, True),
        (part_name(1), 0, False),
        (part_name(DEAD_PID, host="0" * 16), 0, False),
        (part_name(DEAD_PID, host="0" * 16), 2, True),
        ("someone's own.part", 2, False),
        (f"{KEY}.safetensors", 2, False),
    ],
    ids=[
        "writer dead",
        "writer alive",
        "writer alive, two hours old",
        "writer of another user",
        "another machine's",
        "another machine's, two hours old",
        "not ours",
        "a block",
    ],
)
def test_sweep_removes_what_dead_writers_left_and_nothing_else(
    tmp_path: Path, name: str, hours: int, goes: bool
) -> None:
    path = tmp_path / KEY[:2] / name
    path.parent.mkdir()
    path.write_bytes(b"half a block")
    then = time.time() - 3600 * hours
    os.utime(path, (then, then))
    assert DiskStore(tmp_path).sweep() == int(goes)
    assert path.exists() is not goes


def test_sweep_passes_over_files_whose_writer_finishes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in (DEAD_PID, DEAD_PID + 1):
        path = tmp_path / KEY[:2] / part_name(pid)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half a block")
    unlink = Path.unlink

    def already_gone(path: Path, **_: object) -> None:
        unlink(path)
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "unlink", already_gone)
    assert DiskStore(tmp_path).sweep() == 0
    assert files_in(tmp_path) == []
