"""Open generations of an index: questions lease the newest; an old one lives while it is used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coinkv.errors import IndexNotFoundError
from coinkv.rag.index import Index
from coinkv.serve.library.contents import generation_of


@dataclass(eq=False)
class _Opened:
    """An open index, the generation it reads, and how many questions use it."""

    index: Index
    generation: int
    leases: int = 0


class Generations:
    """The generations of one index that are open. Safe to use from threads.

    On the disk only two generations can be read, the newest and the one before. So nothing may be
    published while a generation before the newest is leased: see `settled`.

    Args:
        folder: the index folder.
        open_index: opens the newest generation in it.
        on_free: called whenever the last lease of a generation ends.
    """

    def __init__(
        self, folder: Path, open_index: Callable[[Path], Index], on_free: Callable[[], None]
    ) -> None:
        self._folder, self._open_index, self._on_free = folder, open_index, on_free
        self._newest: _Opened | None = None
        self._old: list[_Opened] = []
        self._closed = False
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self.used = 0.0

    @property
    def settled(self) -> bool:
        """Nobody uses a generation other than the newest, so that a newer one may be published."""
        return not self._old

    @property
    def unused(self) -> bool:
        """Nobody uses any generation."""
        with self._lock:
            return not self._old and (self._newest is None or self._newest.leases == 0)

    @property
    def is_open(self) -> bool:
        """Whether the newest generation is open."""
        return self._newest is not None

    @property
    def generation(self) -> int:
        """The newest generation that is open, 0 when none is."""
        newest = self._newest
        return 0 if newest is None else newest.generation

    @contextmanager
    def lease(self) -> Iterator[Index]:
        """The newest generation, to be used inside; opened if it is not open yet.

        Raises:
            IndexNotFoundError: the index has been dropped, or nothing is published.
            IndexMismatchError: it belongs to another model, prompt, embedder or format version.
        """
        opened = self._leased()
        try:
            yield opened.index
        finally:
            self._release(opened)

    def is_newest(self) -> bool:
        """Whether no other process has published a generation newer than the one that is open."""
        newest = self._newest
        return newest is None or newest.index.catalogue.generation == newest.generation

    def renew(self) -> None:
        """Open the newest generation for the leases to come.

        Raises:
            CoinKVError: it cannot be opened; nothing is open for new leases then.
        """
        with self._opening:
            try:
                self._put(self._opened())
            except Exception:
                self._put(None)
                raise

    def relabel(self, generation: int) -> None:
        """The same contents have been published under a new number."""
        with self._lock:
            if self._newest is not None:
                self._newest.generation = generation

    def shut(self) -> None:
        """Have nothing open beyond the leases that there are."""
        self._put(None)

    def close(self) -> None:
        """Have nothing open beyond the leases that there are, and grant no further one."""
        self._closed = True
        self.shut()

    def _opened(self) -> _Opened:
        generation = generation_of(self._folder)
        return _Opened(self._open_index(self._folder), generation)

    def _leased(self) -> _Opened:
        with self._lock:
            if self._newest is not None:
                return self._counted(self._newest)
        with (
            self._opening
        ):  # whoever comes meanwhile waits for this opening, not for one of its own
            if self._newest is None:
                self._put(self._opened())
            with self._lock:
                if self._newest is None:
                    raise IndexNotFoundError("the index has just been deleted")
                return self._counted(self._newest)

    def _counted(self, opened: _Opened) -> _Opened:
        opened.leases += 1
        self.used = time.monotonic()
        return opened

    def _release(self, opened: _Opened) -> None:
        with self._lock:
            opened.leases -= 1
            free = opened.leases == 0
            if free and opened is not self._newest:
                self._old.remove(opened)
                opened.index.catalogue.close()
        if free:
            self._on_free()

    def _put(self, opened: _Opened | None) -> None:
        """Make a generation the newest, and close the one before unless it is leased."""
        with self._lock:
            before, self._newest = self._newest, opened
            if self._closed and opened is not None:
                opened.index.catalogue.close()
                self._newest = None
            if before is not None and before.leases:
                self._old.append(before)
            elif before is not None:
                before.index.catalogue.close()
