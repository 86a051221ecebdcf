"""Builds that are killed, run twice at once, or run out of disk never leave a broken index."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from coinkv.model.decode import Sampling
from coinkv.rag.ask import CoinRAG
from coinkv.rag.index import Index
from coinkv.rag.stats import stats
from coinkv.rag.verify import verify
from command_line import start
from small_corpus import CHUNK_TOKENS, QUESTIONS, block_files, contents_of, write_documents

TIMEOUT_SECONDS = 120


@pytest.fixture(scope="module")
def lane(tmp_path_factory):
    """Enough chunks that a build can be hit while it encodes."""
    documents = {
        f"{name}.txt": " ".join(
            f"House {n} in {name} lane has {n + 2} windows and a {color} door."
            for n, color in enumerate(("red", "green", "blue", "white") * 9)
        )
        for name in ("oak", "elm")
    }
    return write_documents(tmp_path_factory.mktemp("lane") / "docs", documents)


def building(docs, folder, model_folder):
    return start(
        "build", docs, "--index", folder, "--model", model_folder, "--chunk-tokens", CHUNK_TOKENS,
        "--json",
    )  # fmt: skip


def completed(process):
    out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    # the one of two builds that waits says so
    assert (process.returncode, err.replace("waiting for another build of this index ...", "")) in (
        (0, ""),
        (0, "\n"),
    )
    return json.loads(out)


def kill_at(process, folder, blocks, delay):
    """Kill a build once it has kept so many blocks, and a moment later; or when it ended before."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while len(block_files(folder)) < blocks and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    process.communicate()


def survives_kills(lane, folder, model_folder, moments):
    kept = 0
    for blocks, delay in moments:
        kill_at(building(lane, folder, model_folder), folder, blocks, delay)
        before, kept = kept, len(block_files(folder))
        assert kept >= before
    report = completed(building(lane, folder, model_folder))
    assert verify(folder).clean
    assert report["chunks"] == len(block_files(folder)) > moments[-1][0]
    assert report["encoded"] == report["chunks"] - kept
    leftovers = [name for name in contents_of(folder) if name.endswith(".part")]
    assert leftovers == []
    return report


def test_a_build_killed_at_three_moments_completes_and_redoes_nothing(
    lane, tmp_path, model_folder, backbone
):
    dice = random.Random(11)
    moments = [(blocks, dice.uniform(0, 0.02)) for blocks in (1, 9, 20)]
    report = survives_kills(lane, tmp_path / "index", model_folder, moments)
    asker = CoinRAG(Index.open(tmp_path / "index", model=backbone), sampling=Sampling(1))
    assert report["documents"] == 2
    assert (
        "House 7 in elm lane" in asker.ask("Which door has house 7 in elm lane?").evidence[0].text
    )


@pytest.mark.slow
def test_a_build_killed_at_ten_random_moments_completes_and_redoes_nothing(
    lane, tmp_path, model_folder, backbone
):
    dice = random.Random()
    starts = sorted(dice.sample(range(40), 6))
    moments = [(0, dice.uniform(0, 6)) for _ in range(4)]
    moments += [(blocks, dice.uniform(0, 0.05)) for blocks in starts]
    survives_kills(lane, tmp_path / "index", model_folder, moments)


def test_two_builds_of_one_index_at_once_both_succeed(lane, village, tmp_path, model_folder):
    folder = tmp_path / "index"
    both = [building(docs, folder, model_folder) for docs in (lane, village)]
    reports = [completed(process) for process in both]
    assert verify(folder).clean
    assert stats(folder)["generation"] == 2
    assert stats(folder)["documents"] in [report["documents"] for report in reports]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with 4 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def free_bytes(disk):
    space = os.statvfs(disk)
    return space.f_bavail * space.f_frsize


@pytest.mark.parametrize("left", [60_000, 200_000, 700_000])
def test_a_full_disk_is_one_line_and_leaves_the_old_index_answering(
    village, lane, built, small_disk, backbone, model_folder, coinkv, left
):
    folder = Path(shutil.copytree(built[0], small_disk / "index"))
    asker = CoinRAG(Index.open(folder, model=backbone), sampling=Sampling(4))
    before = [asker.ask(question).text for question in QUESTIONS]
    asker.index.catalogue.close()
    (small_disk / "filler").write_bytes(b"x" * (free_bytes(small_disk) - left))

    ran = coinkv("build", lane, "--index", folder, "--model", model_folder)
    assert (ran.code, ran.out) == (1, "")
    assert len(ran.err.splitlines()) == 1
    assert "free space" in ran.err
    reopened = CoinRAG(Index.open(folder, model=backbone), sampling=Sampling(4))
    assert [reopened.ask(question).text for question in QUESTIONS] == before
    assert verify(folder).clean

    (small_disk / "filler").unlink()
    kept = len(block_files(folder)) - before_blocks(built)
    ran = coinkv("build", lane, "--index", folder, "--model", model_folder, "--json")
    assert ran.code == 0
    assert json.loads(ran.out)["encoded"] == json.loads(ran.out)["chunks"] - kept


def test_an_index_on_a_read_only_disk_answers_and_a_build_into_it_is_one_line(
    village, built, small_disk, backbone, model_folder, coinkv
):
    folder = Path(shutil.copytree(built[0], small_disk / "index"))
    asker = CoinRAG(Index.open(folder, model=backbone), sampling=Sampling(4))
    before = [asker.ask(question).text for question in QUESTIONS]
    asker.index.catalogue.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    reopened = CoinRAG(Index.open(folder, model=backbone), sampling=Sampling(4))
    assert [reopened.ask(question).text for question in QUESTIONS] == before
    assert verify(folder).clean
    ran = coinkv("build", village, "--index", folder, "--model", model_folder)
    assert (ran.code, ran.out) == (1, "")
    assert len(ran.err.splitlines()) == 1


def before_blocks(built):
    return len(block_files(built[0]))
