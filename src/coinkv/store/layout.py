"""The block file format: safetensors, token-major, with a checksum for every page of tokens."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from coinkv.errors import CorruptBlockError, InputError

FORMAT = "coinkv-block"
FORMAT_VERSION = "1"
PAGE_TOKENS = 32
CHECKSUM = "xxh3_64"

_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_POSITION_BYTES = 8
_LONGEST_HEADER = 64 * 1024 * 1024


@dataclass(frozen=True)
class BlockLayout:
    """Where everything of one block file lies.

    Attributes:
        shape: `(tokens, layers, 2, kv_heads, head_dim)`.
        dtype: of keys and values.
        positions_start: file offset of the positions, in bytes.
        kv_start: file offset of the first token's row, in bytes.
        file_bytes: length of the whole file.
        page_checksums: one for each page of `PAGE_TOKENS` rows (the last page may be shorter).
        positions_checksum: of the positions' bytes.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    positions_start: int
    kv_start: int
    file_bytes: int
    page_checksums: tuple[str, ...]
    positions_checksum: str

    @property
    def tokens(self) -> int:
        """Rows of the block."""
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes of one token."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """A contiguous CPU tensor's memory, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def checksum(content: bytes | bytearray | memoryview) -> str:
    """xxh3_64 as 16 hex digits: the checksum of pages, positions and headers."""
    return xxhash.xxh3_64_hexdigest(content)


def require_block(kv: torch.Tensor, positions: torch.Tensor) -> None:
    """Refuse tensors that are no block.

    Raises:
        InputError: other shapes or dtypes than `BlockStore.put` takes, or no token.
    """
    if kv.ndim != 5 or kv.shape[2] != 2 or kv.dtype not in _DTYPE_NAMES or 0 in kv.shape:
        raise InputError(
            f"a {kv.dtype} tensor of shape {list(kv.shape)} is no KV block",
            hint="give [tokens, layers, 2, kv_heads, head_dim] in float16, bfloat16 or float32, "
            "one token at least",
        )
    if positions.dtype != torch.int64 or positions.shape != kv.shape[:1]:
        raise InputError(
            f"positions are {positions.dtype} of shape {list(positions.shape)}",
            hint=f"a block of {len(kv)} tokens needs int64 positions of shape [{len(kv)}]",
        )


def header_of(key: str, kv: torch.Tensor, positions: torch.Tensor) -> bytes:
    """What stands before a block's positions and rows in its file.

    Args:
        key: the block's key.
        kv: contiguous `[tokens, layers, 2, kv_heads, head_dim]`.
        positions: contiguous `[tokens]` int64.
    """
    rows = bytes_of(kv)
    page = PAGE_TOKENS * (len(rows) // len(kv))
    facts = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "key": key,
        "page_tokens": str(PAGE_TOKENS),
        "checksum": CHECKSUM,
        "kv_pages": ",".join(checksum(rows[at : at + page]) for at in range(0, len(rows), page)),
        "positions": checksum(bytes_of(positions)),
    }
    tensors = _tensors(tuple(kv.shape), _DTYPE_NAMES[kv.dtype])
    facts["header"] = _header_checksum(facts, tensors)
    text = json.dumps({"__metadata__": facts, **tensors}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def header_bytes(first: bytes, where: str | Path) -> int:
    """How many bytes the header takes, by the first eight of them.

    Raises:
        CorruptBlockError: there are no eight, or no header has that length.
    """
    if len(first) < 8:
        raise damaged("the file ends inside the header", where)
    length = int(struct.unpack("<Q", first[:8])[0])
    if not 2 <= length <= _LONGEST_HEADER:
        raise damaged("the length of the header is damaged", where)
    return 8 + length


def parse(header: bytes, key: str, where: str | Path) -> BlockLayout:
    """The layout that a whole header describes.

    Raises:
        CorruptBlockError: it is damaged, of another format version, or of another block.
    """
    try:
        tensors = json.loads(header[8:])
        facts = tensors.pop("__metadata__")
        version, stated = facts["format_version"], facts.pop("header")
        if facts["format"] != FORMAT or version != FORMAT_VERSION:
            raise damaged(f"this is no block of format version {FORMAT_VERSION}", where)
        if stated != _header_checksum(facts, tensors):
            raise damaged("the header fails its checksum", where)
        if facts["key"] != key:
            raise damaged(f"the file holds another block, {facts['key']}", where)
        shape, dtype = tuple(tensors["kv"]["shape"]), tensors["kv"]["dtype"]
        pages = tuple(facts["kv_pages"].split(","))
        if tensors != _tensors(shape, dtype) or len(pages) != -(-shape[0] // PAGE_TOKENS):
            raise damaged("the header contradicts itself", where)
        return BlockLayout(
            shape=shape,
            dtype=_DTYPES[dtype],
            positions_start=len(header),
            kv_start=len(header) + tensors["kv"]["data_offsets"][0],
            file_bytes=len(header) + tensors["kv"]["data_offsets"][1],
            page_checksums=pages,
            positions_checksum=facts["positions"],
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged("the header is unreadable", where) from error


def damaged(what: str, where: str | Path) -> CorruptBlockError:
    """The error for a damaged block."""
    return CorruptBlockError(what, where=where, hint="delete it, it is recomputed from its text")


def _tensors(shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    """The tensor table: positions first, so that one short read brings header and positions."""
    positions = _POSITION_BYTES * shape[0]
    rows = math.prod(shape) * _DTYPES[dtype].itemsize
    return {
        "positions": {"dtype": "I64", "shape": [shape[0]], "data_offsets": [0, positions]},
        "kv": {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [positions, positions + rows],
        },
    }


def _header_checksum(facts: dict[str, str], tensors: dict[str, Any]) -> str:
    text = json.dumps([facts, tensors], sort_keys=True, separators=(",", ":"))
    return checksum(text.encode())
