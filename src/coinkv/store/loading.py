"""Bringing blocks from disk into memory: each once, however many threads ask for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coinkv.store.base import BlockRead
from coinkv.store.encoded import EncodedBlock
from coinkv.store.eviction import Standing
from coinkv.store.hot import Hot
from coinkv.store.overflow import Overflow


@dataclass(frozen=True)
class Found:
    """What came of looking for a block on disk.

    Attributes:
        read: its rows; None when it is not there.
        evicted: keys that went from memory for it.
        note: what was left with it, where it was brought into memory.
    """

    read: BlockRead | None
    evicted: tuple[str, ...] = ()
    note: bytes | None = None


class Loader:
    """Serves blocks from disk, and brings those that fit into memory on the way.

    Args:
        disk: where blocks come from.
        hot: where they are brought.
    """

    def __init__(self, disk: Overflow, hot: Hot) -> None:
        self.hits = 0
        self._disk = disk
        self._hot = hot
        self._flights: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def get(self, key: str, spans: Sequence[tuple[int, int]] | None) -> Found:
        """Rows of a block that was not in memory a moment ago.

        The block is read whole and kept in memory where it fits; threads that ask for it meanwhile
        wait for that. Otherwise, and that is no error, its rows come from the file.

        Raises:
            InputError: a span lies outside the block.
        """
        size = self._disk.file_bytes(key)
        if size and self._hot.fits(size):
            mine = threading.Event()
            with self._lock:
                flight = mine if key in self._hot else self._flights.setdefault(key, mine)
                leads = self._flights.get(key) is mine
            if leads:
                block, evicted, note = self._brought_in(key, mine)
                read = None if block is None else block.rows(spans)
                return Found(self._counted(read), evicted, note)
            if flight is not mine:
                flight.wait()
            read = self._hot.get(key, spans)
            if read is not None:
                return Found(read)
        return Found(self._counted(self._disk.get(key, spans)))

    def forget(self, key: str) -> bool:
        """Drop a block from memory, also one that is being read; whether it was there."""
        with self._lock:
            self._flights.pop(key, None)
            return self._hot.forget(key)

    def _brought_in(
        self, key: str, flight: threading.Event
    ) -> tuple[EncodedBlock | None, tuple[str, ...], bytes | None]:
        """The block, keys that went from memory for it, and the note it has there."""
        try:
            block = self._disk.load(key)
            if block is None:
                return None, (), None
            known = self._disk.standing(key) or Standing(0, 0.0, 0.0)
            standing = replace(known, bytes=block.bytes, hits=known.hits + 1, last_used=time.time())
            note = self._disk.note(key)
            if note is None:
                return block, (), None  # it is being evicted: nobody could find it in memory
            with self._lock:
                if self._flights.get(key) is not flight:
                    return block, (), None  # it was deleted while it was read
                evicted = self._hot.admit(key, block, standing, note)
                return block, tuple(evicted or ()), note
        finally:
            with self._lock:
                if self._flights.get(key) is flight:
                    del self._flights[key]
            flight.set()

    def _counted(self, read: BlockRead | None) -> BlockRead | None:
        with self._lock:
            self.hits += read is not None
        return read
