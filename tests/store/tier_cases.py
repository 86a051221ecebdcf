"""What the tests of the tiers share: keys, notes, sizes, and the books against the files."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import torch
from kv_blocks import bits, block

from coinkv.store.tiers import Tiers

TOKENS = 20
BLOCK_BYTES = TOKENS * (3 * 2 * 2 * 4 * 2 + 8)
"""Bytes of `kv_of` in memory."""


def key_of(number: int) -> str:
    return f"{number:064x}"


def kv_of(number: int, tokens: int = TOKENS) -> tuple[torch.Tensor, torch.Tensor]:
    return block(tokens, seed=number)


def note_of(number: int) -> bytes:
    return b"note of %d" % number


def put(tiers: Tiers, number: int, tokens: int = TOKENS) -> int:
    kv, positions = kv_of(number, tokens)
    return tiers.put(key_of(number), kv, positions, note=note_of(number))


def holds(tiers: Tiers, number: int, tokens: int = TOKENS) -> bool:
    """Whether a block is found; what is found must be it."""
    read = tiers.get(key_of(number))
    if read is None:
        return False
    kv, positions = kv_of(number, tokens)
    assert bits(read.kv) == bits(kv)
    assert torch.equal(read.positions, positions)
    return True


def numbers_in(tiers: Tiers) -> list[int]:
    return [int(key, 16) for key in tiers.keys()]  # noqa: SIM118


def files_of(folder: Path) -> dict[str, int]:
    """Bytes of every block file, by key."""
    return {path.stem: path.stat().st_size for path in folder.glob("blocks/*/*.safetensors")}


def rows_of(folder: Path) -> dict[str, int]:
    """Bytes of every row of the books, by key."""
    with closing(sqlite3.connect(folder / "usage.sqlite")) as connection:
        return dict(connection.execute("SELECT key, bytes FROM blocks"))
