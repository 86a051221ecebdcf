"""The library: what a server's routes and questions may do with its indexes."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from coinkv.corpus.schema import DocumentRow
from coinkv.errors import CoinKVError, DocumentNotFoundError, InputError, StorageError
from coinkv.rag.index import Index
from coinkv.serve.library.contents import DocumentFacts, document_of, list_documents
from coinkv.serve.library.entries import IndexEntry, entry_of
from coinkv.serve.library.indexing import Indexing
from coinkv.serve.library.jobs import Job, JobBoard
from coinkv.serve.library.names import require_index_name
from coinkv.serve.library.shelf import Shelf
from coinkv.serve.library.shelves import Shelves
from coinkv.serve.library.uploads import UploadedFile, UploadReader
from coinkv.serve.settings import ServeSettings


def _idle() -> bool:
    return False


def _nothing() -> None:
    return None


class Library:
    """The indexes of all namespaces: open for questions, changed in the background.

    Every object belongs to one namespace; for another it does not exist. All methods but `watch`
    may take a while: call them from worker threads. Safe to use from any number of threads.

    Args:
        settings: folders, limits, and the model to index with.
        open_index: opens an index folder with the server's own backbone.
        busy: whether answers are being computed now; indexing then takes its share only.
        on_published: called, from a thread, when questions see something new.
    """

    def __init__(
        self,
        settings: ServeSettings,
        *,
        open_index: Callable[[Path], Index],
        busy: Callable[[], bool] = _idle,
        on_published: Callable[[], None] = _nothing,
    ) -> None:
        self._settings = settings
        self._shelves = Shelves(settings, open_index, self._on_free)
        self._followed: Shelf | None = None
        self._board = JobBoard()
        self._reader = UploadReader(settings)
        self._indexing = Indexing(settings, self._shelves, self._board, busy, on_published)
        # whichever thread closes it may release it
        self._lock = FileLock(settings.data_dir / "library.lock", thread_local=False)

    def claim(self) -> None:
        """Take the data folder for this server, and find the indexes.

        Raises:
            InputError: another server uses the data folder, or there is no docs folder.
            StorageError: it cannot be used.
        """
        where, docs = self._settings.data_dir, self._settings.docs
        if docs is not None and not docs.expanduser().exists():
            raise InputError("there is no such folder", where=docs, hint="check the path")
        try:
            where.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            self._shelves.load()
        except Timeout as error:
            raise InputError(
                "another server uses this data folder", where=where, hint="choose another one"
            ) from error
        except OSError as error:
            raise StorageError(
                f"the data folder cannot be used ({error.strerror or error})",
                where=where,
                hint="choose another one, or check its permissions",
            ) from error

    def start(self) -> None:
        """Go on with jobs that were cut off, and follow the docs folder.

        Claims the data folder where that was not done before, with the errors of `claim`.
        """
        if not self._lock.is_locked:
            self.claim()
        docs = self._settings.docs
        self._followed = None if docs is None else self._shelves.following(docs)
        self._indexing.start()
        if self._followed is not None:
            self._indexing.waiting.follow(self._followed)

    def close(self) -> None:
        """Stop indexing, to be gone on with by the next server, and close what nobody uses."""
        self._indexing.close()
        for shelf in self._shelves:
            shelf.generations.close()
        self._lock.release()

    @contextmanager
    def open(self, namespace: str, name: str) -> Iterator[Index]:
        """The newest published generation of an index, to be used inside the `with` block.

        A generation published meanwhile is for the blocks that begin later.

        Raises:
            IndexNotFoundError: the namespace has no index of this name.
            NotReadyError: its first documents are being indexed.
            InputError: it is empty.
            IndexMismatchError: it belongs to another model, prompt, embedder or format version.
        """
        shelf = self._shelves.get(namespace, name)
        self._look_again(shelf)
        shelf.require_documents()
        with shelf.lease() as index:
            if shelf.record.folder and not shelf.generations.is_newest():
                shelf.stale = True  # this lease is good still: the one before stays on the disk
                self._indexing.wake()
            yield index

    def entries(self, namespace: str) -> tuple[IndexEntry, ...]:
        """The indexes of a namespace, by name."""
        return tuple(self._entry(shelf) for shelf in self._shelves.of(namespace))

    def entry(self, namespace: str, name: str) -> IndexEntry:
        """An index of a namespace.

        Raises:
            IndexNotFoundError: it has none of this name.
        """
        return self._entry(self._shelves.get(namespace, name))

    def create(self, namespace: str, name: str) -> tuple[IndexEntry, bool]:
        """An index of this name, and whether it is a new, empty one.

        Raises:
            InputError: the name cannot be used, or there are too many indexes.
            StorageError: it cannot be kept.
        """
        shelf, is_new = self._shelves.made(namespace, name)
        return self._entry(shelf), is_new

    def add(self, namespace: str, name: str, files: Sequence[UploadedFile]) -> Job:
        """Add documents, or replace those of the same keys; makes the index if there is none.

        When this returns, the documents are on the disk, and will be indexed whatever happens to
        the server.

        Raises:
            InputError: no file could be read, or the index cannot be changed.
            BusyError: too much waits already.
            StorageError: the documents cannot be kept.
        """
        require_index_name(name)
        shelf = self._shelves.find(namespace, name)
        if shelf is not None:
            self._require_writable(shelf)
        upload = self._reader.read(files)  # before a new index is made: there may be nothing in it
        shelf, _ = self._shelves.made(namespace, name)
        return self._indexing.waiting.submit(shelf, "add", upload.rows, upload.skipped)

    def remove(self, namespace: str, name: str, key: str) -> Job:
        """Remove a document; one that still waits to be indexed, too.

        Raises:
            IndexNotFoundError: no such index.
            DocumentNotFoundError: no such document in it.
            InputError: the index cannot be changed.
            BusyError, StorageError: not now.
        """
        shelf = self._shelves.get(namespace, name)
        self._require_writable(shelf)
        waiting = {key for job in shelf.jobs for key in self._board.find(job).documents}
        for known in _spellings(key):
            if known in waiting or document_of(shelf.folder, known) is not None:
                return self._indexing.waiting.submit(shelf, "remove", [{"id": known}])
        raise _no_document(key)

    def drop(self, namespace: str, name: str) -> None:
        """Delete an index with all its documents. Jobs of it end; answers that use it are finished.

        Raises:
            IndexNotFoundError: the namespace has no index of this name.
            InputError: the settings say that it is to be served.
            StorageError: the disk refuses; it is served on.
        """
        shelf = self._shelves.get(namespace, name)
        if not self._entry(shelf).removable:
            raise InputError(
                "this index is served because the server's settings say so",
                where=name,
                hint="take it out of the settings and start the server again",
            )
        self._shelves.drop(shelf)
        self._indexing.drop(shelf)

    def documents(
        self, namespace: str, name: str, *, after: str = "", limit: int = 100
    ) -> tuple[list[DocumentFacts], bool]:
        """Published documents by key, from the first key behind `after`, and whether more follow.

        Raises:
            IndexNotFoundError: the namespace has no index of this name.
        """
        shelf = self._shelves.get(namespace, name)
        found = list_documents(shelf.folder, after, limit + 1)
        return found[:limit], len(found) > limit

    def document(self, namespace: str, name: str, key: str) -> DocumentRow:
        """A published document.

        Raises:
            IndexNotFoundError: no such index.
            DocumentNotFoundError: no such document in it.
        """
        shelf = self._shelves.get(namespace, name)
        for known in _spellings(key):
            found = document_of(shelf.folder, known)
            if found is not None:
                return found
        raise _no_document(key)

    def job(self, namespace: str, job_id: str) -> Job:
        """A job of a namespace.

        Raises:
            JobNotFoundError: it has none of this id (any more).
        """
        return self._board.get(namespace, job_id)

    def jobs(self) -> tuple[Job, ...]:
        """The jobs of all namespaces that have not been forgotten."""
        return self._board.all()

    def watch(self, namespace: str, job_id: str) -> AsyncGenerator[Job, None]:
        """A job now and after each change, up to its end; see `JobBoard.watch`."""
        return self._board.watch(namespace, job_id)

    def _on_free(self) -> None:
        self._indexing.wake()

    def _entry(self, shelf: Shelf) -> IndexEntry:
        return entry_of(shelf, self._board, follows=shelf is self._followed)

    def _look_again(self, shelf: Shelf) -> None:
        """Have a failure that may have passed looked at: a busy disk, an index built elsewhere."""
        if isinstance(shelf.error, StorageError) or (shelf.error and shelf.record.folder):
            shelf.stale = True
            self._indexing.wake()

    def _require_writable(self, shelf: Shelf) -> None:
        self._look_again(shelf)
        shelf.require_usable()
        if not shelf.writable:
            raise InputError("this index may be read only", where=shelf.record.name)


def _spellings(key: str) -> Sequence[str]:
    """A key as given (an index built elsewhere may have it so), and as an upload would have it."""
    return tuple(dict.fromkeys((key, unicodedata.normalize("NFC", key))))


def _no_document(key: str) -> CoinKVError:
    return DocumentNotFoundError(f"the index has no document {key[:80]!r}")
