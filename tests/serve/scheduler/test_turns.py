"""Turns: who computes next."""

import threading
import time
from contextlib import contextmanager

import pytest

from coinkv.model.turns import PASS_TOKENS, Caller, NotWantedError, Turns, calling


class Somebody(Caller):
    def __init__(self, streams=False):
        self.streams = streams
        self.gone = False

    @property
    def wanted(self):
        return not self.gone

    def require_wanted(self):
        if self.gone:
            raise NotWantedError


@contextmanager
def taken(turns):
    """The device is taken by somebody else inside."""
    with turns.turn():
        yield


def waiting_count(turns):
    return len(turns._streams) + len(turns._others)


class Line:
    """Callers that come one after the other, and the order in which they get their turn."""

    def __init__(self, turns):
        self.turns, self.order, self.threads = turns, [], []

    def come(self, name, *, streams=False, tokens=1):
        def run():
            with calling(Somebody(streams)), self.turns.turn(tokens):
                self.order.append(name)

        waiting = waiting_count(self.turns)
        thread = threading.Thread(target=run)
        thread.start()
        self.threads.append(thread)
        while waiting_count(self.turns) == waiting:
            time.sleep(0.001)

    def end(self):
        for thread in self.threads:
            thread.join(10)
        return self.order


def test_one_computes_at_a_time_whatever_many_want():
    turns, inside, most = Turns(), 0, 0

    def run():
        nonlocal inside, most
        for _ in range(50):
            with turns.turn():
                inside += 1
                most = max(most, inside)
                time.sleep(0)
                inside -= 1

    threads = [threading.Thread(target=run) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert (inside, most) == (0, 1)


def test_first_come_first_served():
    turns = Turns()
    line = Line(turns)
    with taken(turns):
        for name in "abcd":
            line.come(name)
    assert line.end() == list("abcd")


def test_a_stream_waits_for_one_chunk_of_prompts_and_no_more():
    turns = Turns(chunk_tokens=512)
    line = Line(turns)
    with taken(turns):
        line.come("step", streams=True)
        for number in range(4):
            line.come(f"pass {number}", tokens=200)
    # the turn that was taken counts, too: it leaves room for two passes of 200 before the step
    assert line.end() == ["pass 0", "pass 1", "step", "pass 2", "pass 3"]


def test_a_pass_longer_than_a_chunk_still_gets_its_turn():
    turns = Turns(chunk_tokens=512)
    line = Line(turns)
    with taken(turns):
        line.come("step", streams=True)
        line.come("long", tokens=4000)
        line.come("longer", tokens=5000)
        line.come("second step", streams=True)
    assert line.end() == ["step", "long", "second step", "longer"]


def test_steps_follow_each_other_while_nothing_else_waits():
    turns = Turns()
    line = Line(turns)
    with taken(turns):
        line.come("one", streams=True)
        line.come("two", streams=True)
    assert line.end() == ["one", "two"]


def test_whoever_is_not_wanted_any_more_is_sent_away_before_its_turn():
    turns, somebody = Turns(), Somebody()
    raised = []

    def run():
        with calling(somebody):
            try:
                with turns.turn():
                    raised.append("computed")
            except NotWantedError:
                raised.append("sent away")

    with taken(turns):
        thread = threading.Thread(target=run)
        thread.start()
        while not waiting_count(turns):
            time.sleep(0.001)
        somebody.gone = True
        turns.look()
        thread.join(10)  # while the device is still taken
        assert raised == ["sent away"]
    with turns.turn():
        pass


def test_an_error_inside_gives_the_device_back():
    turns = Turns()
    with pytest.raises(ValueError, match="broken"), turns.turn():
        raise ValueError("broken")
    with turns.turn():
        pass


def test_turns_are_told_with_their_tokens():
    told = []
    turns = Turns(on_turn=lambda streams, tokens, seconds: told.append((streams, tokens)))
    with turns.turn(7):
        pass
    with calling(Somebody(streams=True)), turns.turn(3):
        pass
    assert told == [(False, 7), (True, 3)]


def test_a_short_pass_costs_more_than_its_tokens():
    turns = Turns(chunk_tokens=3 * PASS_TOKENS + 3)
    line = Line(turns)
    with taken(turns):
        line.come("step", streams=True)
        for number in range(4):
            line.come(f"pass {number}")
    assert line.end()[:3] == ["pass 0", "pass 1", "step"]
