"""What keeps a build safe: one builder at a time, one codec, chunks kept behind the encoder."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from coinkv.corpus.catalogue import Catalogue
from coinkv.errors import StorageError
from coinkv.kv.codec import CodecName
from coinkv.store.base import BlockStore

_FIRST_CODEC = "codec of the first build"


class BuildLock:
    """One build of an index at a time, over processes; a killed builder leaves no lock behind.

    Args:
        folder: the index folder, made if missing.
        on_wait: called once when another build holds the lock.
    """

    def __init__(self, folder: Path, on_wait: Callable[[], None] | None = None) -> None:
        self._folder, self._on_wait = folder, on_wait

    def __enter__(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self._folder / "build.lock")
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                if self._on_wait is not None:
                    self._on_wait()
                self._lock.acquire()
        except OSError as error:
            raise StorageError(
                f"cannot write here: {error.strerror or error}",
                where=self._folder,
                hint="name a folder you may write to",
            ) from error

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


class Finisher:
    """Keeps finished chunks in one background thread, so that the disk does not stall the encoder.

    At most two chunks wait; an error in the background is raised at the next `submit` or at the
    end of the `with` block.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "coinkv-finisher")
        self._waiting: list[Future[None]] = []

    def __enter__(self) -> Finisher:
        return self

    def submit(self, keep: Callable[[], None]) -> None:
        """Run `keep` behind those submitted before."""
        while len(self._waiting) >= 2:
            self._waiting.pop(0).result()
        self._waiting.append(self._pool.submit(keep))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True)  # what is encoded is worth keeping, even after an error
        if error is None:
            for future in self._waiting:
                future.result()


def leave_one_codec(catalogue: Catalogue, store: BlockStore, codec: CodecName) -> None:
    """Remove what a first build that was cut off has written in another codec.

    Once an index is published its settings refuse another codec; before that nothing else would
    keep blocks of two codecs apart, since a key does not depend on the codec.
    """
    if catalogue.generation or (catalogue.state(_FIRST_CODEC) or "raw") == codec:
        return
    for key in list(store.keys()):
        store.delete(key)
    catalogue.set_state(_FIRST_CODEC, codec)
