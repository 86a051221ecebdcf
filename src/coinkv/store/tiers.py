"""Memory, then disk: KV blocks within byte budgets, the least worth keeping evicted first."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import torch

from coinkv.errors import InputError
from coinkv.kv.codec import CodecName
from coinkv.store.base import BlockRead, BlockStore, require_key
from coinkv.store.eviction import Standing, importance_of
from coinkv.store.hot import Hot
from coinkv.store.journal import Changes, Journal
from coinkv.store.layout import require_block
from coinkv.store.loading import Loader
from coinkv.store.overflow import Overflow
from coinkv.store.stats import TierStats


class Tiers(BlockStore):
    """Blocks in memory within a byte budget, and all of them in a folder within another.

    A block is kept in memory and written through to disk. Eviction (see `eviction.victims`) from
    memory leaves it on disk, where it is found again and brought back; a block larger than the
    budget, or than what pins leave of it, is served from disk. What `get` returns must not be
    written into, see `MemoryStore`.

    Threads may share it, and processes a folder: each opens its own. A disk that fails is logged
    and counted, and memory goes on without. A process killed at any moment leaves a folder that
    opens and holds whole blocks, exactly accounted.

    Args:
        memory_budget_bytes: for blocks in memory; 0 keeps none there.
        codec: that blocks are kept in, in both tiers.
        folder: of the disk tier, made when missing; None for memory alone.
        disk_budget_bytes: for block files; None for no bound.
        fsync: have the disk confirm each block; without it a power cut may damage blocks just
            written (reads notice), a killed process cannot.

    Raises:
        InputError: a budget below 0, no such codec, or the folder is a file.
    """

    def __init__(
        self,
        memory_budget_bytes: int,
        *,
        codec: CodecName = "raw",
        folder: Path | None = None,
        disk_budget_bytes: int | None = None,
        fsync: bool = False,
    ) -> None:
        for budget in (memory_budget_bytes, disk_budget_bytes or 0):
            if not isinstance(budget, int) or budget < 0:
                hint = "give a number of bytes, 0 or more, such as 2_000_000_000"
                raise InputError(f"a budget of {budget!r} bytes", hint=hint)
        if folder is not None and folder.exists() and not folder.is_dir():
            raise InputError("this is a file", where=folder, hint="name a folder for the disk tier")
        self.codec = codec
        self._hot = Hot(memory_budget_bytes, codec)
        self._disk: Overflow | None = None
        self._loader: Loader | None = None
        if folder is not None:
            self._disk = Overflow(folder, disk_budget_bytes, codec=codec, fsync=fsync)
            self._loader = Loader(self._disk, self._hot)
        self._journal = Journal()
        self._misses = 0
        self._lock = threading.Lock()

    def put(self, key: str, kv: torch.Tensor, positions: torch.Tensor, *, note: bytes = b"") -> int:
        """Keep a block in memory and on disk; see `BlockStore.put`.

        Args:
            key: 64 lower-case hex digits.
            kv: `[tokens, layers, 2, kv_heads, head_dim]`, float16, bfloat16 or float32.
            positions: `[tokens]` int64.
            note: what the caller must know of the block before reading it; kept with it.

        Returns:
            Bytes written in both tiers together; 0 when the block is in one of them already, or
            when neither has room for it.

        Raises:
            InputError: other shapes or dtypes, or numbers that the codec cannot hold.
        """
        require_key(key)
        require_block(kv, positions)
        written, gone = 0, list[str]()
        if key not in self._hot and not (self._disk is not None and self._disk.has(key)):
            kv = kv.detach().cpu()
            block = self._hot.encoded(kv, positions)
            standing = Standing(block.bytes, importance_of(kv), time.time())
            evicted = self._hot.admit(key, block, standing, note)
            if evicted is not None:
                written += block.bytes
                gone += evicted
            if self._disk is not None:
                stored = self._disk.put(key, kv, positions, standing.importance, note)
                written += stored.bytes
                gone += stored.evicted
        with self._lock:
            self._report_gone(gone)
            if self._is_here(key):
                self._journal.came(key, note)
        return written

    def get(self, key: str, spans: Sequence[tuple[int, int]] | None = None) -> BlockRead | None:
        """Rows of a block, not to be written into; None when it is in no tier.

        A block that is on disk only is brought into memory whole where it fits; threads that ask
        for it meanwhile wait for that one read. A damaged block is dropped, and a miss.

        Raises:
            InputError: no key, or a span lies outside the block; such a call is not counted.
        """
        require_key(key)
        read = self._hot.get(key, spans)
        if read is None and self._loader is not None:
            found = self._loader.get(key, spans)
            read = found.read
            with self._lock:
                self._report_gone(found.evicted)
                if found.note is not None and key in self._hot:
                    # it may have been evicted from disk, and told of as gone, while it was read
                    self._journal.seen(key, found.note)
        if read is None:
            with self._lock:
                self._misses += 1
                self._report_gone([key])
        elif self._disk is not None:
            self._disk.used(key, time.time())
        return read

    def delete(self, key: str) -> bool:
        """Forget a block in all tiers; whether it was in any.

        Raises:
            StorageError: the disk refuses; memory has forgotten it.
        """
        require_key(key)
        here = False
        try:
            # the file first: while it is there, a thread that asks for the block brings it back
            here = self._disk is not None and self._disk.delete(key)
        finally:
            forget = self._hot.forget if self._loader is None else self._loader.forget
            here = forget(key) or here
            with self._lock:
                self._report_gone([key])
        return here

    def purge(self) -> None:
        """Remove what the folder holds and nobody can find: nameless blocks, books set aside.

        Raises:
            StorageError: the disk refuses.
        """
        if self._disk is not None:
            self._disk.purge()

    def keys(self) -> Iterator[str]:
        """The keys of all blocks in any tier, in order.

        Raises:
            StorageError: the disk cannot be listed.
        """
        on_disk = [] if self._disk is None else self._disk.disk.keys()
        return iter(sorted({*self._hot.store.keys(), *on_disk}))

    def size_bytes(self, key: str) -> int:
        """Bytes a block takes in memory, or else on disk; 0 when it is in neither."""
        held = self._hot.store.size_bytes(key)
        return held or (0 if self._disk is None else self._disk.file_bytes(key))

    def verify(self, key: str) -> bool:
        """Check a block's file, whole, and that nobody wrote into it in memory; whether it is here.

        Raises:
            CorruptBlockError: either is damaged.
            StorageError: the file could not be read.
        """
        on_disk = self._disk is not None and self._disk.disk.verify(key)
        return self._hot.store.verify(key) or on_disk

    def sweep(self) -> int:
        """Remove what writers that died left on disk; returns how many leftovers went."""
        return 0 if self._disk is None else self._disk.disk.sweep()

    def pin(self, key: str) -> bool:
        """Have a block stay in the tiers where it is, until unpinned; whether it is here.

        A pin is on or off, however often it is set, and lasts as long as the folder.
        """
        return self._pin(key, True)

    def unpin(self, key: str) -> bool:
        """Let a block go again when it is worth least; whether it is here."""
        return self._pin(key, False)

    def notes(self) -> Iterator[tuple[str, bytes]]:
        """Key and note of every block in any tier, those of other processes too."""
        on_disk = [] if self._disk is None else self._disk.noted()
        return iter(sorted((self._hot.notes() | {row.key: row.note for row in on_disk}).items()))

    def changes(self) -> Changes:
        """What came and what went since the last call; at the first call, all that is here.

        While nothing happens it costs microseconds. What other processes add is noticed here; what
        they evict or delete, when a `get` finds it gone.
        """
        news = [] if self._disk is None else self._disk.news()
        with self._lock:
            for row in news:
                self._journal.seen(row.key, row.note)
            return self._journal.take()

    def stats(self) -> TierStats:
        """Where blocks are, and what became of lookups."""
        hot, disk, loader = self._hot, self._disk, self._loader
        on_disk = {} if disk is None else disk.standings()
        pinned = {key for key, standing in on_disk.items() if standing.pinned}
        return TierStats(
            memory_blocks=len(hot),
            memory_bytes=hot.store.total_bytes(),
            memory_budget_bytes=hot.budget_bytes,
            disk_blocks=len(on_disk),
            disk_bytes=sum(standing.bytes for standing in on_disk.values()),
            disk_budget_bytes=disk.budget_bytes if disk else None,
            pinned=len(pinned | hot.pinned()),
            memory_hits=hot.counts.hits,
            disk_hits=loader.hits if loader else 0,
            misses=self._misses,
            memory_evictions=hot.counts.evictions,
            disk_evictions=disk.evictions if disk else 0,
            damaged=hot.counts.damaged + (disk.damaged if disk else 0),
            read_failures=disk.refusals.reads if disk else 0,
            write_failures=disk.refusals.writes if disk else 0,
        )

    def emptied(self) -> Tiers:
        """Tiers with nothing in them: the same codec and memory budget, no folder."""
        return Tiers(self._hot.budget_bytes, codec=self.codec)

    def flush(self) -> None:
        """Write hits and last uses to disk; else that happens with the next put."""
        if self._disk is not None:
            self._disk.flush()

    def close(self) -> None:
        """Flush and let go of the folder; nothing may be called afterwards."""
        if self._disk is not None:
            self._disk.close()

    def __enter__(self) -> Tiers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _is_here(self, key: str) -> bool:
        return key in self._hot or (self._disk is not None and self._disk.file_bytes(key) > 0)

    def _report_gone(self, evicted: Iterable[str]) -> None:
        for key in evicted:
            if not self._is_here(key):
                self._journal.went(key)

    def _pin(self, key: str, pinned: bool) -> bool:
        require_key(key)
        in_memory = self._hot.pin(key, pinned)
        return (self._disk is not None and self._disk.pin(key, pinned)) or in_memory
