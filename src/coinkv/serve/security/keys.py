"""API keys: given out once, known by their digests, found again without a delay that tells."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import time
from pathlib import Path

from coinkv.errors import InputError, StorageError
from coinkv.serve.security.key_file import ApiKey, KeyFile

PREFIX = "ck_"
"""What every key begins with, so that scanners for leaked secrets find it."""
DEFAULT_NAMESPACE = "default"
"""Namespace of everything where there are no keys; its keys are the operator's own."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SECRET_BYTES = 32
_LOOK_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Keys:
    """The keys of a server; those that another process adds or removes count within a second or so.

    A key is 256 random bits, kept as its SHA-256. A slow or salted hash, as passwords need, would
    protect nothing: there is no list of likely keys to try.
    """

    def __init__(self, data_dir: Path) -> None:
        """Read the keys of a server's data folder; without a file there are none.

        Raises:
            StorageError: the file is damaged or cannot be read.
        """
        self._file = KeyFile(data_dir)
        self._looked = time.monotonic()
        self._version = self._file.version()
        self._by_digest = _by_digest(self._file.read())

    def all(self) -> tuple[ApiKey, ...]:
        """The keys, in the order in which they were added."""
        self._look()
        return tuple(self._by_digest.values())

    def find(self, secret: str) -> ApiKey | None:
        """What is known of a key that a client has sent, expired or not; None if it is no key.

        It is looked up by its digest: how long that takes may tell something of a digest, which
        tells nothing of a key.
        """
        self._look()
        return self._by_digest.get(_digest(secret))

    def add(
        self,
        name: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        expires: int | None = None,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key.

        Returns:
            What is known of it, and the key itself, which can never be read again.

        Raises:
            InputError: the name is taken, a name or a limit cannot be used, or `expires` (seconds
                since 1970) is past.
            StorageError: the file is damaged or cannot be written.
        """
        _require_name("name", name)
        _require_name("namespace", namespace)
        for what, limit in (("requests", requests_per_minute), ("tokens", tokens_per_minute)):
            if limit is not None and limit < 1:
                raise InputError(f"{what} per minute is {limit}", hint="use 1 or more")
        secret = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        limits = (expires, requests_per_minute, tokens_per_minute)
        key = ApiKey(name, namespace, _digest(secret), int(time.time()), *limits)
        if key.expired:
            raise InputError("the key would have expired already", hint="give a later time")
        with self._file.changing():
            others = self._file.read()
            if any(other.name == name for other in others):
                hint = "remove it first, or choose another name"
                raise InputError(f"there is a key named {name!r}", hint=hint)
            self._file.write([*others, key])
        return key, secret

    def remove(self, name: str) -> ApiKey:
        """Make a key invalid; requests that it has begun still end.

        Raises:
            InputError: there is none of this name.
            StorageError: the file is damaged or cannot be written.
        """
        with self._file.changing():
            keys = self._file.read()
            found = next((key for key in keys if key.name == name), None)
            if found is None:
                hint = "see: coinkv keys list"
                raise InputError(f"there is no key named {name[:80]!r}", hint=hint)
            self._file.write([key for key in keys if key is not found])
        return found

    def _look(self) -> None:
        """Read the file again if it has changed; one that cannot be used leaves the keys as are."""
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            version = self._file.version()
            if version != self._version:
                self._by_digest = _by_digest(self._file.read())
                self._version = version
        except StorageError as error:
            _log.error("the keys stay as they were: %s", error)


def _by_digest(keys: tuple[ApiKey, ...]) -> dict[str, ApiKey]:
    return {key.digest: key for key in keys}


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _require_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        hint = "use up to 64 letters, digits, dots, dashes and underscores"
        raise InputError(f"{what} {name[:80]!r} cannot be used", hint=hint)
