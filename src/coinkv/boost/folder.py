"""What a reuse cache's folder holds, told without a model."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coinkv.boost.runs import Run
from coinkv.errors import InputError, StorageError
from coinkv.store.disk import DiskStore
from coinkv.store.eviction import Standing
from coinkv.store.overflow import BLOCKS, BOOKS
from coinkv.store.usage import Usage


@dataclass(frozen=True)
class OwnerStats:
    """What is kept of one model, codec and namespace.

    Attributes:
        owner: digest of the three, hex; the names themselves are not in the folder.
        runs: how many runs of tokens.
        exact_runs: of the runs, those that can be reused exactly.
        tokens: of all runs.
        bytes: of their files.
        hits: how often runs were found.
        pinned: runs that are pinned.
        last_used: seconds since the epoch of the last use of any.
    """

    owner: str
    runs: int
    exact_runs: int
    tokens: int
    bytes: int
    hits: int
    pinned: int
    last_used: float


@dataclass(frozen=True)
class FolderStats:
    """What a folder holds.

    Attributes:
        runs: how many runs, of all owners.
        tokens: their tokens.
        bytes: of all block files.
        nameless: block files that nothing is known of; they are removed in time.
        owners: by model, codec and namespace, the one used last first.
    """

    runs: int
    tokens: int
    bytes: int
    nameless: int
    owners: tuple[OwnerStats, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON-ready facts."""
        return {**asdict(self), "owners": [asdict(each) for each in self.owners]}


def require_cache(folder: Path) -> None:
    """Refuse a folder that is no reuse cache's.

    Raises:
        InputError: it holds no books.
    """
    if not (folder / BOOKS).is_file():
        raise InputError(
            "no reuse cache in this folder",
            where=folder,
            hint="make one with: coinkv boost warm FILE --folder DIR",
        )


def folder_stats(folder: Path) -> FolderStats:
    """Count what a reuse cache's folder holds. Other processes may use it meanwhile.

    Args:
        folder: as given to `KVBoost.from_pretrained`.

    Raises:
        InputError: there is no reuse cache.
        StorageError: its books cannot be read, or used. Nothing is changed.
    """
    require_cache(folder)
    problem = Usage.problem(folder / BOOKS)
    if problem is not None:
        raise StorageError(
            f"its books cannot be used: {problem}",
            where=folder / BOOKS,
            hint="the next command that fills the folder begins them anew",
        )
    disk = DiskStore(folder / BLOCKS)
    sizes = {key: disk.size_bytes(key) for key in list(disk.keys())}
    with closing(Usage(folder / BOOKS)) as books:
        standings, noted = books.standings(), books.noted_after(0)
    runs = [run for row in noted if (run := Run.from_note(row.key, row.note)) is not None]
    known = [(run, standings[run.key]) for run in runs if run.key in standings]
    owners = [
        _owner(owner, [pair for pair in known if pair[0].owner == owner])
        for owner in sorted({run.owner for run, _ in known})
    ]
    return FolderStats(
        runs=len(known),
        tokens=sum(len(run) for run, _ in known),
        bytes=sum(sizes.values()),
        nameless=len(sizes.keys() - {run.key for run, _ in known}),
        owners=tuple(sorted(owners, key=lambda each: -each.last_used)),
    )


def _owner(owner: str, known: Iterable[tuple[Run, Standing]]) -> OwnerStats:
    runs, standings = zip(*known, strict=True)
    return OwnerStats(
        owner=owner,
        runs=len(runs),
        exact_runs=sum(run.exact for run in runs),
        tokens=sum(map(len, runs)),
        bytes=sum(each.bytes for each in standings),
        hits=sum(each.hits for each in standings),
        pinned=sum(each.pinned for each in standings),
        last_used=max(each.last_used for each in standings),
    )
