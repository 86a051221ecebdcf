"""API keys: printed once, kept as digests, changed by one process and seen by another."""

from __future__ import annotations

import base64
import json
import stat
import threading
import time

import pytest

from coinkv.errors import InputError, StorageError
from coinkv.serve.security import keys as keys_module
from coinkv.serve.security.keys import Keys


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch):
    monkeypatch.setattr(keys_module, "_LOOK_SECONDS", 0.0)


def test_a_key_is_32_random_bytes_and_the_file_holds_none_of_it(tmp_path):
    key, secret = Keys(tmp_path).add("alice")
    assert len(base64.urlsafe_b64decode(secret.removeprefix("ck_") + "=")) == 32
    text = (tmp_path / "keys.json").read_text()
    assert secret not in text
    assert secret[3:20] not in text
    assert key.digest in text


def test_a_key_is_found_by_itself_and_by_nothing_else(tmp_path):
    keys = Keys(tmp_path)
    key, secret = keys.add("alice", namespace="team")
    assert keys.find(secret) == key
    for other in ("", secret[:-1], secret + "A", secret.swapcase(), key.digest, "\ud800", "ck_"):
        assert keys.find(other) is None


def test_only_the_owner_may_read_the_file_and_its_folder(tmp_path):
    Keys(tmp_path / "server").add("alice")
    assert stat.S_IMODE((tmp_path / "server" / "keys.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "server").stat().st_mode) == 0o700
    assert sorted(path.name for path in (tmp_path / "server").iterdir()) == [
        "keys.json",
        "keys.lock",
    ]


def test_a_running_server_sees_keys_that_another_process_adds_and_removes(tmp_path):
    running = Keys(tmp_path)
    key, secret = Keys(tmp_path).add("alice")
    assert running.find(secret) == key
    Keys(tmp_path).remove("alice")
    assert running.find(secret) is None
    assert running.all() == ()


def test_the_file_is_looked_at_once_a_second_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr(keys_module, "_LOOK_SECONDS", 3600.0)
    running = Keys(tmp_path)
    _, secret = Keys(tmp_path).add("alice")
    assert running.find(secret) is None


def test_a_name_is_given_once_and_free_again_when_its_key_is_gone(tmp_path):
    keys = Keys(tmp_path)
    _, first = keys.add("alice")
    with pytest.raises(InputError, match="there is a key named 'alice'"):
        keys.add("alice")
    keys.remove("alice")
    _, second = keys.add("alice")
    assert first != second
    assert keys.find(first) is None


@pytest.mark.parametrize("name", ["", "a b", "../a", "ä", "-a", "a" * 65, "a\n", "a\x00"])
def test_a_name_is_a_short_word(tmp_path, name):
    with pytest.raises(InputError, match="cannot be used"):
        Keys(tmp_path).add(name)
    with pytest.raises(InputError, match="cannot be used"):
        Keys(tmp_path).add("alice", namespace=name)
    assert not (tmp_path / "keys.json").exists()


def test_limits_are_at_least_1_and_the_end_lies_ahead(tmp_path):
    keys = Keys(tmp_path)
    with pytest.raises(InputError, match="requests per minute is 0"):
        keys.add("alice", requests_per_minute=0)
    with pytest.raises(InputError, match="tokens per minute is -1"):
        keys.add("alice", tokens_per_minute=-1)
    with pytest.raises(InputError, match="expired already"):
        keys.add("alice", expires=int(time.time()))


def test_a_key_that_nobody_has_cannot_be_removed(tmp_path):
    with pytest.raises(InputError, match="there is no key named 'bob'"):
        Keys(tmp_path).remove("bob")


def test_keys_added_at_the_same_time_are_all_there(tmp_path):
    adders = [
        threading.Thread(target=lambda name: Keys(tmp_path).add(name), args=(f"client-{n}",))
        for n in range(12)
    ]
    for adder in adders:
        adder.start()
    for adder in adders:
        adder.join()
    assert {key.name for key in Keys(tmp_path).all()} == {f"client-{n}" for n in range(12)}


DAMAGED = {
    "not JSON": "{",
    "not an object": "[]",
    "no keys": '{"version": 1}',
    "no digest": '{"version": 1, "keys": [{"name": "a"}]}',
    "wrong type": '{"version": 1, "keys": {"a": 1}}',
    "wrong type of a field": json.dumps(
        {"version": 1, "keys": [{"name": "a", "namespace": "b", "digest": [], "created": 1}]}
    ),
    "not UTF-8": "\udcff",
    "too deep": "[" * 100_000,
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_said_to_be_one(tmp_path, kind):
    (tmp_path / "keys.json").write_text(DAMAGED[kind], errors="surrogateescape")
    with pytest.raises(StorageError, match="damaged"):
        Keys(tmp_path)


def test_a_file_of_a_newer_version_is_refused(tmp_path):
    (tmp_path / "keys.json").write_text(json.dumps({"version": 2, "people": []}))
    with pytest.raises(StorageError, match="of version 2; use a newer coinkv"):
        Keys(tmp_path)


def test_a_file_damaged_under_a_running_server_leaves_it_the_keys_it_has(tmp_path, caplog):
    running = Keys(tmp_path)
    key, secret = running.add("alice")
    assert running.find(secret) == key
    (tmp_path / "keys.json").write_text("{")
    assert running.find(secret) == key
    assert "the keys stay as they were" in caplog.text


def test_a_failed_write_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path, monkeypatch):
    keys = Keys(tmp_path)
    keys.add("alice")
    before = (tmp_path / "keys.json").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        keys.add("bob")
    assert (tmp_path / "keys.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys.json", "keys.lock"]
