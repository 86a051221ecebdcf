"""The real indexing process: neither its own death nor the server's does any harm."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from in_process_library import becomes_true, ended, files, keys

from coinkv.model.decode import Sampling
from coinkv.rag.ask import CoinRAG
from coinkv.rag.index import Index
from coinkv.rag.verify import verify
from coinkv.serve.library import indexing
from coinkv.serve.library.library import Library
from coinkv.serve.settings import ServeSettings
from small_corpus import DOCUMENTS, block_files, load_embedder_once

HERE = Path(__file__).parent
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def lane(name: str, houses: int = 90) -> str:
    """A text of several chunks, so that a job can be hit while it encodes."""
    return " ".join(
        f"House {n} in {name} lane has {n + 2} windows and a {color} door."
        for n, color in zip(range(houses), ("red", "green", "blue", "white") * houses, strict=False)
    )


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Server:
    """A process with a library in it."""

    def __init__(self, data: Path, model: Path) -> None:
        self.data = data
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "serve_library.py"), str(data), str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.lines: list[dict] = []
        threading.Thread(target=self._listen, daemon=True).start()
        (started,) = self.told("started", 1)
        self.entries = dict(started["entries"])

    def _listen(self) -> None:
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def told(self, event: str, count: int) -> list[dict]:
        """The first so many lines of a kind, as soon as there are."""
        found = functools.partial(lambda: [each for each in self.lines if each["event"] == event])
        assert becomes_true(lambda: len(found()) >= count or self.process.poll() is not None)
        assert len(found()) >= count, "the server has died"
        return found()[:count]

    def add(self, name: str, text: str) -> None:
        count = sum(each["event"] == "kept" for each in self.lines)
        self.process.stdin.write(json.dumps([name, text]) + "\n")
        self.process.stdin.flush()
        self.told("kept", count + 1)

    def kill(self) -> None:
        """What a crash, or a user with kill -9, does; the indexing process must not survive it."""
        workers = children(self.process.pid)
        self.process.kill()
        self.process.wait()
        assert becomes_true(lambda: not any(map(is_running, workers)))

    @property
    def index(self) -> Path:
        (record,) = self.data.glob("indexes/*/lane-*/index.json")
        return record.parent / "index"

    def blocks(self) -> int:
        return len(block_files(self.index)) if list(self.data.glob("indexes/*/lane-*")) else 0


@pytest.fixture
def library(tmp_path, model_folder, backbone):
    """A library with a real indexing process."""
    made = Library(
        ServeSettings(data_dir=tmp_path / "data", model=str(model_folder), device="cpu"),
        open_index=functools.partial(Index.open, model=backbone, embedder_named=load_embedder_once),
    )
    made.start()
    yield made
    made.close()


@needs_proc
def test_a_process_of_its_own_indexes_and_survives_its_own_death(library, backbone, monkeypatch):
    monkeypatch.setattr(indexing, "IDLE_SECONDS", 0.0)
    before = set(children(os.getpid()))
    job = library.add("default", "village", files(DOCUMENTS))
    assert becomes_true(lambda: set(children(os.getpid())) - before)
    (worker,) = set(children(os.getpid())) - before
    os.kill(worker, signal.SIGKILL)
    assert ended(library, job).state == "done", library.job("default", job.id).error
    assert keys(library) == sorted(DOCUMENTS)
    with library.open("default", "village") as index:
        answer = CoinRAG(index, sampling=Sampling(2)).ask("Who built the stone bridge?")
        assert answer.evidence
        assert index.settings.mark  # what others upload is data, and the prompt says so
    # idle for longer than it may be, the process ends and frees its memory
    assert becomes_true(lambda: set(children(os.getpid())) == before)


@needs_proc
def test_a_server_killed_while_it_indexes_is_whole_and_finishes_when_it_starts_again(
    tmp_path, model_folder, backbone
):
    survives(tmp_path / "data", model_folder, backbone, moments=[(3, 0.0)])


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("seed", range(8))
def test_a_server_killed_at_any_moment_is_whole_and_finishes_when_it_starts_again(
    tmp_path, model_folder, backbone, seed
):
    dice = random.Random(seed)
    moments = [(dice.randrange(0, 6), dice.uniform(0, 0.5)) for _ in range(3)]
    survives(tmp_path / "data", model_folder, backbone, moments)


def survives(data, model_folder, backbone, moments):
    """Kill servers once so many blocks are kept, and a moment later; then let one finish."""
    server = Server(data, model_folder)
    server.add("first.txt", lane("first", 8))
    server.told("published", 1)
    first = server.blocks()
    server.add("oak.txt", lane("oak"))
    server.add("elm.txt", lane("elm"))
    for blocks, delay in moments:
        assert becomes_true(lambda: server.blocks() >= first + blocks)  # noqa: B023
        time.sleep(delay)
        server.kill()
        index = Index.open(server.index, model=backbone)
        assert CoinRAG(index, sampling=Sampling(1)).ask("Which door is red?").evidence
        index.catalogue.close()
        server = Server(data, model_folder)
        assert server.entries == {"lane": "ready"}
    incoming = server.index.parent / "incoming"
    assert becomes_true(lambda: not list(incoming.iterdir()))
    server.process.stdin.close()
    server.process.wait(60)
    index = Index.open(server.index, model=backbone)
    assert [d.key for d in index.catalogue.documents()] == ["elm.txt", "first.txt", "oak.txt"]
    assert verify(server.index).clean
    assert not list(server.index.parent.glob("work-*"))
