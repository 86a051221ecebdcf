"""All indexes of a server: found again at the start, made, and dropped."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from coinkv.errors import IndexNotFoundError, InputError
from coinkv.rag.index import Index
from coinkv.serve.library.names import (
    folder_of_namespace,
    index_name,
    new_folder_of_index,
    require_index_name,
)
from coinkv.serve.library.record import Record
from coinkv.serve.library.shelf import GONE, Shelf
from coinkv.serve.settings import ServeSettings

DEFAULT_NAMESPACE = "default"
"""Owner of the indexes that the settings name."""
MOST_INDEXES = 1000
"""Most indexes of a namespace."""

_log = logging.getLogger(__name__)


class Shelves:
    """The indexes of all namespaces, below one folder. Safe to use from threads.

    Args:
        settings: where they lie, and which others are to be served.
        open_index: opens an index folder with the server's backbone.
        on_free: called whenever the last lease of some generation ends.
    """

    def __init__(
        self,
        settings: ServeSettings,
        open_index: Callable[[Path], Index],
        on_free: Callable[[], None],
    ) -> None:
        self._settings, self._open_index, self._on_free = settings, open_index, on_free
        self._root = settings.data_dir / "indexes"
        self._shelves: dict[tuple[str, str], Shelf] = {}
        self._lock = threading.Lock()

    def load(self) -> None:
        """Find what is there, clear away what was dropped, and add what the settings name."""
        built_elsewhere: dict[str, Shelf] = {}
        for home in self._homes():
            record = Record.read(home)
            if record is None:
                _log.warning("this folder has no record of an index: %s", home)
            elif record.dropped:
                shutil.rmtree(home, ignore_errors=True)
            elif record.folder is None:
                self._add(self._shelf(home, record))
            else:
                built_elsewhere[record.folder] = self._shelf(home, record)
        for path in self._settings.indexes:
            self._serve(path.expanduser().resolve(), built_elsewhere)
        for shelf in self:
            shelf.count()

    def __iter__(self) -> Iterator[Shelf]:
        with self._lock:
            return iter(list(self._shelves.values()))

    def of(self, namespace: str) -> list[Shelf]:
        """The indexes of a namespace, by name."""
        mine = (shelf for shelf in self if shelf.record.namespace == namespace)
        return sorted(mine, key=lambda shelf: shelf.record.name)

    def get(self, namespace: str, name: str) -> Shelf:
        """An index of a namespace.

        Raises:
            IndexNotFoundError: it has none of this name.
        """
        shelf = self.find(namespace, name)
        if shelf is None:
            raise IndexNotFoundError(f"there is no index {name[:80]!r}")
        return shelf

    def find(self, namespace: str, name: str) -> Shelf | None:
        """An index of a namespace, None where it has none of this name."""
        return self._shelves.get((namespace, name))

    def made(self, namespace: str, name: str) -> tuple[Shelf, bool]:
        """An index of this name, and whether it is a new one.

        Raises:
            InputError: the name cannot be used, or there are too many indexes.
            StorageError: it cannot be kept.
        """
        require_index_name(name)
        with self._lock:
            if (namespace, name) in self._shelves:
                return self._shelves[namespace, name], False
            if sum(owner == namespace for owner, _ in self._shelves) >= MOST_INDEXES:
                raise InputError(
                    f"there are {MOST_INDEXES} indexes already", hint="delete one first"
                )
            shelf = self._made(Record(namespace, name, int(time.time())))
            self._shelves[namespace, name] = shelf
        return shelf, True

    def following(self, docs: Path) -> Shelf:
        """The index that follows a folder of documents, made when there is none yet."""
        docs = docs.expanduser().resolve()
        with self._lock:
            for shelf in self._shelves.values():
                if shelf.record.docs == str(docs):
                    return shelf
            name = self._free_name(docs.stem if docs.is_file() else docs.name)
            record = Record(DEFAULT_NAMESPACE, name, int(time.time()), docs=str(docs))
            shelf = self._shelves[DEFAULT_NAMESPACE, name] = self._made(record)
        return shelf

    def drop(self, shelf: Shelf) -> None:
        """Serve an index no longer, from now on and after any restart; its files may still be read.

        Raises:
            StorageError: the disk refuses; it is served on.
        """
        with self._lock:
            shelf.record.drop(shelf.home)
            shelf.dropped = True
            del self._shelves[shelf.record.namespace, shelf.record.name]
        shelf.generations.close()

    def _homes(self) -> Iterator[Path]:
        """Folders of indexes; what was being deleted is deleted."""
        for namespace in self._root.iterdir() if self._root.is_dir() else ():
            for home in namespace.iterdir() if namespace.is_dir() else ():
                if home.name.startswith(GONE):
                    shutil.rmtree(home, ignore_errors=True)
                elif home.is_dir():
                    yield home

    def _serve(self, folder: Path, known: dict[str, Shelf]) -> None:
        """An index that was built elsewhere, under the name it had at the last start."""
        shelf = known.get(str(folder))
        if shelf is None or (DEFAULT_NAMESPACE, shelf.record.name) in self._shelves:
            name = self._free_name(folder.name)
            record = Record(DEFAULT_NAMESPACE, name, int(time.time()), folder=str(folder))
            shelf = self._made(record)
        self._add(shelf)

    def _free_name(self, text: str) -> str:
        taken = {name for owner, name in self._shelves if owner == DEFAULT_NAMESPACE}
        return index_name(text, taken)

    def _made(self, record: Record) -> Shelf:
        home = self._root / folder_of_namespace(record.namespace) / new_folder_of_index(record.name)
        record.write(home)
        return self._shelf(home, record)

    def _shelf(self, home: Path, record: Record) -> Shelf:
        return Shelf.at(home, record, self._open_index, self._on_free)

    def _add(self, shelf: Shelf) -> None:
        self._shelves[shelf.record.namespace, shelf.record.name] = shelf
