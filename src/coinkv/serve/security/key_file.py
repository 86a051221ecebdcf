"""The file of API keys: digests and limits, whole at every moment, readable by its owner only."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import BaseModel, ValidationError

from coinkv.errors import StorageError
from coinkv.store.atomic import sync

LOCK_SECONDS = 10.0
"""How long a change of the file waits for another one to end."""
_VERSION = 1


@dataclass(frozen=True)
class ApiKey:
    """What is known of a key; the key itself is not.

    Attributes:
        name: of its holder, unique in a file.
        namespace: what its requests see: the indexes, jobs and reusable KV of one namespace.
        digest: SHA-256 of the key, hexadecimal.
        created: seconds since 1970.
        expires: the same, or None.
        requests_per_minute: its own limit, or None for the server's.
        tokens_per_minute: of prompts and answers together, or None for no limit.
    """

    name: str
    namespace: str
    digest: str
    created: int
    expires: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    @property
    def expired(self) -> bool:
        """Whether its time is over."""
        return self.expires is not None and time.time() >= self.expires

    def to_dict(self) -> dict[str, Any]:
        """All but the digest, JSON-ready."""
        return {name: value for name, value in asdict(self).items() if name != "digest"}


class _Version(BaseModel):
    version: int


class _Held(_Version):
    keys: tuple[ApiKey, ...]


class KeyFile:
    """`keys.json` of a server's data folder; any number of processes may read and change it."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / "keys.json"

    def version(self) -> tuple[int, ...] | None:
        """What changes when the file does; None where there is no file.

        Raises:
            StorageError: the folder cannot be read.
        """
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from error
        return found.st_mtime_ns, found.st_size, found.st_ino

    def read(self) -> tuple[ApiKey, ...]:
        """The keys, in the order in which they were added; none without a file.

        Raises:
            StorageError: the file is damaged or cannot be read.
        """
        try:
            text = self.path.read_bytes()
            version = _Version.model_validate_json(text).version
            if version == _VERSION:
                return _Held.model_validate_json(text, strict=True).keys
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self._unusable(error) from error
        except ValidationError as error:
            hint = "put back a copy, or remove the file and make new keys"
            raise StorageError("the file of keys is damaged", where=self.path, hint=hint) from error
        raise StorageError(
            f"the keys are of version {version}", where=self.path, hint="use a newer coinkv"
        )

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Keep other processes from changing the file.

        Raises:
            StorageError: they did not let go of it in time, or the folder cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = FileLock(self.path.with_name("keys.lock"), timeout=LOCK_SECONDS, mode=0o600)
            with lock:
                yield
        except OSError as error:
            raise self._unusable(error) from error

    def write(self, keys: Sequence[ApiKey]) -> None:
        """Replace the file as a whole; call it within `changing`.

        Raises:
            OSError: it could not be written, and is as it was.
        """
        held = {"version": _VERSION, "keys": [asdict(key) for key in keys]}
        # mkstemp's files are their owner's alone from the first moment
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".keys-")
        part = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(held, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
        sync(self.path.parent)

    def _unusable(self, error: OSError) -> StorageError:
        return StorageError(f"keys cannot be kept: {error.strerror or error}", where=self.path)
