"""Putting the books of a disk tier right after whatever killed its last users."""

from __future__ import annotations

import time
from collections.abc import Iterable

from coinkv.store.base import BlockStore
from coinkv.store.eviction import Standing, victims
from coinkv.store.usage import Usage

GRACE_SECONDS = 300.0
"""How long a block that was found without a row waits for its writer."""


def reconcile(
    books: Usage,
    disk: BlockStore,
    budget_bytes: int | None,
    grace_seconds: float = GRACE_SECONDS,
) -> None:
    """Make the rows the files, and both fit the budget.

    Rows without a file go, and bytes become the files'. A file without a row is entered without a
    note, so that it counts: another process may be about to enter it with one. Where none did so
    for the time of grace, its writer died, nobody knows what it is good for, and it goes.

    Args:
        books: on those files.
        disk: the files; temporary ones of dead writers are removed.
        budget_bytes: None for no bound.
        grace_seconds: how long such a file waits for its writer.

    Raises:
        StorageError: the disk refuses.
    """
    disk.sweep()
    with books.writing():
        _enter_files(books, disk)
        goes = books.without_note(grace_seconds)
        books.remove(goes)
        if budget_bytes is not None:
            more = victims(books.standings(), books.total_bytes() - budget_bytes)
            books.remove(more)
            goes += more
    unlink(books, disk, goes)


def unlink(books: Usage, disk: BlockStore, keys: Iterable[str]) -> None:
    """Remove the files of blocks that were struck out, but for those entered again meanwhile.

    Raises:
        StorageError: the disk refuses.
    """
    with books.writing():
        for key in keys:
            if books.standing(key) is None:
                disk.delete(key)


def _enter_files(books: Usage, disk: BlockStore) -> None:
    found = ((key, disk.size_bytes(key)) for key in list(disk.keys()))
    files = {key: size for key, size in found if size}
    rows = books.standings()
    books.remove(rows.keys() - files.keys())
    now = time.time()
    for key, size in files.items():
        if key not in rows or rows[key].bytes != size:
            books.add(key, Standing(size, 0.0, now), None)
