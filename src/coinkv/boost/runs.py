"""A run: consecutive tokens of one live pass whose KV is kept, and what must be known of it."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass

import numpy as np

from coinkv.boost.keys import Ids

_NOTE_VERSION = 1
_PLAIN = ("start", "before", "after", "parent", "parent_tokens", "exact", "owner")


@dataclass(frozen=True, eq=False)
class Run:
    """Tokens whose KV was cut from a live pass, with its true left context.

    Attributes:
        key: of its KV block in the store.
        ids: int32 `[tokens]`.
        start: the position its first token was encoded at.
        before: digest of everything it was encoded behind. Where all of that was exact it is the
            prefix hash of those tokens; where some of it was reused from elsewhere it is a digest
            that no prompt has, so that the run can never be taken for an exact one.
        after: the same, its own tokens included.
        parent: key of the run that it continues, None where it continues none.
        parent_tokens: behind how many of the parent's tokens it continues.
        exact: everything it was encoded behind was exact.
        chunks: rows where a whole chunk begins, each with the chunk's content hash.
        owner: whose it is: a digest of model, codec and namespace.
    """

    key: str
    ids: Ids
    start: int
    before: str
    after: str
    parent: str | None
    parent_tokens: int
    exact: bool
    chunks: tuple[tuple[int, str], ...]
    owner: str

    def __len__(self) -> int:
        return len(self.ids)

    def to_note(self) -> bytes:
        """All of it but the key, as the store keeps it beside the block."""
        facts = {name: getattr(self, name) for name in _PLAIN}
        ids = b64encode(self.ids.astype("<i4").tobytes()).decode()
        note = {"version": _NOTE_VERSION, "ids": ids, "chunks": self.chunks, **facts}
        return json.dumps(note, separators=(",", ":")).encode()

    @classmethod
    def from_note(cls, key: str, note: bytes) -> Run | None:
        """A run read back; None where the note is of another version or damaged."""
        try:
            facts = json.loads(note)
            if facts["version"] != _NOTE_VERSION:
                return None
            ids = np.frombuffer(b64decode(facts["ids"], validate=True), "<i4").astype(np.int32)
            chunks = tuple((int(row), str(content)) for row, content in facts["chunks"])
            return cls(key, ids, chunks=chunks, **{name: facts[name] for name in _PLAIN})
        except (ValueError, TypeError, KeyError):
            return None
