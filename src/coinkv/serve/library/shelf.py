"""A shelf: one index of a server, with its record, its open generations and what waits for it."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from coinkv.errors import CoinKVError, InputError, NotReadyError, StorageError
from coinkv.rag.index import Index, open_published
from coinkv.serve.library.contents import Contents, contents_of
from coinkv.serve.library.generations import Generations
from coinkv.serve.library.incoming import Incoming
from coinkv.serve.library.perform import WORK
from coinkv.serve.library.record import Record

INDEX_FOLDER = "index"
GONE = ".gone-"
"""Prefix of folders that are being deleted."""

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Shelf:
    """One index as the server has it.

    Attributes:
        record: whose it is and what it is called.
        home: folder of the record, and of the index unless that was built elsewhere.
        incoming: changes that wait.
        generations: what is open of it.
        contents: totals over what is published.
        error: why what is published cannot be used.
        dropped: gone for clients.
        stale: another process has published a newer generation.
        jobs: ids of the jobs that have not ended, in order.
        last_job: id of the one that ended last.
    """

    record: Record
    home: Path
    incoming: Incoming
    generations: Generations
    contents: Contents = field(default_factory=Contents)
    error: CoinKVError | None = None
    dropped: bool = False
    stale: bool = False
    jobs: tuple[str, ...] = ()
    last_job: str | None = None
    _burial: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def at(
        cls,
        home: Path,
        record: Record,
        open_index: Callable[[Path], Index],
        on_free: Callable[[], None],
    ) -> Shelf:
        """The shelf of a record; what killed jobs left lying is cleared away."""
        folder = Path(record.folder) if record.folder else home / INDEX_FOLDER
        for left in home.glob(f"{WORK}*"):
            shutil.rmtree(left, ignore_errors=True)
        incoming = Incoming(home / "incoming")
        return cls(record, home, incoming, Generations(folder, open_index, on_free))

    @property
    def folder(self) -> Path:
        """The index folder."""
        return Path(self.record.folder) if self.record.folder else self.home / INDEX_FOLDER

    @property
    def writable(self) -> bool:
        """Whether this process may write to its folder."""
        return os.access(self.folder if self.record.folder else self.home, os.W_OK)

    def count(self) -> None:
        """Read what is published; what is wrong with it is kept as the shelf's error."""
        try:
            self.contents, self.error = self._counted(), None
        except CoinKVError as error:
            self.fail(error)

    def renew(self) -> None:
        """Open what is published, if anything is, before a question waits for it."""
        self.stale = False
        try:
            contents = self._counted()
            if contents.documents:
                self.generations.renew()
                self.contents, self.error = contents, None
            else:
                self.contents, self.error = contents, None
                self.generations.shut()
        except CoinKVError as error:
            self.fail(error)
            self.generations.shut()
        except Exception as error:  # noqa: BLE001 - one index must not keep others from being served
            _log.exception("an index cannot be opened")
            self.fail(StorageError(f"the index cannot be opened ({type(error).__name__})"))
            self.generations.shut()

    @contextmanager
    def lease(self) -> Iterator[Index]:
        """The newest generation, to be used inside; see `Generations.lease`.

        Raises:
            CoinKVError: it cannot be opened; the shelf has failed then, if it is the index's fault.
        """
        with ExitStack() as held:
            try:
                index = held.enter_context(self.generations.lease())
            except (InputError, StorageError) as error:
                raise self.fail(error) from error
            if not index.vectors.chunks:  # the last document has just been removed
                raise self.is_empty()
            yield index

    def _counted(self) -> Contents:
        contents = contents_of(self.folder)
        if self.record.folder and not contents.generation:
            open_published(self.folder)  # says what is missing
        return contents

    def fail(self, error: CoinKVError) -> CoinKVError:
        """What is published cannot be used: the error as clients may see it, without paths."""
        self.error = type(error)(error.what, where=self.record.name, hint=error.hint)
        return self.error

    def require_usable(self) -> None:
        """Refuse to use what cannot be used.

        Raises:
            CoinKVError: why the state is `failed`.
        """
        if self.error is not None:
            raise self.error

    def require_documents(self) -> None:
        """Refuse a question to an index without documents.

        Raises:
            CoinKVError: why the state is `failed`.
            NotReadyError: its first documents are being indexed.
            InputError: it is empty.
        """
        self.require_usable()
        if self.contents.documents:
            return
        if self.jobs:
            raise NotReadyError(
                "the index is being built", where=self.record.name, hint="try again in a while"
            )
        raise self.is_empty()

    def is_empty(self) -> InputError:
        """What a question to an index without documents is told."""
        return InputError(
            "the index holds no documents", where=self.record.name, hint="upload some first"
        )

    def bury(self) -> None:
        """Delete the files of a dropped index, unless something still uses them."""
        with self._burial:
            if not (self.dropped and self.generations.unused and self.home.exists()):
                return
            gone = self.home.with_name(f"{GONE}{self.home.name}")
            with suppress(OSError):  # else at the next start
                self.home.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
