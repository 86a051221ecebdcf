"""What a thread does between two steps of another: nothing is lost, and nothing stays unsaid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tier_cases import BLOCK_BYTES, holds, key_of, note_of, numbers_in, put

from coinkv.store.tiers import Tiers


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    """Block 1 is on disk only, and told of."""
    with Tiers(2 * BLOCK_BYTES, folder=tmp_path) as tiers:
        for number in (1, 2, 3):
            put(tiers, number)
        tiers.changes()
        assert key_of(1) not in tiers._hot
        yield tiers


def test_a_block_that_is_asked_for_while_it_is_deleted_does_not_come_back(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = tiers._disk.delete

    def asked_for(key: str) -> bool:
        assert holds(tiers, 1)
        return delete(key)

    monkeypatch.setattr(tiers._disk, "delete", asked_for)
    assert tiers.delete(key_of(1))
    assert tiers.get(key_of(1)) is None
    assert 1 not in numbers_in(tiers)
    assert tiers.changes() == ([], [key_of(1)])


def test_a_block_that_is_evicted_from_disk_while_it_is_read_is_told_of_again(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tiers._disk.note

    def evicted(key: str) -> bytes | None:
        found = note(key)
        tiers._disk.delete(key)
        with tiers._lock:
            tiers._report_gone([key])
        return found

    monkeypatch.setattr(tiers._disk, "note", evicted)
    assert holds(tiers, 1)
    assert tiers.changes() == ([(key_of(1), note_of(1))], [])
    assert key_of(1) in tiers._hot


def test_a_block_whose_note_went_while_it_was_read_is_served_and_not_kept(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers._disk, "note", lambda _: None)
    assert holds(tiers, 1)
    assert key_of(1) not in tiers._hot
