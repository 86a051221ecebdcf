"""Embedders that take their turn with the model, so that no two ever compute at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coinkv.model.turns import Turns
from coinkv.retrieval.embed import Embedder, load_embedder

_TEXTS = 8
"""Embedded in one turn: about as long as a chunk of a prompt takes."""
_TOKENS_OF_ONE = 32
"""A turn's cost of one short text, in tokens of the model."""


class PacedEmbedder(Embedder):
    """Embeds a few texts a turn.

    Args:
        embedder: computes the vectors.
        turns: who may compute.
    """

    def __init__(self, embedder: Embedder, turns: Turns) -> None:
        self._embedder, self._turns = embedder, turns
        self.identity, self.dimension = embedder.identity, embedder.dimension

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of texts, float32 `[n, dimension]`."""
        vectors = [np.empty((0, self.dimension), np.float32)]
        for at in range(0, len(texts), _TEXTS):
            some = texts[at : at + _TEXTS]
            with self._turns.turn(_TOKENS_OF_ONE * len(some)):
                vectors.append(self._embedder.embed(some))
        return np.concatenate(vectors)


class PacedEmbedders:
    """Embedders by name, each loaded once.

    Args:
        turns: who may compute.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._loaded: dict[str, PacedEmbedder] = {}
        self._lock = threading.Lock()

    def named(self, name: str) -> PacedEmbedder:
        """The embedder of this name.

        Raises:
            ModelNotFoundError: there is none.
        """
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = PacedEmbedder(load_embedder(name), self._turns)
            return self._loaded[name]
