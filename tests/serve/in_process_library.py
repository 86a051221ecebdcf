"""A library whose jobs are done in the test's own process, so that no model is loaded twice."""

from __future__ import annotations

import functools
import io
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coinkv.errors import CoinKVError
from coinkv.model.backbone import Backbone
from coinkv.rag.build import BuildOptions
from coinkv.rag.index import Index
from coinkv.serve.library.assignment import Assignment, Outcome
from coinkv.serve.library.indexer import CancelledError, JobError
from coinkv.serve.library.jobs import Job
from coinkv.serve.library.library import Library
from coinkv.serve.library.perform import Performer
from coinkv.serve.library.uploads import UploadedFile
from coinkv.serve.settings import ServeSettings
from small_corpus import CHUNK_TOKENS, load_embedder_once

WAIT_SECONDS = 120.0


class InProcessIndexer:
    """Has the interface of `Indexer`; `gate` holds a job back before it begins."""

    def __init__(self, backbone: Backbone, gate: threading.Event) -> None:
        self.options = BuildOptions(model=backbone, chunk_tokens=CHUNK_TOKENS, codec="raw")
        self.gate, self.begun, self.running = gate, [], False
        self._killed = threading.Event()

    def run(
        self, assignment: Assignment, on_step: Callable[..., None], cancelled: Callable[[], bool]
    ) -> Outcome:
        self.begun.append(assignment)
        while not self.gate.wait(0.005):
            if self._killed.is_set() or cancelled():
                break
        self._killed.clear()
        if cancelled():
            raise CancelledError("indexing was ended")
        try:
            return Performer(lambda: self.options, on_step).perform(assignment)
        except CoinKVError as error:
            raise JobError(error.what, hint=error.hint) from error

    def kill(self) -> None:
        self._killed.set()

    def end(self) -> None:
        self.running = False


class Libraries:
    """Opens libraries over one folder, one after another, as a server's restarts do."""

    def __init__(self, folder: Path, backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.backbone = folder, backbone
        self.gate = threading.Event()
        self.gate.set()
        self.indexers: list[InProcessIndexer] = []
        self.opened: list[Library] = []
        self.published = 0

        def made(settings: ServeSettings, busy: Any) -> InProcessIndexer:
            self.indexers.append(InProcessIndexer(backbone, self.gate))
            return self.indexers[-1]

        monkeypatch.setattr("coinkv.serve.library.indexing.Indexer", made)

    def settings(self, **chosen: Any) -> ServeSettings:
        return ServeSettings(data_dir=self.folder / "data", **chosen)

    def start(self, **chosen: Any) -> Library:
        open_index = functools.partial(
            Index.open, model=self.backbone, embedder_named=load_embedder_once
        )
        library = Library(
            self.settings(**chosen), open_index=open_index, on_published=self._on_published
        )
        library.start()
        self.opened.append(library)
        return library

    def restart(self, **chosen: Any) -> Library:
        self.opened[-1].close()
        return self.start(**chosen)

    def _on_published(self) -> None:
        self.published += 1


@pytest.fixture
def libraries(tmp_path: Path, backbone: Backbone, monkeypatch: pytest.MonkeyPatch):
    """Libraries over one data folder; all are closed behind the test."""
    made = Libraries(tmp_path, backbone, monkeypatch)
    yield made
    made.gate.set()
    for library in made.opened:
        library.close()


def files(documents: dict[str, str | bytes]) -> list[UploadedFile]:
    """Uploaded files by name."""
    return [UploadedFile(name, spooled(content)) for name, content in documents.items()]


def spooled(content: str | bytes) -> Any:
    file = tempfile.SpooledTemporaryFile(1 << 20)  # noqa: SIM115 - the library closes it
    file.write(content.encode() if isinstance(content, str) else content)
    return file


def ended(library: Library, job: Job) -> Job:
    """The job when it has ended."""
    until = time.monotonic() + WAIT_SECONDS
    while not library.job(job.namespace, job.id).ended:
        assert time.monotonic() < until, library.job(job.namespace, job.id)
        time.sleep(0.005)
    return library.job(job.namespace, job.id)


def becomes_true(condition: Callable[[], bool]) -> bool:
    """Wait for what another thread is about to do."""
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def keys(library: Library, namespace: str = "default", name: str = "village") -> list[str]:
    """Keys of the published documents."""
    return [each.key for each in library.documents(namespace, name)[0]]


def everything_in(folder: Path) -> bytes:
    """All bytes of all files below a folder, one after another."""
    into = io.BytesIO()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            into.write(path.read_bytes())
    return into.getvalue()
