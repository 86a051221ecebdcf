"""Questions use the newest generation; one that is in use is never closed under them."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from coinkv.errors import IndexMismatchError, IndexNotFoundError
from coinkv.serve.library.generations import Generations


class Disk:
    """An index folder whose generations are numbers; knows which of them are open."""

    def __init__(self, monkeypatch):
        self.published, self.open, self.freed = 1, [], 0
        self.error = None
        monkeypatch.setattr(
            "coinkv.serve.library.generations.generation_of", lambda folder: self.published
        )
        self.generations = Generations(None, self.opened, self.was_freed)

    def opened(self, folder):
        if self.error is not None:
            raise self.error
        generation = self.published
        self.open.append(generation)
        catalogue = SimpleNamespace(
            generation=generation, close=lambda: self.open.remove(generation)
        )
        return SimpleNamespace(catalogue=catalogue)

    def was_freed(self):
        self.freed += 1

    def lease(self):
        return self.generations.lease()


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def test_the_first_lease_opens_and_the_next_ones_share(disk):
    with disk.lease() as first, disk.lease() as second:
        assert first is second
    assert disk.open == [1]


def test_an_old_generation_is_closed_when_its_last_lease_ends(disk):
    with disk.lease() as old:
        disk.published = 2
        disk.generations.renew()
        assert not disk.generations.settled
        with disk.lease() as new:
            assert (old.catalogue.generation, new.catalogue.generation) == (1, 2)
            assert sorted(disk.open) == [1, 2]
    assert disk.open == [2]
    assert disk.generations.settled
    assert disk.freed == 2


def test_an_unused_old_generation_is_closed_at_once(disk):
    disk.generations.renew()
    disk.published = 2
    disk.generations.renew()
    assert disk.open == [2]
    assert disk.generations.generation == 2


def test_leases_that_come_together_open_the_index_once(disk):
    together = threading.Barrier(8)

    def ask():
        together.wait()
        with disk.lease():
            pass

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert disk.open == [1]
    assert disk.generations.unused


def test_a_closed_index_grants_no_lease_and_stays_open_for_those_it_has(disk):
    with disk.lease():
        disk.generations.close()
        assert disk.open == [1]
        with pytest.raises(IndexNotFoundError), disk.lease():
            pass
        assert disk.open == [1]
    assert disk.open == []


def test_a_generation_that_cannot_be_opened_is_an_error_and_leaves_nothing_open(disk):
    disk.generations.renew()
    disk.error = IndexMismatchError("of another model")
    with pytest.raises(IndexMismatchError):
        disk.generations.renew()
    assert not disk.generations.is_open
    assert disk.open == []


def test_what_another_process_has_published_is_noticed(disk):
    disk.generations.renew()
    newest = disk.generations._newest
    assert disk.generations.is_newest()
    newest.index.catalogue.generation = 2
    assert not disk.generations.is_newest()
    disk.generations.relabel(2)
    assert disk.generations.is_newest()
