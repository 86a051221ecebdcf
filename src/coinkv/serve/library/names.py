"""Names: what clients call indexes and documents, and the folders that stand for them on disk."""

from __future__ import annotations

import hashlib
import re
import secrets
import unicodedata
from collections.abc import Container

from coinkv.errors import InputError

MOST_KEY_BYTES = 512
"""UTF-8 bytes of a document's key."""
INDEX_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Pattern of the names of indexes."""

_DIGEST_DIGITS = 12
_SLUG_CHARACTERS = 40
_UNNAMED = "unnamed"
# Marks that change the order in which a name is shown: with them, one name can look like another.
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_OTHER_INVISIBLE = frozenset("\ufeff\u2028\u2029")


def require_index_name(name: str) -> None:
    """Refuse what cannot be the name of an index.

    Raises:
        InputError: it is empty, too long, or has other characters than these.
    """
    if not re.fullmatch(INDEX_NAME, name):
        raise InputError(
            f"{name[:80]!r} cannot be the name of an index",
            hint="use 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit "
            "first",
        )


def index_name(text: str, taken: Container[str]) -> str:
    """A name of an index made from the name of a folder, other than those taken."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")[:64].rstrip("-") or "index"
    name, number = plain, 1
    while name in taken:
        number += 1
        name = f"{plain[:56]}-{number}"
    return name


def document_key(name: str) -> str:
    """The key of a document that a client calls `name`, be it a path of any system.

    It is normalised (NFC), without controls and marks of direction, and has no leading slash and no
    `.` or `..`, so that it is the same in an address. A longer one than `MOST_KEY_BYTES` is cut in
    the middle, a digest in its place. Never empty.
    """
    # half a surrogate pair cannot be written anywhere
    text = name.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    text = unicodedata.normalize("NFC", "".join(filter(_is_visible, text))).replace("\\", "/")
    parts = (" ".join(part.split()) for part in text.split("/"))
    key = "/".join(part for part in parts if part not in ("", ".", "..")) or _UNNAMED
    raw = key.encode()
    if len(raw) <= MOST_KEY_BYTES:
        return key
    digest = f"~{hashlib.sha256(raw).hexdigest()[:_DIGEST_DIGITS]}~"
    half = (MOST_KEY_BYTES - len(digest)) // 2
    head, tail = raw[:half].decode(errors="ignore"), raw[-half:].decode(errors="ignore")
    return head + digest + tail


def unique_key(name: str, taken: Container[str]) -> str:
    """`document_key`, with a number behind it when the key is taken."""
    key, number = document_key(name), 1
    while key in taken:
        number += 1
        key = f"{document_key(name)}#{number}"
    return key


def require_document_key(identifier: str) -> str:
    """An identifier that a client chose itself, normalised (NFC): it is kept as it is or refused.

    Raises:
        InputError: it has characters or parts that a key cannot have, or is too long.
    """
    key = unicodedata.normalize("NFC", identifier)
    if key != document_key(identifier):
        raise InputError(
            f"{identifier[:80]!r} cannot be the id of a document",
            hint=f"use 1 to {MOST_KEY_BYTES} bytes without control characters, backslashes, "
            "repeated white space, a leading slash, or '..' between slashes",
        )
    return key


def folder_of_namespace(namespace: str) -> str:
    """The folder of a namespace, safe on any file system whatever the namespace is called."""
    digest = hashlib.sha256(namespace.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{_slug(namespace)}-{digest[:20]}"


def new_folder_of_index(name: str) -> str:
    """A folder for a new index; another one each time, so that a dropped one may still be there."""
    return f"{_slug(name)}-{secrets.token_hex(8)}"


def _slug(text: str) -> str:
    """What a person who looks into the data folder recognises; lower case, and no device's name."""
    return re.sub(r"[^a-z0-9_]+", "-", text.lower())[:_SLUG_CHARACTERS].strip("-") or "x"


def _is_visible(character: str) -> bool:
    # white space becomes one space later; zero-width joiners stay: words and emoji need them
    return character.isspace() or not (
        unicodedata.category(character) == "Cc"
        or character in _DIRECTIONS
        or character in _OTHER_INVISIBLE
    )
