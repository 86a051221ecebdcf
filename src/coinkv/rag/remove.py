"""Remove: publish an index without some of its documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coinkv.errors import InputError
from coinkv.rag.index import BLOCKS, open_published
from coinkv.rag.publish import publish
from coinkv.rag.workshop import BuildLock
from coinkv.store.disk import DiskStore


def remove(folder: Path, keys: Sequence[str]) -> int:
    """Remove documents by key; nothing is encoded again. Returns how many documents are left.

    Raises:
        InputError: a key the index does not have, or the last document would go.
    """
    open_published(folder)[0].close()  # a folder without an index must not get a lock file
    with BuildLock(folder):
        catalogue, settings, _ = open_published(folder)
        try:
            documents = catalogue.documents()
            known = {document.key for document in documents}
            unknown = [key for key in keys if key not in known]
            if unknown:
                raise InputError(
                    f"the index has no document {unknown[0]!r}",
                    where=folder,
                    hint="see their names with: coinkv index stats --index DIR",
                )
            left = [document for document in documents if document.key not in keys]
            if not left:
                raise InputError(
                    "an index cannot be empty", where=folder, hint="delete the folder instead"
                )
            placements = [p for p in catalogue.placements() if p.document_key not in keys]
            publish(
                folder,
                catalogue,
                catalogue.embedder(),
                settings,
                DiskStore(folder / BLOCKS),
                left,
                placements,
            )
        finally:
            catalogue.close()
    return len(left)
