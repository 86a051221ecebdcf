"""The memory tier of a reuse cache: blocks within a byte budget, and what was left with them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from coinkv.errors import CorruptBlockError
from coinkv.kv.codec import CodecName
from coinkv.store.base import BlockRead
from coinkv.store.encoded import EncodedBlock
from coinkv.store.eviction import Standing
from coinkv.store.memory import MemoryStore
from coinkv.store.room import Room

_log = logging.getLogger(__name__)


@dataclass
class HotCounts:
    """What happened in memory since the start."""

    hits: int = 0
    evictions: int = 0
    damaged: int = 0


class Hot:
    """Blocks in memory; their bytes never exceed the budget. Threads may share it.

    Args:
        budget_bytes: for pages and positions of all blocks together; 0 keeps none.
        codec: that new blocks are kept in.
    """

    def __init__(self, budget_bytes: int, codec: CodecName) -> None:
        self.counts = HotCounts()
        self.store = MemoryStore(codec)
        self._room = Room(budget_bytes)
        self._notes: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def __contains__(self, key: str) -> bool:
        return key in self._room

    def get(self, key: str, spans: Sequence[tuple[int, int]] | None) -> BlockRead | None:
        """Rows of a block, a hit; None when it is not here, or was written into and is dropped.

        Raises:
            InputError: no key, or a span lies outside the block.
        """
        try:
            read = self.store.get(key, spans)
        except CorruptBlockError as error:
            _log.warning("a damaged block is dropped: %s", error)
            self.forget(key)
            with self._lock:
                self.counts.damaged += 1
            return None
        if read is not None:
            with self._lock:
                self.counts.hits += 1
                self._room.used(key, time.time())
        return read

    def encoded(self, kv: torch.Tensor, positions: torch.Tensor) -> EncodedBlock:
        """A block in the codec of this tier, to be admitted."""
        return self.store.encoded(kv, positions)

    def fits(self, size: int) -> bool:
        """Whether so many bytes would be let in, all that is not pinned being evictable."""
        return size <= self._room.budget_bytes - self._room.pinned_bytes

    def admit(
        self, key: str, block: EncodedBlock, standing: Standing, note: bytes
    ) -> list[str] | None:
        """Let a new block in; None when it is here already, or pins leave no room for it.

        Args:
            key: the block's.
            block: it.
            standing: its bytes are those of `block`.
            note: what was left with it.

        Returns:
            Keys that were evicted for it.
        """
        with self._lock:
            if key in self._room:
                return None
            goes = self._room.admit(key, standing)
            if goes is None:
                return None
            for each in goes:
                self._drop(each)
            self.store.hold(key, block)
            self._notes[key] = note
            self.counts.evictions += len(goes)
            return goes

    def forget(self, key: str) -> bool:
        """Drop a block; whether it was here."""
        with self._lock:
            self._drop(key)
            return self._room.leave(key)

    def pin(self, key: str, pinned: bool) -> bool:
        """Have a block stay, or no longer; whether it is here."""
        with self._lock:
            return self._room.pin(key, pinned)

    def pinned(self) -> set[str]:
        """Keys of the pinned blocks."""
        with self._lock:
            return self._room.pinned()

    def notes(self) -> dict[str, bytes]:
        """What was left with each block, by key."""
        with self._lock:
            return dict(self._notes)

    def __len__(self) -> int:
        return len(self._room)

    @property
    def budget_bytes(self) -> int:
        """The most bytes there may be."""
        return self._room.budget_bytes

    def _drop(self, key: str) -> None:
        self.store.delete(key)
        self._notes.pop(key, None)
