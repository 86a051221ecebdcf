"""What a reader of a tier has not been told yet: blocks that came and blocks that went."""

from __future__ import annotations

from typing import NamedTuple


class Changes(NamedTuple):
    """What is new since the last time.

    Attributes:
        added: `(key, note)` of blocks that appeared.
        dropped: keys told of before that are in no tier any more; none of them is in `added`.
    """

    added: list[tuple[str, bytes]]
    dropped: list[str]


class Journal:
    """Collects comings and goings until they are taken.

    It tells of a going only where it told of the coming, so it never holds more than the blocks
    there are and the blocks it told of. The caller keeps threads apart.
    """

    def __init__(self) -> None:
        self._told: dict[str, bytes] = {}
        self._added: dict[str, bytes] = {}
        self._dropped: dict[str, None] = {}

    def came(self, key: str, note: bytes) -> None:
        """A block was put: news even if it was told, since whoever puts it did not know."""
        self._dropped.pop(key, None)
        self._added[key] = note

    def seen(self, key: str, note: bytes) -> None:
        """A block is here; no news where that was told, with this note."""
        if key in self._dropped or self._told.get(key) != note:
            self.came(key, note)

    def went(self, key: str) -> None:
        """A block is in no tier any more."""
        self._added.pop(key, None)
        if key in self._told:
            self._dropped[key] = None

    def take(self) -> Changes:
        """All news, which is no news afterwards."""
        changes = Changes(list(self._added.items()), list(self._dropped))
        self._told |= self._added
        for key in self._dropped:
            del self._told[key]
        self._added, self._dropped = {}, {}
        return changes
