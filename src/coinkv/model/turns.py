"""Turns: one forward pass at a time, in an order fair to those who wait and those who read."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

PASS_TOKENS = 32
"""A pass reads all weights, which takes about as long as computing so many tokens on a CPU."""


class NotWantedError(Exception):
    """A computation was given up in the middle: whoever wanted it has left."""


class Caller(ABC):
    """On whose behalf forward passes are made in a thread; see `calling`."""

    streams: bool = False
    """These passes make the next tokens of answers that somebody is reading."""

    @property
    @abstractmethod
    def wanted(self) -> bool:
        """Somebody still waits for the result."""

    @abstractmethod
    def require_wanted(self) -> None:
        """Go on.

        Raises:
            NotWantedError: nobody waits for the result any more.
        """


OnTurn = Callable[[bool, int, float], None]
_caller: ContextVar[Caller | None] = ContextVar("coinkv_caller", default=None)


@contextmanager
def calling(caller: Caller) -> Iterator[None]:
    """Make the forward passes inside, of this thread, on behalf of a caller."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


@dataclass(eq=False)
class _Waiting:
    tokens: int
    caller: Caller | None
    looked_at: threading.Event = field(default_factory=threading.Event)
    granted: bool = False


class Turns:
    """Gives the device to one forward pass at a time.

    First come, first served; only callers that stream stand in a line of their own, which goes
    first once the others have computed `chunk_tokens` since the last streamed step. So a stream
    never waits for more than one chunk, however much is to be prefilled, and prompts go before the
    steps of long answers. Safe to use from many threads.

    Args:
        chunk_tokens: tokens that others may compute between two streamed steps.
        on_turn: told of every turn: whether it was a streamed step, its tokens, its seconds.
    """

    def __init__(self, chunk_tokens: int = 512, on_turn: OnTurn | None = None) -> None:
        self._chunk_tokens, self._on_turn = chunk_tokens, on_turn
        self._lock = threading.Lock()
        self._streams: deque[_Waiting] = deque()
        self._others: deque[_Waiting] = deque()
        self._taken = False
        self._since_step = 0

    @contextmanager
    def turn(self, tokens: int = 1) -> Iterator[None]:
        """Alone on the device inside. Not to be nested.

        Args:
            tokens: tokens that will be computed.

        Raises:
            NotWantedError: nobody waits for the caller's result any more.
        """
        caller = _caller.get()
        waiting = _Waiting(tokens, caller)
        streams = caller is not None and caller.streams
        line = self._streams if streams else self._others
        with self._lock:
            line.append(waiting)
            self._grant()
        try:
            waiting.looked_at.wait()
            if caller is not None:
                caller.require_wanted()
            started = time.perf_counter()
            yield
            if self._on_turn is not None:
                self._on_turn(streams, tokens, time.perf_counter() - started)
        finally:
            with self._lock:
                if waiting.granted:
                    self._taken = False
                elif waiting in line:  # interrupted while it waited
                    line.remove(waiting)
                self._grant()

    def look(self) -> None:
        """Send those away who wait for a turn that nobody wants any more."""
        with self._lock:
            for line in (self._streams, self._others):
                for waiting in list(line):
                    if waiting.caller is not None and not waiting.caller.wanted:
                        line.remove(waiting)
                        waiting.looked_at.set()

    def _grant(self) -> None:
        if self._taken or not (self._streams or self._others):
            return
        if self._others and not (self._streams and self._step_is_due()):
            chosen = self._others.popleft()
            self._since_step += chosen.tokens + PASS_TOKENS
        else:
            chosen = self._streams.popleft()
            self._since_step = 0
        self._taken = chosen.granted = True
        chosen.looked_at.set()

    def _step_is_due(self) -> bool:
        next_tokens = self._others[0].tokens + PASS_TOKENS
        return self._since_step > 0 and self._since_step + next_tokens > self._chunk_tokens
