"""The two keys of reuse: a hash of everything before a place, and a hash of a passage alone."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]


def salted(fingerprint: str, codec: str, namespace: str) -> bytes:
    """What every hash begins with: the model, the codec, and whose text it is.

    KV of another model or namespace is never found, nor KV that another codec has rounded: to an
    engine that keeps KV raw it would not be exact.
    """
    return hashlib.sha256(json.dumps([fingerprint, codec, namespace]).encode()).digest()


def content_hash(ids: Ids, salt: bytes) -> str:
    """Hex digest of a passage's tokens, wherever they stand."""
    return hashlib.sha256(salt + b"content" + _bytes(ids)).hexdigest()


class PrefixHashes:
    """Hex digests of everything before a place of a prompt, for any place.

    Equal digests mean equal tokens from the prompt's beginning on, so KV found by one is exact.

    Args:
        ids: int32 `[tokens]` of the prompt.
        salt: see `salted`.
    """

    def __init__(self, ids: Ids, salt: bytes) -> None:
        self._ids = ids
        self._places = [0]
        self._states = [hashlib.sha256(salt + b"prefix")]

    def before(self, place: int) -> str:
        """Digest of the tokens `[0, place)`."""
        at = bisect_right(self._places, place)
        known, state = self._places[at - 1], self._states[at - 1]
        if known < place:
            state = state.copy()
            state.update(_bytes(self._ids[known:place]))
            self._places.insert(at, place)
            self._states.insert(at, state)
        return state.hexdigest()


def _bytes(ids: Ids) -> bytes:
    return ids.astype("<i4", copy=False).tobytes()
