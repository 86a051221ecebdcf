"""Jobs as the indexing process does them: each may be cut off anywhere and done again."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from coinkv.corpus.catalogue import Catalogue
from coinkv.corpus.documents import Document
from coinkv.corpus.schema import DocumentRow
from coinkv.errors import StorageError
from coinkv.rag.build import BuildOptions, OnProgress, build
from coinkv.rag.index import BLOCKS, CATALOGUE, open_published
from coinkv.rag.publish import publish
from coinkv.rag.remove import remove
from coinkv.rag.workshop import BuildLock
from coinkv.serve.library.assignment import Assignment, Outcome
from coinkv.serve.library.contents import generation_of, is_begun
from coinkv.serve.library.incoming import Change
from coinkv.serve.library.mirror import Mirror
from coinkv.store.disk import DiskStore

WORK = "work-"
"""Prefix of the folders in which jobs keep what they build from; a killed one leaves its own."""


@dataclass(frozen=True)
class Performer:
    """Does assignments.

    Attributes:
        options: how to build; called when a model is really needed, since it loads one.
        tell: told of every step.
    """

    options: Callable[[], BuildOptions]
    tell: OnProgress

    def perform(self, assignment: Assignment) -> Outcome:
        """Do one assignment; done before, it changes nothing.

        Raises:
            CoinKVError: it cannot be done; readers go on with what was published.
        """
        try:
            return self._perform(assignment, Path(assignment.folder), Path(assignment.home))
        except OSError as error:
            raise StorageError(
                f"the index cannot be written ({error.strerror or error})",
                hint="free space on the server's disk, check permissions, then send it again",
            ) from error

    def _perform(self, assignment: Assignment, folder: Path, home: Path) -> Outcome:
        changes = [Change(Path(path), 0, "add", "") for path in assignment.changes]
        rows = [row for change in changes for row in change.rows()]
        if assignment.kind == "purge":
            return self._purged(folder, {row["generation"] for row in rows})
        if assignment.kind == "remove":
            return self._removed(folder, [row["id"] for row in rows])
        mirror = Mirror(home)
        if assignment.docs is not None:
            return self._followed(folder, home, Path(assignment.docs), mirror)
        # of two documents of one key, the later
        documents = {row["id"]: Document(row["id"], row["title"], row["text"]) for row in rows}
        mirror.leave(documents)
        return self._added(folder, home, documents)

    def _added(self, folder: Path, home: Path, documents: Mapping[str, Document]) -> Outcome:
        """Add or replace documents by key."""
        before = _hashes(folder)
        new = [d for d in documents.values() if before.get(d.key) != d.content_hash]
        if new:
            with tempfile.TemporaryDirectory(prefix=WORK, dir=home) as work:
                source = Path(work, "documents.jsonl")
                rows = ({"id": d.key, "title": d.title, "text": d.text} for d in new)
                with source.open("w", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)
                options = replace(self.options(), keep=True)
                if before:  # an index keeps what it was built with
                    options = replace(options, codec=None, mark=None)
                build(source, folder, options, self.tell)
        return _outcome(folder, documents, published=bool(new))

    def _removed(self, folder: Path, keys: Iterable[str]) -> Outcome:
        """Take documents away, the last one too."""
        before = _hashes(folder)
        gone = [key for key in dict.fromkeys(keys) if key in before]
        if gone:
            self.tell("publishing", 0, 1)
            if len(gone) < len(before):
                remove(folder, gone)
            else:
                _publish_again(folder, empty=True)
        return _outcome(folder, gone, published=bool(gone))

    def _purged(self, folder: Path, generations: set[int]) -> Outcome:
        """Publish the same once more: what only the generation before had goes from the disk,
        down to the pages of the database that held it.

        Another job that has published meanwhile has done it already.
        """
        due = generation_of(folder) in generations
        if due:
            self.tell("clearing away", 0, 1)
            _publish_again(folder, empty=False)
            _overwrite_freed(folder)
        return _outcome(folder, (), published=due)

    def _followed(self, folder: Path, home: Path, docs: Path, mirror: Mirror) -> Outcome:
        """Bring an index up to date with a folder of documents, uploads left alone."""
        self.tell("reading documents", 0, 1)
        documents, skipped = mirror.read(docs, uploaded=set(_hashes(folder)))
        added = self._added(folder, home, documents)
        vanished = mirror.vanished(documents)
        removed = self._removed(folder, vanished)
        mirror.follow(documents)
        keys = (*added.documents, *removed.documents)
        outcome = _outcome(folder, keys, published=added.published or removed.published)
        return replace(outcome, skipped=skipped)


def _outcome(folder: Path, keys: Iterable[str], *, published: bool) -> Outcome:
    return Outcome(published, tuple(keys), generation=generation_of(folder))


def _hashes(folder: Path) -> dict[str, str]:
    """Content hashes of the published documents by key."""
    if not is_begun(folder):
        return {}
    with Catalogue.open(folder / CATALOGUE) as catalogue:
        return {row.key: row.content_hash for row in catalogue.documents()}


def _publish_again(folder: Path, *, empty: bool) -> None:
    """Publish what is published, or nothing at all, as a new generation."""
    with BuildLock(folder):
        catalogue, settings, _ = open_published(folder)
        with catalogue:
            documents: list[DocumentRow] = [] if empty else catalogue.documents()
            # an index without vectors has no embedder, and its name is never compared
            embedder = catalogue.embedder() if documents else settings.embedder
            publish(
                folder,
                catalogue,
                embedder,
                settings,
                DiskStore(folder / BLOCKS),
                documents,
                catalogue.placements() if documents else [],
            )


def _overwrite_freed(folder: Path) -> None:
    """Have the catalogue's file keep nothing that its tables do not; readers go on meanwhile."""
    # what cannot be had now, for a reader that holds on to an old page, the next purge gets
    with suppress(sqlite3.Error), closing(sqlite3.connect(folder / CATALOGUE)) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
