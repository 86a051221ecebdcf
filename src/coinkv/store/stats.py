"""The figures of a cache in tiers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TierStats:
    """Where blocks are, and what became of lookups since the tiers were opened.

    Attributes:
        memory_blocks: blocks in memory.
        memory_bytes: their bytes, pages and positions.
        memory_budget_bytes: the most they may be.
        disk_blocks: blocks on disk, those in memory and those of other processes among them.
        disk_bytes: their files' bytes.
        disk_budget_bytes: the most they may be; None for no bound, or no disk tier.
        pinned: distinct blocks that are pinned.
        memory_hits: lookups answered from memory.
        disk_hits: lookups answered from disk.
        misses: lookups that found nothing.
        memory_evictions: blocks that went from memory for others; they may be on disk.
        disk_evictions: blocks that went from disk for blocks of this process.
        damaged: damaged blocks found and dropped.
        read_failures: reads that the disk refused; nothing was found there then.
        write_failures: writes that the disk refused; memory went on without.
    """

    memory_blocks: int
    memory_bytes: int
    memory_budget_bytes: int
    disk_blocks: int
    disk_bytes: int
    disk_budget_bytes: int | None
    pinned: int
    memory_hits: int
    disk_hits: int
    misses: int
    memory_evictions: int
    disk_evictions: int
    damaged: int
    read_failures: int
    write_failures: int

    @property
    def lookups(self) -> int:
        """Calls of `get` that were answered."""
        return self.memory_hits + self.disk_hits + self.misses
