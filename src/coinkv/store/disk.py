"""The disk tier: one immutable file a block, read by ranges, published whole or not at all."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from coinkv.errors import CorruptBlockError, StorageError
from coinkv.kv.codec import CodecName, codec_named
from coinkv.store.atomic import is_leftover, publish
from coinkv.store.base import BlockRead, BlockStore, is_key, require_key
from coinkv.store.layout import bytes_of, header_of, require_block
from coinkv.store.ranges import BlockHead, read_head, read_rows

HEADS_KEPT = 4096
"""Most blocks whose header and positions stay in memory: about 5 KB each at 512 tokens."""

_SUFFIX = ".safetensors"
_HINTS = {
    errno.ENOSPC: "free space on that disk and try again",
    errno.EDQUOT: "the disk quota is used up: free space or raise it, then try again",
    errno.EACCES: "give this user permission to read and write there",
    errno.EPERM: "give this user permission to read and write there",
    errno.EROFS: "that disk is mounted read-only: choose another folder or mount it writable",
}
_log = logging.getLogger(__name__)


class DiskStore(BlockStore):
    """Blocks as files `root/ab/<key>.safetensors`, `ab` being the key's first two digits.

    Any number of processes and threads may read and write. A writer fills a file of its own, syncs
    it and renames it, so a crash leaves a whole block or none. A range read costs the pages it
    touches, each checked on every read. Headers are kept in memory, and noticed when replaced.

    Args:
        root: the folder, made when the first block is kept.
        fsync: have the disk confirm a block before it counts as kept; without it, a power cut may
            damage blocks just written (reads notice), a killed process still cannot.
        codec: what blocks are written in; those of any codec are read.

    Raises:
        InputError: there is no such codec.
    """

    def __init__(self, root: Path, *, fsync: bool = True, codec: CodecName = "raw") -> None:
        self.root = Path(root)
        self._fsync = fsync
        self._codec = codec_named(codec)
        self._heads: OrderedDict[str, tuple[tuple[int, ...], BlockHead]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, spans: Sequence[tuple[int, int]] | None = None) -> BlockRead | None:
        """Rows of a block, read and checked by pages of 32 tokens; see `BlockStore.get`."""
        path = self._path(key)
        with _storage_errors(path), _opened(path) as file:
            if file is None:
                return None
            identity = _identity(file)
            head = self._kept(key, identity)
            if head is not None:
                # A file can change and keep inode, size and time: only a fresh header accuses it.
                with suppress(CorruptBlockError):
                    return _read(file, head, spans, path, head_bytes=0)
            head = read_head(file, key, path)
            self._keep(key, identity, head)
            return _read(file, head, spans, path, head_bytes=head.bytes_read)

    def put(self, key: str, kv: torch.Tensor, positions: torch.Tensor) -> int:
        """Keep a block as one file, published whole; see `BlockStore.put`.

        A file whose header, positions or length are damaged is replaced; damage in its rows is
        found when they are read, so delete it before putting the block again.
        """
        path = self._path(key)
        require_block(kv, positions)
        with _storage_errors(path):
            if _is_sound(path, key):
                return 0
            pages = self._codec.encode(kv)
            positions = positions.cpu().contiguous()
            header = memoryview(header_of(key, kv, positions, self._codec, pages))
            pieces = [header, bytes_of(positions), bytes_of(pages)]
            publish(path, pieces, fsync=self._fsync)
        return sum(len(piece) for piece in pieces)

    def delete(self, key: str) -> bool:
        """Remove a block's file, whole or damaged; see `BlockStore.delete`."""
        path = self._path(key)
        with self._lock:
            self._heads.pop(key, None)
        with _storage_errors(path):
            try:
                path.unlink()
            except FileNotFoundError:
                return False
        return True

    def keys(self) -> Iterator[str]:
        """The keys of all block files, in order; other files are passed over."""
        for path in self._files():
            key = path.name.removesuffix(_SUFFIX)
            if path.suffix == _SUFFIX and is_key(key) and path.parent.name == key[:2]:
                yield key

    def size_bytes(self, key: str) -> int:
        """Length of a block's file, 0 when there is none."""
        path = self._path(key)
        with _storage_errors(path):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                return 0

    def verify(self, key: str) -> bool:
        """Read a block's file whole, its header too, and check all of it; whether it is here.

        Raises:
            CorruptBlockError: any byte that counts is damaged.
            StorageError: the file could not be read.
        """
        path = self._path(key)
        with _storage_errors(path), _opened(path) as file:
            if file is None:
                return False
            layout = read_head(file, key, path).layout
            read_rows(file, layout, [(0, layout.tokens)], path)
        return True

    def sweep(self) -> int:
        """Remove the temporary files of writers that died.

        Returns:
            How many were removed; one that cannot be removed is logged and left.
        """
        removed = 0
        for path in self._files():
            try:
                if is_leftover(path):
                    path.unlink()
                    removed += 1
            except FileNotFoundError:
                continue  # its writer has just finished
            except OSError as error:
                _log.warning("a temporary file cannot be removed: %s", error)
        return removed

    def _path(self, key: str) -> Path:
        require_key(key)
        return self.root / key[:2] / f"{key}{_SUFFIX}"

    def _files(self) -> Iterator[Path]:
        for folder in _listing(self.root):
            if len(folder.name) == 2:
                yield from _listing(folder)

    def _kept(self, key: str, identity: tuple[int, ...]) -> BlockHead | None:
        with self._lock:
            kept = self._heads.get(key)
            if kept is None or kept[0] != identity:
                return None
            self._heads.move_to_end(key)
            return kept[1]

    def _keep(self, key: str, identity: tuple[int, ...], head: BlockHead) -> None:
        with self._lock:
            self._heads[key] = (identity, head)
            self._heads.move_to_end(key)
            while len(self._heads) > HEADS_KEPT:
                self._heads.popitem(last=False)


def _read(
    file: int,
    head: BlockHead,
    spans: Sequence[tuple[int, int]] | None,
    path: Path,
    *,
    head_bytes: int,
) -> BlockRead:
    rows = [(0, head.layout.tokens)] if spans is None else spans
    kv, page_bytes = read_rows(file, head.layout, rows, path)
    positions = [head.positions[:0], *(head.positions[start:end] for start, end in rows)]
    return BlockRead(kv, torch.cat(positions), head_bytes + page_bytes, page_bytes)


def _is_sound(path: Path, key: str) -> bool:
    """Whether a file is there whose header, positions and length are right."""
    with _opened(path) as file:
        if file is None:
            return False
        try:
            read_head(file, key, path)
        except CorruptBlockError:
            return False
    return True


def _identity(file: int) -> tuple[int, ...]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """A descriptor to read a file by; None when there is no such file."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield None
        return
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            error.strerror or str(error),
            where=path,
            hint=_HINTS.get(error.errno or 0, "check that disk and the permissions there"),
        ) from error


def _listing(folder: Path) -> list[Path]:
    """What is in a folder, sorted; nothing when it is gone or no folder."""
    with _storage_errors(folder):
        try:
            return sorted(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
