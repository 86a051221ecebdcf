"""A damaged block is never served: every kind of damage is found and named."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from kv_blocks import KEY, OTHER_KEY, bits, block, path_of

from coinkv.errors import CorruptBlockError
from coinkv.store.base import BlockRead
from coinkv.store.disk import DiskStore

TOKENS = 70
ROW_BYTES = 3 * 2 * 2 * 4 * 2


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The file of a block of three pages."""
    DiskStore(tmp_path).put(KEY, *block(TOKENS))
    return path_of(tmp_path)


def kv_start(content: bytes) -> int:
    return len(content) - TOKENS * ROW_BYTES


def read(path: Path, spans: list[tuple[int, int]] | None = None) -> BlockRead:
    found = DiskStore(path.parents[1]).get(KEY, spans)
    assert found is not None
    return found


def test_a_flipped_byte_anywhere_is_found_or_changes_nothing(stored: Path) -> None:
    content = stored.read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    text = content[8:length].rstrip()
    dice = random.Random(3)
    kv, positions = block(TOKENS)
    everywhere = [*range(kv_start(content)), *range(kv_start(content), len(content), 41)]
    for at in everywhere:
        flipped = bytearray(content)
        flipped[at] ^= dice.randrange(1, 256)
        stored.write_bytes(flipped)
        refused = None
        try:
            found = read(stored)
        except CorruptBlockError as error:
            refused = error
        if refused is not None:
            assert refused.where == str(stored)
            assert "\n" not in str(refused)
        else:  # white space for white space, behind the text
            assert 8 + len(text) <= at < length
            assert bits(found.kv) == bits(kv)
            assert bits(found.positions) == bits(positions)


REGIONS: dict[str, Callable[[bytes], int]] = {
    "header length": lambda content: 0,
    "header text": lambda content: content.index(b'"shape"') + 9,
    "page checksum": lambda content: content.index(b"kv_pages") + 12,
    "first position": lambda content: kv_start(content) - 8 * TOKENS,
    "last position": lambda content: kv_start(content) - 1,
    "first row": kv_start,
    "last row": lambda content: len(content) - 1,
}


@pytest.mark.parametrize("region", REGIONS)
def test_damage_is_found_by_reading_and_by_verify_even_when_the_header_is_known(
    stored: Path, region: str
) -> None:
    store = DiskStore(stored.parents[1])
    assert store.get(KEY) is not None
    assert store.verify(KEY)
    content = bytearray(stored.read_bytes())
    content[REGIONS[region](bytes(content))] ^= 1
    stored.write_bytes(content)
    for verb in (store.get, store.verify):
        with pytest.raises(CorruptBlockError):
            verb(KEY)


def test_a_damaged_page_does_not_disturb_reads_of_others_but_verify_finds_it(
    stored: Path,
) -> None:
    kv, _ = block(TOKENS)
    content = bytearray(stored.read_bytes())
    content[kv_start(bytes(content)) + 40 * ROW_BYTES] ^= 0x80
    stored.write_bytes(content)
    rest = read(stored, [(64, 70), (0, 32)])
    assert bits(rest.kv) == bits(kv[[*range(64, 70), *range(32)]])
    for spans in ([(63, 64)], [(0, 33)], None):
        with pytest.raises(CorruptBlockError, match="page 1 fails its checksum"):
            read(stored, spans)
    with pytest.raises(CorruptBlockError, match="page 1 fails its checksum"):
        DiskStore(stored.parents[1]).verify(KEY)


def test_a_file_of_any_other_length_is_damaged(stored: Path) -> None:
    content = stored.read_bytes()
    start = kv_start(content)
    shorter = [*range(0, 20), *range(20, start, 37), start, start + 1, len(content) - 1]
    for length in shorter:
        stored.write_bytes(content[:length])
        with pytest.raises(CorruptBlockError):
            read(stored, [(0, 1)])
    stored.write_bytes(content + b"\0")
    with pytest.raises(CorruptBlockError, match="bytes, not"):
        read(stored, [(0, 1)])


def test_a_file_that_shrinks_while_it_is_read_is_damaged(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.preadv", lambda file, buffers, offset: 0)
    with pytest.raises(CorruptBlockError, match="ends too early"):
        read(stored)


GARBAGE = [
    b"\0" * 4096,
    b"\xff" * 4096,
    random.Random(1).randbytes(4096),
    b"[" * 200_000,
    *(
        len(text).to_bytes(8, "little") + text
        for text in (
            b"[]",
            b"{}",
            b"null",
            b'"text"',
            b"[" * 100_000,
            b"1" * 5_000,
            b'{"__metadata__":[]}',
            b'{"__metadata__":{}}',
            b'{"__metadata__":{"format":"pt"},"kv":1}',
            b"\xff\xfe\x00",
        )
    ),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_a_damaged_block(stored: Path, garbage: bytes) -> None:
    stored.write_bytes(garbage)
    with pytest.raises(CorruptBlockError):
        read(stored)


def test_another_blocks_file_under_this_name_is_refused(stored: Path) -> None:
    root = stored.parents[1]
    DiskStore(root).put(OTHER_KEY, *block(TOKENS))
    path_of(root, OTHER_KEY).replace(stored)
    with pytest.raises(CorruptBlockError, match=OTHER_KEY):
        read(stored)


@pytest.mark.parametrize("length", [0, 5, 300, 2000])
def test_putting_a_block_over_a_file_of_the_wrong_length_repairs_it(
    stored: Path, length: int
) -> None:
    kv, positions = block(TOKENS)
    stored.write_bytes(stored.read_bytes()[:length])
    assert DiskStore(stored.parents[1]).put(KEY, kv, positions) > 0
    assert bits(read(stored).kv) == bits(kv)


def test_a_block_with_a_damaged_page_is_repaired_by_deleting_and_putting_it(
    stored: Path,
) -> None:
    kv, positions = block(TOKENS)
    content = stored.read_bytes()
    stored.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    store = DiskStore(stored.parents[1])
    with pytest.raises(CorruptBlockError):
        store.get(KEY)
    assert store.delete(KEY)
    assert store.put(KEY, kv, positions) == len(content)
    assert stored.read_bytes() == content


@pytest.mark.parametrize("version", ["0", "2"])
def test_a_block_of_another_format_version_is_refused_by_name(stored: Path, version: str) -> None:
    content = stored.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"]["format_version"] = version
    text = json.dumps(header, separators=(",", ":")).encode().ljust(length)
    stored.write_bytes(content[:8] + text + content[8 + length :])
    with pytest.raises(CorruptBlockError, match="format version 1"):
        read(stored)
