"""The disk tier of a reuse cache: block files within a byte budget, and the books on them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from coinkv.errors import CorruptBlockError
from coinkv.kv.codec import CodecName, codec_named
from coinkv.store.base import BlockRead
from coinkv.store.encoded import EncodedBlock
from coinkv.store.eviction import Standing
from coinkv.store.keeping import NewBlock, Stored, keep
from coinkv.store.opening import ASIDE, errors_of
from coinkv.store.reconcile import reconcile, unlink
from coinkv.store.refusals import Refusals
from coinkv.store.usage import NotedBlock, Usage
from coinkv.store.whole import WholeDiskStore

BOOKS, BLOCKS = "usage.sqlite", "blocks"
"""Names in the folder of a cache: of the books, and of the folder of block files."""
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Overflow:
    """Blocks as files in `folder/blocks`, their books in `folder/usage.sqlite`.

    Any number of processes may share the folder. A block's file is published before its row is
    committed; its row is struck out before its file goes, and a file goes only while no row names
    it, which the books' lock sees to. What a killed process leaves between two steps is put right
    when the folder is opened next.

    A disk that refuses is no error here: it is counted, and logged the first time of several in a
    row; the books are opened as soon as they can be. `delete` alone says so.

    Args:
        folder: made when missing.
        budget_bytes: for the block files together; None for no bound.
        codec: that new blocks are written in.
        fsync: as of `DiskStore`.

    Attributes:
        disk: the files.
        refusals: what the disk refused.
        evictions: blocks that went for others here.
        damaged: damaged blocks found.
    """

    def __init__(
        self, folder: Path, budget_bytes: int | None, *, codec: CodecName, fsync: bool
    ) -> None:
        self.budget_bytes = budget_bytes
        self.refusals = Refusals()
        self.evictions = 0
        self.damaged = 0
        self.disk = WholeDiskStore(folder / BLOCKS, fsync=fsync, codec=codec)
        self._codec = codec_named(codec)
        self._path = folder / BOOKS
        self._usage: Usage | None = None
        self._reconciled = 0  # which opening of the books was reconciled last
        self._told: tuple[int, int] | None = None
        self._serial = 0
        self._opening, self._counting = threading.RLock(), threading.Lock()
        self.refusals.write(self._books, None)

    def put(
        self,
        key: str,
        kv: torch.Tensor,
        positions: torch.Tensor,
        importance: float,
        note: bytes,
    ) -> Stored:
        """Keep a block, evicting others for it; see `BlockStore.put` and `Standing`."""
        size = self._codec.block_bytes(kv.shape[1:], kv.dtype, len(kv))
        if self.budget_bytes is not None and size > self.budget_bytes:
            return Stored()
        new = NewBlock(key, kv, positions, importance, note)
        stored = self.refusals.write(
            lambda: keep(new, self._books(), self.disk, self.budget_bytes), Stored()
        )
        with self._counting:
            self.evictions += len(stored.evicted)
        return stored

    def has(self, key: str) -> bool:
        """Whether a block is here, with what was left with it."""
        return self.file_bytes(key) > 0 and self.note(key) is not None

    def file_bytes(self, key: str) -> int:
        """Length of a block's file, 0 when there is none or it cannot be told."""
        return self.refusals.read(lambda: self.disk.size_bytes(key), 0)

    def standing(self, key: str) -> Standing | None:
        """How a block stands."""
        return self.refusals.read(lambda: self._books().standing(key), None)

    def note(self, key: str) -> bytes | None:
        """What was left with a block."""
        return self.refusals.read(lambda: self._books().note(key), None)

    def get(self, key: str, spans: Sequence[tuple[int, int]] | None) -> BlockRead | None:
        """Rows of a block from its file; None when it is not here. Whoever hits calls `used`.

        A damaged block is counted and removed.

        Raises:
            InputError: a span lies outside the block.
        """
        return self._read(key, lambda: self.disk.get(key, spans))

    def load(self, key: str) -> EncodedBlock | None:
        """A whole block as it is written, checked; otherwise as `get`."""
        return self._read(key, lambda: self.disk.encoded(key))

    def used(self, key: str, when: float) -> None:
        """Count a hit, to be written with the next transaction."""
        if self._usage is not None:
            self._usage.used(key, when)

    def pin(self, key: str, pinned: bool) -> bool:
        """Have a block stay, or no longer; whether it is here."""
        return self.refusals.write(lambda: self._books().pin(key, pinned), False)

    def delete(self, key: str) -> bool:
        """Remove a block, row and file; whether it was here.

        Raises:
            StorageError: the disk refuses.
        """
        books, here = self._books(), self.disk.size_bytes(key) > 0
        books.remove([key])
        unlink(books, self.disk, [key])
        return here

    def purge(self) -> None:
        """Remove the blocks of which nothing is known, and books that were set aside.

        Raises:
            StorageError: the disk refuses.
        """
        reconcile(self._books(), self.disk, self.budget_bytes, grace_seconds=0.0)
        with errors_of(self._path):
            self._path.with_name(f"{self._path.name}{ASIDE}").unlink(missing_ok=True)

    def standings(self) -> dict[str, Standing]:
        """How all blocks stand."""
        return self.refusals.read(lambda: self._books().standings(), {})

    def noted(self) -> list[NotedBlock]:
        """All blocks with a note."""
        return self.refusals.read(lambda: self._books().noted_after(0), [])

    def news(self) -> list[NotedBlock]:
        """Blocks with a note that are new since the last call; at the first call, all.

        While no other process commits it costs microseconds and brings nothing, even of this one.
        """
        return self.refusals.read(self._news, [])

    def flush(self) -> None:
        """Write the hits counted so far."""
        self.refusals.write(lambda: self._books().flush(), None)

    def close(self) -> None:
        """Write the hits counted so far and close the books."""
        with self._opening:
            usage, self._usage = self._usage, None
            self._reconciled = 0
        if usage is not None:
            self.refusals.write(usage.close, None)

    def _books(self) -> Usage:
        """The books, open and reconciled.

        Raises:
            StorageError: they cannot be.
        """
        with self._opening:
            if self._usage is None:
                self._usage = Usage(self._path)
            if self._reconciled != self._usage.openings:
                if not self._usage.fixed:
                    reconcile(self._usage, self.disk, self.budget_bytes)
                self._reconciled = self._usage.openings
            return self._usage

    def _read(self, key: str, read: Callable[[], _T | None]) -> _T | None:
        try:
            found = self.refusals.read(read, None)
        except CorruptBlockError as error:
            _log.warning("a damaged block is dropped: %s", error)
            with self._counting:
                self.damaged += 1
            self.refusals.write(lambda: self.delete(key), False)
            return None
        if found is None and self.standing(key) is not None:
            self.refusals.write(lambda: self._strike_lost(key), None)
        return found

    def _strike_lost(self, key: str) -> None:
        """Strike a block out whose file somebody removed."""
        books = self._books()
        with books.writing():
            if self.disk.size_bytes(key) == 0:
                books.remove([key])

    def _news(self) -> list[NotedBlock]:
        books = self._books()
        with self._opening:
            told = books.openings, books.others()
            if told == self._told:
                return []
            if self._told is None or told[0] != self._told[0]:
                self._serial = 0  # books begun anew count anew
            rows = books.noted_after(self._serial)
            self._serial = max([self._serial, *(row.serial for row in rows)])
            self._told = told
        return rows
