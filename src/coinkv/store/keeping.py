"""Writing a block to a disk tier: file, row and evictions, whatever others do meanwhile."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import torch

from coinkv.errors import StorageError
from coinkv.store.base import BlockStore
from coinkv.store.eviction import Standing, room_for
from coinkv.store.reconcile import unlink
from coinkv.store.usage import Usage

_TRIES = 3


@dataclass(frozen=True, eq=False)
class NewBlock:
    """A block to keep: `BlockStore.put`'s arguments, its `importance_of`, and the caller's note."""

    key: str
    kv: torch.Tensor
    positions: torch.Tensor
    importance: float
    note: bytes


@dataclass(frozen=True)
class Stored:
    """What came of putting a block.

    Attributes:
        bytes: written; 0 when it was there, had no room, or could not be written.
        evicted: keys that went for it.
    """

    bytes: int = 0
    evicted: tuple[str, ...] = ()


def keep(new: NewBlock, books: Usage, disk: BlockStore, budget_bytes: int | None) -> Stored:
    """Keep a block, evicting others for it where the budget is full.

    The file comes first, then the row; rows of the evicted go with that, their files afterwards.
    Where pins leave no room the file goes again.

    Raises:
        InputError: numbers that the codec cannot hold.
        StorageError: the disk refuses.
    """
    for _ in range(_TRIES):
        written = disk.put(new.key, new.kv, new.positions)
        try:
            size, goes = _entered(new, books, disk, budget_bytes)
        except StorageError:
            if written:  # without a row its bytes would not count
                with suppress(StorageError):
                    disk.delete(new.key)
            raise
        unlink(books, disk, [new.key] if goes is None else goes)
        if goes is None:
            return Stored()
        if size:
            return Stored(written, tuple(goes))
    raise StorageError(
        "other processes remove blocks as soon as they are written",
        where=f"block {new.key}",
        hint="give the disk tier a larger budget",
    )


def _entered(
    new: NewBlock, books: Usage, disk: BlockStore, budget_bytes: int | None
) -> tuple[int, list[str] | None]:
    """Enter a block that was written and strike out who goes for it.

    Returns:
        Bytes of its file, 0 when another process removed it meanwhile; and who goes, None where
        pins leave no room.
    """
    with books.writing():
        size = disk.size_bytes(new.key)
        goes = _room_for(new.key, size, books, budget_bytes)
        books.remove([new.key] if goes is None else goes)
        if size and goes is not None:
            books.add(new.key, Standing(size, new.importance, time.time()), new.note)
    return size, goes


def _room_for(key: str, size: int, books: Usage, budget_bytes: int | None) -> list[str] | None:
    before = books.standing(key)
    held = books.total_bytes() - (before.bytes if before else 0)
    if budget_bytes is None or held + size <= budget_bytes:
        return []
    others = books.standings()
    others.pop(key, None)
    return room_for(size, others, budget_bytes)
