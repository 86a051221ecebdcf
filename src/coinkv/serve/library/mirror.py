"""A folder that an index follows: its files are kept up with, documents uploaded besides stay."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

from coinkv.corpus.documents import Document, read_documents
from coinkv.errors import DocumentError
from coinkv.serve.library.assignment import Skipped
from coinkv.serve.library.names import unique_key
from coinkv.store.atomic import publish

_ROWS = (".jsonl", ".jsonl.gz")


class Mirror:
    """Which documents of an index belong to the folder it follows, kept in one file.

    A document that was uploaded under the name of one of the folder's belongs to its uploader from
    then on; the folder gets it back when it is removed. A document of the folder that is removed by
    a client comes again when the server starts, since the folder still has it.

    Args:
        home: folder of the index's record.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / "docs.json"
        try:
            self._keys = frozenset(json.loads(self._path.read_text("utf-8")))
        except (OSError, ValueError):
            self._keys = frozenset[str]()

    def read(
        self, docs: Path, uploaded: Set[str]
    ) -> tuple[Mapping[str, Document], tuple[Skipped, ...]]:
        """Documents of the folder by key, and the files of which nothing was taken.

        Args:
            docs: the folder (or file).
            uploaded: all keys of the index; those that the folder does not own are passed over.

        Raises:
            DocumentError: there is no such folder, or it holds no document at all.
            OSError: the disk refuses.
        """
        own = uploaded - self._keys
        documents: dict[str, Document] = {}
        skipped: list[Skipped] = []
        for path, name in _files(docs):
            try:
                found = read_documents(path)
            except DocumentError as error:
                skipped.append(Skipped(name, error.what))
                continue
            for document in found:
                plain = document.key if name.lower().endswith(_ROWS) else name
                key = unique_key(plain, documents)
                documents[key] = Document(key, document.title, document.text)
        if not documents:
            raise DocumentError(
                "the folder holds no readable document",
                hint="; ".join(f"{each.file} {each.reason}" for each in skipped[:3])
                or "put documents there, or upload some",
            )
        self._keep(self._keys | (documents.keys() - own))
        taken = {key: document for key, document in documents.items() if key not in own}
        return taken, tuple(skipped)

    def vanished(self, documents: Mapping[str, Document]) -> list[str]:
        """Keys of documents that the folder had and has no longer."""
        return sorted(self._keys - documents.keys())

    def follow(self, documents: Mapping[str, Document]) -> None:
        """The index has these documents of the folder now, and no others of it."""
        self._keep(frozenset(documents))

    def leave(self, keys: Iterable[str]) -> None:
        """Documents of these keys are about to be uploaded: they are the folder's no longer."""
        left = self._keys - set(keys)
        if left != self._keys:
            self._keep(left)

    def _keep(self, keys: frozenset[str]) -> None:
        # kept before documents of the folder are published: after a crash between the two, a
        # document too many is taken for the folder's, never one of its own for an upload
        publish(self._path, [memoryview(json.dumps(sorted(keys)).encode())], fsync=True)
        self._keys = keys


def _files(docs: Path) -> list[tuple[Path, str]]:
    """Visible files with their names relative to the folder, in order of the name."""
    if docs.is_file():
        return [(docs, docs.name)]
    if not docs.is_dir():
        raise DocumentError("there is no such folder", hint="check the path")
    found = [(path, path.relative_to(docs)) for path in docs.rglob("*")]
    visible = [
        (path, name.as_posix())
        for path, name in found
        if not any(part.startswith((".", "~$")) for part in name.parts) and path.is_file()
    ]
    return sorted(visible, key=lambda entry: entry[1])
