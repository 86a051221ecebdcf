"""The queue: who is next, when many clients want more than there are slots."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """What can wait."""

    client: str


T = TypeVar("T", bound=Queued)


class FairQueue(Generic[T]):
    """A line for each client; the client that has the fewest requests running is next.

    Among equals it is the one that was served the longest ago, so a client with a hundred waiting
    requests delays another's first one by one request at most. Not safe for use from two threads.

    Args:
        most: requests that may wait.
        most_of_one: requests of one client that may wait.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()  # served the longest ago first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return (each for line in self._lines.values() for each in line)

    @property
    def clients(self) -> int:
        """Clients that wait."""
        return len(self._lines)

    def has_room(self, client: str, ahead: int) -> bool:
        """Whether a request may wait.

        Args:
            client: whose it is.
            ahead: how many of those that wait will be taken at once, since slots are free.
        """
        of_client = len(self._lines.get(client, ()))
        return self._count - ahead < self._most and of_client - ahead < self._most_of_one

    def put(self, each: T) -> None:
        """Wait at the end of the client's line."""
        self._lines.setdefault(each.client, deque()).append(each)
        self._count += 1

    def take(self, running: Counter[str], most_running: int) -> T | None:
        """The next one; None where nobody waits who may run.

        Args:
            running: how many requests of each client run.
            most_running: a client that has so many running waits.
        """
        fit = [client for client in self._lines if running[client] < most_running]
        if not fit:
            return None
        client = min(fit, key=lambda each: running[each])
        line = self._lines.pop(client)
        each = line.popleft()
        if line:
            self._lines[client] = line  # behind all others
        self._count -= 1
        return each

    def remove(self, each: T) -> bool:
        """Take one out of the line; whether it was there."""
        line = self._lines.get(each.client)
        if line is None or each not in line:
            return False
        line.remove(each)
        if not line:
            del self._lines[each.client]
        self._count -= 1
        return True
