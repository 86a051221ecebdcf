"""The record of an index: the small file that says whose it is and where its data lies."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from coinkv.errors import StorageError
from coinkv.store.atomic import publish

_FILE = "index.json"


@dataclass(frozen=True)
class Record:
    """What is known of an index before its data is opened.

    Attributes:
        namespace: whom it belongs to.
        name: what clients call it.
        created: seconds since 1970.
        folder: the index folder, where it was built elsewhere; else it lies beside the record.
        docs: the folder of documents that it follows, if it does.
        dropped: it is gone for clients; its files go as soon as no answer uses them.
    """

    namespace: str
    name: str
    created: int
    folder: str | None = None
    docs: str | None = None
    dropped: bool = False

    def write(self, home: Path) -> None:
        """Keep the record in a folder, whole or not at all.

        Raises:
            StorageError: it cannot be written.
        """
        content = json.dumps(asdict(self)).encode()
        try:
            publish(home / _FILE, [memoryview(content)], fsync=True)
        except OSError as error:
            raise StorageError(
                f"the index cannot be kept ({error.strerror or error})",
                hint="check the server's disk and the permissions of its data folder",
            ) from error

    def drop(self, home: Path) -> None:
        """Have no restart serve it again, whatever else becomes of its files."""
        replace(self, dropped=True).write(home)

    @classmethod
    def read(cls, home: Path) -> Record | None:
        """The record in a folder; None when the folder is not an index of a server."""
        try:
            return cls(**json.loads((home / _FILE).read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None
