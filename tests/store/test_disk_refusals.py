"""What the disk tier refuses: bad input, and writes the system will not do; nothing is left."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from kv_blocks import KEY, OTHER_KEY, block, files_in, path_of

from coinkv.errors import InputError, StorageError
from coinkv.store.disk import DiskStore

REFUSALS = [
    (errno.ENOSPC, "free space"),
    (errno.EDQUOT, "quota"),
    (errno.EACCES, "permission"),
    (errno.EROFS, "read-only"),
]


@pytest.mark.parametrize("span", [(-1, 3), (0, 41), (5, 4), (41, 41), (-3, -1)])
def test_a_span_outside_the_block_is_refused(tmp_path: Path, span: tuple[int, int]) -> None:
    store = DiskStore(tmp_path)
    store.put(KEY, *block(40))
    with pytest.raises(InputError, match=re.escape(f"[{span[0]}, {span[1]})")):
        store.get(KEY, [(0, 1), span])


@pytest.mark.parametrize(
    "key",
    ["", "ab", "AB" + "0" * 62, "../" + "0" * 61, "0" * 65, "0" * 63 + "\n", "g" * 64, "٣" * 64],
)
def test_what_is_no_key_is_refused_by_every_verb(tmp_path: Path, key: str) -> None:
    store = DiskStore(tmp_path / "store")
    for verb in (
        store.get,
        store.delete,
        store.verify,
        store.size_bytes,
        lambda key: store.put(key, *block(4)),
    ):
        with pytest.raises(InputError, match="64 lower-case hex digits"):
            verb(key)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    ("kv", "positions"),
    [
        (torch.zeros(4, 2, 2, 2), torch.arange(4)),
        (torch.zeros(4, 3, 1, 2, 8), torch.arange(4)),
        (torch.zeros(0, 3, 2, 2, 8), torch.arange(0)),
        (torch.zeros(4, 3, 2, 2, 8, dtype=torch.float64), torch.arange(4)),
        (torch.zeros(4, 3, 2, 2, 8, dtype=torch.int16), torch.arange(4)),
        (torch.zeros(4, 3, 2, 2, 8), torch.arange(5)),
        (torch.zeros(4, 3, 2, 2, 8), torch.arange(4, dtype=torch.int32)),
        (torch.zeros(4, 3, 2, 2, 8), torch.zeros(4, 1, dtype=torch.int64)),
    ],
)
def test_tensors_that_are_no_block_are_refused(
    tmp_path: Path, kv: torch.Tensor, positions: torch.Tensor
) -> None:
    with pytest.raises(InputError, match="shape"):
        DiskStore(tmp_path).put(KEY, kv, positions)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(("number", "advice"), REFUSALS)
@pytest.mark.parametrize("call", ["open", "write", "fsync", "close"])
def test_a_write_the_system_refuses_says_what_to_do_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, advice: str
) -> None:
    real = getattr(os, call)
    calls = 0

    def refuse(*arguments: object) -> object:
        nonlocal calls
        if call == "open" and str(arguments[0]).endswith(".safetensors"):
            return real(*arguments)
        calls += 1
        if call == "write" and calls == 1:
            return real(arguments[0], bytes(arguments[1])[:50])  # type: ignore[call-overload]
        if call == "close":
            real(*arguments)
        raise OSError(number, os.strerror(number))

    store = DiskStore(tmp_path)
    (tmp_path / KEY[:2]).mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(StorageError, match=advice) as raised:
            store.put(KEY, *block(40))
    assert calls > 0
    assert raised.value.where == str(path_of(tmp_path))
    assert "\n" not in str(raised.value)
    assert files_in(tmp_path) == []
    assert store.put(KEY, *block(40)) > 0


@pytest.mark.parametrize("verb", ["get", "put", "delete", "keys"])
def test_a_folder_that_may_not_be_entered_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    store = DiskStore(tmp_path)
    store.put(KEY, *block(4))

    def refuse(*_: object, **__: object) -> object:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(Path, "iterdir", refuse)
    verbs = {
        "get": lambda: store.get(KEY),
        "put": lambda: store.put(KEY, *block(4)),
        "delete": lambda: store.delete(KEY),
        "keys": lambda: list(store.keys()),
    }
    with pytest.raises(StorageError, match="permission"):
        verbs[verb]()


def test_a_file_in_the_place_of_a_folder_is_a_storage_error(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    (tmp_path / KEY[:2]).write_text("in the way")
    with pytest.raises(StorageError):
        store.get(KEY)
    with pytest.raises(StorageError):
        store.put(KEY, *block(4))
    assert list(store.keys()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        mounted = os.geteuid() == 0 and not subprocess.run(command, capture_output=True).returncode
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a small disk takes root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_refuses_a_block_and_still_takes_one_that_fits(small_disk: Path) -> None:
    store = DiskStore(small_disk)
    with pytest.raises(StorageError, match="No space left on device; free space"):
        store.put(KEY, *block(512, dim=64))
    assert files_in(small_disk) == []
    store.put(KEY, *block(40))
    assert store.verify(KEY)


def test_a_read_only_disk_still_serves_and_refuses_to_write(small_disk: Path) -> None:
    store = DiskStore(small_disk)
    store.put(KEY, *block(40))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert store.get(KEY) is not None
    for refused in (lambda: store.put(OTHER_KEY, *block(4)), lambda: store.delete(KEY)):
        with pytest.raises(StorageError, match="mounted read-only"):
            refused()
