"""Rows out of an open block file: touched pages, each read once, checked, decoded, in order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from coinkv.errors import InputError
from coinkv.kv.codec import PAGE_TOKENS
from coinkv.store.layout import (
    BlockLayout,
    bytes_of,
    checksum,
    damaged,
    header_bytes,
    parse,
)

FIRST_READ_BYTES = 8192
"""Read at once for header and positions: enough for 512 tokens, so one call does it."""


@dataclass(frozen=True, eq=False)
class BlockHead:
    """What of a block file is needed before any row can be read.

    Attributes:
        layout: where the rows lie, and their checksums.
        positions: `[tokens]` int64; shared, never to be changed.
        bytes_read: bytes read for it.
    """

    layout: BlockLayout
    positions: torch.Tensor
    bytes_read: int


def read_head(file: int, key: str, where: str | Path) -> BlockHead:
    """Header and positions of an open block file, checked.

    Raises:
        CorruptBlockError: either is damaged, or the file has another length than it should.
        OSError: the file could not be read.
    """
    content = os.pread(file, FIRST_READ_BYTES, 0)
    start = header_bytes(content, where)
    content = _extended(file, content, start, where)
    layout = parse(content[:start], key, where)
    size = os.fstat(file).st_size
    if size != layout.file_bytes:
        raise damaged(f"the file has {size} bytes, not {layout.file_bytes}", where)
    content = _extended(file, content, layout.kv_start, where)
    positions = bytearray(content[start : layout.kv_start])
    if checksum(positions) != layout.positions_checksum:
        raise damaged("the positions fail their checksum", where)
    return BlockHead(layout, torch.frombuffer(positions, dtype=torch.int64), len(content))


def read_rows(
    file: int, layout: BlockLayout, spans: Sequence[tuple[int, int]], where: str | Path
) -> tuple[torch.Tensor, int]:
    """The spans' rows in the order asked, and the bytes of the pages read for them.

    Args:
        file: descriptor of the block file.
        layout: of that file.
        spans: `[start, end)` token ranges; any order, may overlap, repeat and be empty.
        where: the file's name, for errors.

    Returns:
        `[tokens, layers, 2, kv_heads, head_dim]` in the block's dtype, and bytes.

    Raises:
        InputError: a span lies outside the block.
        CorruptBlockError: a touched page fails its checksum, or the file ends early.
        OSError: the file could not be read.
    """
    for start, end in spans:
        if not 0 <= start <= end <= layout.tokens:
            raise InputError(
                f"span [{start}, {end}) lies outside a block of {layout.tokens} tokens", where=where
            )
    runs = _page_runs(spans)
    places = [layout.pages_at(first, end) for first, end in runs]
    pages = torch.empty(sum(length for _, length in places), dtype=torch.uint8)
    buffer, at = bytes_of(pages), 0
    for (first, _), (offset, length) in zip(runs, places, strict=True):
        content = buffer[at : at + length]
        _read_all(file, content, offset, where)
        _check_pages(content, layout, first, where)
        at += length
    page_tokens = [tokens for run in runs for tokens in layout.page_tokens(*run)]
    kv = layout.codec.decode(pages, layout.shape[1:], layout.dtype, page_tokens)
    return _in_order(kv, spans, runs), at


def _page_runs(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The distinct pages that spans touch, as `[first, end)` runs of neighbours, in order."""
    touched = {
        page
        for start, end in spans
        if end > start
        for page in range(start // PAGE_TOKENS, (end - 1) // PAGE_TOKENS + 1)
    }
    runs: list[tuple[int, int]] = []
    for page in sorted(touched):
        if runs and runs[-1][1] == page:
            runs[-1] = (runs[-1][0], page + 1)
        else:
            runs.append((page, page + 1))
    return runs


def _check_pages(
    content: memoryview, layout: BlockLayout, first_page: int, where: str | Path
) -> None:
    page_bytes = layout.page_bytes
    for number, at in enumerate(range(0, len(content), page_bytes), first_page):
        if checksum(content[at : at + page_bytes]) != layout.page_checksums[number]:
            raise damaged(f"page {number} fails its checksum", where)


def _in_order(
    kv: torch.Tensor, spans: Sequence[tuple[int, int]], runs: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """The spans' rows out of the rows of the page runs; a view where they stand in a row."""
    row_of_page: dict[int, int] = {}
    for first, end in runs:
        begin = len(row_of_page) * PAGE_TOKENS
        row_of_page |= {page: begin + (page - first) * PAGE_TOKENS for page in range(first, end)}
    places = [
        (begin, begin + end - start)
        for start, end in spans
        if end > start
        for begin in [row_of_page[start // PAGE_TOKENS] + start % PAGE_TOKENS]
    ]
    if not places:
        return kv[:0]
    if all(before[1] == after[0] for before, after in pairwise(places)):
        return kv[places[0][0] : places[-1][1]]
    return _gathered(kv, places)


def _gathered(kv: torch.Tensor, places: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Row ranges joined, by plain memory copies.

    Indexing in torch would start its threads for this, and on a busy machine waiting for them
    takes ten times as long as the copy itself.
    """
    joined = torch.empty((sum(end - begin for begin, end in places), *kv.shape[1:]), dtype=kv.dtype)
    source, target, row, at = bytes_of(kv), bytes_of(joined), kv[0].nbytes, 0
    for begin, end in places:
        length = (end - begin) * row
        target[at : at + length] = source[begin * row : end * row]
        at += length
    return joined


def _extended(file: int, content: bytes, length: int, where: str | Path) -> bytes:
    """The file's first bytes, read on until there are `length` of them."""
    if len(content) >= length:
        return content
    more = bytearray(length - len(content))
    _read_all(file, memoryview(more), len(content), where)
    return content + more


def _read_all(file: int, buffer: memoryview, offset: int, where: str | Path) -> None:
    """Fill a buffer from a file offset; one call may bring less than was asked."""
    while buffer:
        count = os.preadv(file, [buffer], offset)
        if count == 0:
            raise damaged("the file ends too early", where)
        buffer, offset = buffer[count:], offset + count
