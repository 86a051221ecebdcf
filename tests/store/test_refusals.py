"""A disk that refuses is passed over, said once, and not waited for again and again."""

from __future__ import annotations

import logging

import pytest

from coinkv.errors import StorageError
from coinkv.store import refusals
from coinkv.store.refusals import REST_SECONDS, Refusals


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(refusals.time, "monotonic", lambda: now[0])
    return now


def failing(clock, seconds):
    def work():
        clock[0] += seconds
        raise StorageError("it is held")

    return work


def test_after_a_long_wait_everything_is_refused_at_once_for_a_while(clock):
    disk = Refusals()
    assert disk.read(failing(clock, 10), "instead") == "instead"
    assert disk.write(lambda: "done", "instead") == "instead"
    clock[0] += REST_SECONDS + 1
    assert disk.write(lambda: "done", "instead") == "done"
    assert (disk.reads, disk.writes) == (1, 1)


def test_what_fails_at_once_is_tried_again(clock):
    disk = Refusals()
    assert disk.read(failing(clock, 0), None) is None
    assert disk.read(lambda: "done", None) == "done"


def test_the_same_refusal_is_said_once_a_minute(clock, caplog):
    disk = Refusals()
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            disk.read(failing(clock, 0), None)
            disk.read(lambda: "done", None)
        assert len(caplog.records) == 1
        clock[0] += 61
        disk.read(failing(clock, 0), None)
    assert len(caplog.records) == 2
    assert disk.reads == 6
