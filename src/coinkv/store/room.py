"""A byte budget in memory and how the blocks in it stand: who comes in, and who goes for it."""

from __future__ import annotations

from dataclasses import replace

from coinkv.store.eviction import Standing, room_for


class Room:
    """The standings of the blocks in a budget; their bytes never exceed it.

    The caller keeps threads apart.

    Args:
        budget_bytes: for all blocks together.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.held_bytes = 0
        self.pinned_bytes = 0
        self._standings: dict[str, Standing] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._standings

    def __len__(self) -> int:
        return len(self._standings)

    def admit(self, key: str, standing: Standing) -> list[str] | None:
        """Let a new block in; None where pinned blocks leave no room for it.

        Returns:
            Who had to go: they are struck out here.
        """
        goes = self._room_for(standing.bytes)
        if goes is not None:
            for each in goes:
                self.leave(each)
            self._set(key, standing)
        return goes

    def leave(self, key: str) -> bool:
        """Strike a block out; whether it was here."""
        standing = self._standings.pop(key, None)
        if standing is None:
            return False
        self.held_bytes -= standing.bytes
        self.pinned_bytes -= standing.bytes * standing.pinned
        return True

    def used(self, key: str, when: float) -> None:
        """Count a hit; `when` in seconds since the epoch."""
        standing = self._standings.get(key)
        if standing is not None:
            self._standings[key] = replace(standing, hits=standing.hits + 1, last_used=when)

    def pin(self, key: str, pinned: bool) -> bool:
        """Have a block stay, or no longer; whether it is here."""
        standing = self._standings.get(key)
        if standing is None:
            return False
        self.leave(key)
        self._set(key, replace(standing, pinned=pinned))
        return True

    def pinned(self) -> set[str]:
        """Keys of the pinned blocks."""
        return {key for key, standing in self._standings.items() if standing.pinned}

    def _room_for(self, new_bytes: int) -> list[str] | None:
        if self.held_bytes + new_bytes <= self.budget_bytes:
            return []
        return room_for(new_bytes, self._standings, self.budget_bytes)

    def _set(self, key: str, standing: Standing) -> None:
        self._standings[key] = standing
        self.held_bytes += standing.bytes
        self.pinned_bytes += standing.bytes * standing.pinned
