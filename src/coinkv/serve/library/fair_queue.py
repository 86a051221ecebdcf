"""A queue that serves its clients in turn, each in its own order."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items of several clients: one of each in turn, however many one of them has put in."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, deque[T]] = OrderedDict()

    def __iter__(self) -> Iterator[T]:
        """All items, client by client, each client's in their order."""
        return (item for items in self._items.values() for item in items)

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))

    def put(self, client: str, item: T) -> None:
        """Add an item behind the client's others."""
        self._items.setdefault(client, deque()).append(item)

    def take(self, is_ready: Callable[[T], bool]) -> T | None:
        """The next client's first item that is ready; None when no item is."""
        for client, items in self._items.items():
            for item in items:
                if is_ready(item):
                    self._served(client, item)
                    return item
        return None

    def remove(self, is_unwanted: Callable[[T], bool]) -> list[T]:
        """Take items out that nobody wants any more; returns them."""
        unwanted = [item for item in self if is_unwanted(item)]
        for client in list(self._items):
            left = deque(item for item in self._items[client] if not is_unwanted(item))
            if left:
                self._items[client] = left
            else:
                del self._items[client]
        return unwanted

    def _served(self, client: str, item: T) -> None:
        items = self._items[client]
        items.remove(item)
        if items:
            self._items.move_to_end(client)
        else:
            del self._items[client]
