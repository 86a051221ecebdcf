"""The indexing process is stopped while answers are computed, and never left stopped."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from in_process_library import becomes_true

from coinkv.serve.library.share import Share

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "SIGSTOP") or not Path("/proc/self/stat").exists(),
    reason="stops processes, and reads their state in /proc",
)


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield process
    process.kill()
    process.wait()


def state(process) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_stopped(process) -> bool:
    return state(process) == "T"


def test_a_process_runs_freely_while_nobody_asks(child):
    with Share(child.pid, lambda: False, 0.2):
        assert not becomes_true_within(lambda: is_stopped(child), looks=200)


def test_a_process_is_stopped_and_continued_in_turn_while_answers_are_computed(child):
    with Share(child.pid, lambda: True, 0.5):
        for _ in range(2):
            assert becomes_true(lambda: is_stopped(child))
            assert becomes_true(lambda: not is_stopped(child))


def test_a_process_goes_on_as_soon_as_the_last_answer_is_done(child):
    busy = threading.Event()
    busy.set()
    with Share(child.pid, busy.is_set, 0.01):
        assert becomes_true(lambda: is_stopped(child))
        busy.clear()
        assert becomes_true(lambda: not is_stopped(child))
        assert not becomes_true_within(lambda: is_stopped(child), looks=200)


def test_a_process_is_not_left_stopped(child):
    with Share(child.pid, lambda: True, 0.01):
        assert becomes_true(lambda: is_stopped(child))
    assert not is_stopped(child)


def test_a_process_is_not_left_stopped_when_the_question_whether_to_stop_it_fails(child):
    asked = []

    def busy():
        asked.append(True)
        if len(asked) > 2:
            raise RuntimeError("the scheduler has ended")
        return True

    share = Share(child.pid, busy, 0.01)
    share._thread = threading.Thread(target=suppressed(share._pace))
    with share:
        assert becomes_true(lambda: len(asked) > 2)
    assert not is_stopped(child)


def test_a_share_of_one_never_stops_the_process(child):
    with Share(child.pid, lambda: True, 1.0):
        assert not becomes_true_within(lambda: is_stopped(child), looks=200)


def test_a_process_that_has_died_meanwhile_is_no_error(child):
    with Share(child.pid, lambda: True, 0.01):
        child.kill()
        child.wait()


def becomes_true_within(condition, looks: int) -> bool:
    return any(condition() or threading.Event().wait(0.002) for _ in range(looks))


def suppressed(call):
    def run():
        with contextlib.suppress(RuntimeError):
            call()

    return run
