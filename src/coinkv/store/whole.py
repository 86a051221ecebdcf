"""Block files read whole in the codec they are written in, to be kept in memory like that."""

from __future__ import annotations

from io import BufferedReader
from pathlib import Path

import torch

from coinkv.store.disk import DiskStore
from coinkv.store.encoded import EncodedBlock
from coinkv.store.layout import bytes_of, checksum, damaged
from coinkv.store.opening import errors_of
from coinkv.store.ranges import read_head


class WholeDiskStore(DiskStore):
    """A `DiskStore` whose blocks can also be had as they are written.

    Decoding and encoding again would cost time, and a lossy codec a little of the numbers each
    time.
    """

    def encoded(self, key: str) -> EncodedBlock | None:
        """A whole block, every page checked; None when it is not here.

        Raises:
            CorruptBlockError: any part of it is damaged.
            StorageError: the file could not be read.
        """
        path = self._path(key)
        with errors_of(path):
            try:
                file = path.open("rb")
            except FileNotFoundError:
                return None
            with file:
                return _read_whole(file, key, path)


def _read_whole(file: BufferedReader, key: str, where: Path) -> EncodedBlock:
    head = read_head(file.fileno(), key, where)
    layout = head.layout
    pages = torch.empty(layout.file_bytes - layout.kv_start, dtype=torch.uint8)
    content = bytes_of(pages)
    file.seek(layout.kv_start)
    if file.readinto(content) != len(content):
        raise damaged("the file ends too early", where)
    for number, stated in enumerate(layout.page_checksums):
        at = number * layout.page_bytes
        if checksum(content[at : at + layout.page_bytes]) != stated:
            raise damaged(f"page {number} fails its checksum", where)
    return EncodedBlock(layout.codec, pages, layout.shape, layout.dtype, head.positions)
