"""The block file format: safetensors, in pages of tokens, with a checksum for every page."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import xxhash

from coinkv.errors import CorruptBlockError, InputError
from coinkv.kv.codec import CODECS, PAGE_TOKENS, Codec, codec_named

FORMAT = "coinkv-block"
RAW_VERSION, CODED_VERSION = "1", "2"
"""Format version of a file of raw numbers, and of one in another codec."""
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
        codec: what the pages are written in.
        positions_start: file offset of the positions, in bytes.
        kv_start: file offset of the first page, in bytes.
        file_bytes: length of the whole file.
        page_checksums: one for each page of `PAGE_TOKENS` tokens (the last page may be shorter).
        positions_checksum: of the positions' bytes.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    codec: Codec
    positions_start: int
    kv_start: int
    file_bytes: int
    page_checksums: tuple[str, ...]
    positions_checksum: str

    @property
    def tokens(self) -> int:
        """Tokens of the block."""
        return self.shape[0]

    @cached_property
    def page_bytes(self) -> int:
        """Bytes of a full page."""
        return self.codec.page_bytes(self.shape[1:], self.dtype, PAGE_TOKENS)

    def page_tokens(self, first: int, end: int) -> list[int]:
        """Tokens of each of the pages `[first, end)`."""
        return [min(PAGE_TOKENS, self.tokens - page * PAGE_TOKENS) for page in range(first, end)]

    def pages_at(self, first: int, end: int) -> tuple[int, int]:
        """File offset and bytes of the pages `[first, end)`."""
        start = self.kv_start + first * self.page_bytes
        return start, min(self.kv_start + end * self.page_bytes, self.file_bytes) - start


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


def header_of(
    key: str, kv: torch.Tensor, positions: torch.Tensor, codec: Codec, pages: torch.Tensor
) -> bytes:
    """What stands before a block's positions and pages in its file.

    Args:
        key: the block's key.
        kv: `[tokens, layers, 2, kv_heads, head_dim]`.
        positions: contiguous `[tokens]` int64.
        codec: what the pages are written in.
        pages: `kv` encoded in it.
    """
    content = bytes_of(pages)
    page = codec.page_bytes(kv.shape[1:], kv.dtype, PAGE_TOKENS)
    shape, dtype = tuple(kv.shape), _DTYPE_NAMES[kv.dtype]
    facts = {
        "format": FORMAT,
        "format_version": RAW_VERSION if codec.name == "raw" else CODED_VERSION,
        "key": key,
        "page_tokens": str(PAGE_TOKENS),
        "checksum": CHECKSUM,
        "kv_pages": ",".join(
            checksum(content[at : at + page]) for at in range(0, len(content), page)
        ),
        "positions": checksum(bytes_of(positions)),
    }
    if codec.name != "raw":
        facts |= {"codec": codec.name, "dtype": dtype, "shape": ",".join(map(str, shape))}
    tensors = _tensors(shape, dtype, codec)
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
        codec = _codec_of(facts, where)
        if facts.pop("header") != _header_checksum(facts, tensors):
            raise damaged("the header fails its checksum", where)
        if facts["key"] != key:
            raise damaged(f"the file holds another block, {facts['key']}", where)
        shape, dtype = _shape_of(facts, tensors, codec)
        pages = tuple(facts["kv_pages"].split(","))
        if tensors != _tensors(shape, dtype, codec) or len(pages) != -(-shape[0] // PAGE_TOKENS):
            raise damaged("the header contradicts itself", where)
        return BlockLayout(
            shape=shape,
            dtype=_DTYPES[dtype],
            codec=codec,
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


def _codec_of(facts: dict[str, str], where: str | Path) -> Codec:
    """The codec that a header names.

    Raises:
        CorruptBlockError: it is no header of a version or codec known here.
    """
    known = [(RAW_VERSION, "raw"), *((CODED_VERSION, name) for name in CODECS if name != "raw")]
    named = facts["format_version"], facts.get("codec", "raw")
    if facts["format"] != FORMAT or named not in known:
        raise damaged(
            f"this is no block of format version {RAW_VERSION} or {CODED_VERSION} in a codec "
            "known here",
            where,
        )
    return codec_named(named[1])


def _shape_of(
    facts: dict[str, str], tensors: dict[str, Any], codec: Codec
) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of the block: the tensor's own where it is raw, facts where it is bytes."""
    if codec.name == "raw":
        return tuple(tensors["kv"]["shape"]), tensors["kv"]["dtype"]
    return tuple(int(each) for each in facts["shape"].split(",")), facts["dtype"]


def _tensors(shape: tuple[int, ...], dtype: str, codec: Codec) -> dict[str, Any]:
    """The tensor table: positions first, so that one short read brings header and positions."""
    tokens, *row = shape
    positions = _POSITION_BYTES * tokens
    pages = codec.block_bytes(row, _DTYPES[dtype], tokens)
    raw = codec.name == "raw"
    return {
        "positions": {"dtype": "I64", "shape": [tokens], "data_offsets": [0, positions]},
        "kv": {
            "dtype": dtype if raw else "U8",
            "shape": list(shape) if raw else [pages],
            "data_offsets": [positions, positions + pages],
        },
    }


def _header_checksum(facts: dict[str, str], tensors: dict[str, Any]) -> str:
    text = json.dumps([facts, tensors], sort_keys=True, separators=(",", ":"))
    return checksum(text.encode())
