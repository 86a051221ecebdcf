"""Vectors of one generation of an index: memory-mapped files, derived from the catalogue."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from coinkv.errors import IndexMismatchError, IndexNotFoundError, StorageError
from coinkv.store.atomic import sync

FLAT_LIMIT = 1_000_000
"""Up to so many chunks the search is exact; above, an HNSW graph is used."""
_ARRAYS = ("chunk_hashes", "chunk_vectors", "nugget_offsets", "nugget_spans", "nugget_vectors")
_GRAPH = "graph.faiss"
_GRAPH_LINKS, _GRAPH_EFFORT = 32, 200


class VectorRow(Protocol):
    """What a chunk contributes; the catalogue's contents are such rows."""

    @property
    def content_hash(self) -> str:
        """64 hex digits."""

    @property
    def chunk_vector(self) -> NDArray[np.float32]:
        """float32 `[dim]`."""

    @property
    def nuggets(self) -> NDArray[np.int32]:
        """int32 `[n, 5]`: character start and end, token start and end, and one more."""

    @property
    def nugget_vectors(self) -> NDArray[np.float32]:
        """float32 `[n, dim]`."""


class VectorIndex:
    """Chunk vectors, and nugget vectors stored together by chunk. Read-only, safe to share.

    Open with `VectorIndex.open`.
    """

    def __init__(self, folder: Path, meta: dict[str, Any], arrays: dict[str, Any]) -> None:
        self._folder, self._meta, self._graph = folder, meta, None
        self._hashes, self._vectors, self._offsets, self._spans, self._nugget_vectors = (
            arrays[name] for name in _ARRAYS
        )
        if meta["graph"]:
            import faiss

            self._graph = faiss.read_index(str(folder / _GRAPH))

    @classmethod
    def write(
        cls,
        folder: Path,
        rows: Iterable[VectorRow],
        embedder_identity: str,
        *,
        flat_limit: int = FLAT_LIMIT,
    ) -> None:
        """Write a generation: whole or not at all.

        Args:
            folder: made, or replaced when an interrupted build left one.
            rows: one a chunk.
            embedder_identity: of what made the vectors.
            flat_limit: above so many chunks an HNSW graph is made.

        Raises:
            StorageError: the disk is full or refuses.
        """
        part = folder.with_name(f"{folder.name}.{os.getpid()}-{uuid.uuid4().hex}.part")
        try:
            part.mkdir(parents=True)
            arrays = _collected(rows)
            meta = _meta(arrays, embedder_identity, flat_limit)
            for name, array in arrays.items():
                np.save(part / f"{name}.npy", array)
            if meta["graph"]:
                _write_graph(part / _GRAPH, arrays["chunk_vectors"])
            for file in sorted(part.iterdir()):
                meta["checksums"][file.name] = _file_checksum(file)
            (part / "meta.json").write_text(json.dumps(meta))
            for file in part.iterdir():
                sync(file)
            if folder.exists():
                shutil.rmtree(folder)
            part.rename(folder)
            sync(folder.parent)
        except OSError as error:
            raise StorageError(
                f"the vectors cannot be written ({error.strerror or error})",
                where=folder,
                hint="free space on that disk, check permissions, then run the command again",
            ) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)

    @classmethod
    def of(cls, rows: Iterable[VectorRow], embedder_identity: str) -> VectorIndex:
        """An index of few rows, searched exactly and kept in memory only.

        Args:
            rows: one a chunk.
            embedder_identity: of what made the vectors.
        """
        arrays = _collected(rows)
        return cls(Path(), _meta(arrays, embedder_identity, len(arrays["chunk_hashes"])), arrays)

    @classmethod
    def open(cls, folder: Path) -> VectorIndex:
        """Map the files of a generation.

        Raises:
            IndexNotFoundError: files are missing or damaged.
        """
        try:
            meta = json.loads((folder / "meta.json").read_text())
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
            chunks, nuggets = meta["chunks"], meta["nuggets"]
            counts = [chunks, chunks, chunks + 1, nuggets, nuggets]
            if [len(arrays[name]) for name in _ARRAYS] != counts:
                raise ValueError("the files do not belong together")
            return cls(folder, meta, arrays)
        except (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError) as error:
            raise IndexNotFoundError(
                f"the vectors of the index are missing or damaged ({error})",
                where=folder,
                hint="run the build again: it makes them anew from the catalogue",
            ) from error

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return int(self._meta["chunks"])

    @property
    def nuggets(self) -> int:
        """How many nuggets there are."""
        return int(self._meta["nuggets"])

    def require_embedder(self, identity: str) -> None:
        """Refuse to compare vectors of two embedders.

        Raises:
            IndexMismatchError: another embedder made these vectors.
        """
        if self._meta["embedder"] != identity:
            raise IndexMismatchError(
                f"the vectors were made by {self._meta['embedder']}, not by {identity}",
                where=self._folder,
                hint="run the build again with this embedder",
            )

    def verify(self) -> None:
        """Read every file and check it.

        Raises:
            IndexNotFoundError: a file's checksum fails.
        """
        for name, expected in self._meta["checksums"].items():
            if _file_checksum(self._folder / name) != expected:
                raise IndexNotFoundError(
                    "this file of the index is damaged",
                    where=self._folder / name,
                    hint="run the build again: it makes it anew from the catalogue",
                )

    def content_hash(self, row: int) -> str:
        """The content hash of a chunk."""
        return bytes(self._hashes[row]).hex()

    def nuggets_of(self, row: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """A chunk's nuggets: int32 `[n, 4]`, float32 vectors `[n, dim]`.

        The four are character start and end in the chunk's text, token start and end.
        """
        start, end = int(self._offsets[row]), int(self._offsets[row + 1])
        return self._spans[start:end], self._nugget_vectors[start:end]

    def search(
        self, query: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The k chunks with the largest inner product, best first; ties go to the smaller row."""
        if self._graph is not None:
            return self._search_graph(query, k)
        scores = self._vectors @ query
        if k < len(scores):
            kth = np.partition(scores, -k)[-k]
            rows = np.flatnonzero(scores >= kth)
        else:
            rows = np.arange(len(scores))
        best = rows[np.lexsort((rows, -scores[rows]))][:k]
        return best.astype(np.int64), scores[best]

    def search_nuggets(self, query: NDArray[np.float32], k: int) -> list[tuple[int, int, float]]:
        """The k nuggets of all chunks with the largest inner product, best first.

        Returns:
            chunk row, number of the nugget in the chunk and inner product; ties go to the smaller.
        """
        scores = self._nugget_vectors @ query
        order = np.lexsort((np.arange(len(scores)), -scores))[:k]
        rows = np.searchsorted(self._offsets, order, side="right") - 1
        return [
            (int(row), int(at - self._offsets[row]), float(scores[at]))
            for row, at in zip(rows, order, strict=True)
        ]

    def _search_graph(
        self, query: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        import faiss

        # the class is made at run time, its stub does not know it
        effort = faiss.SearchParametersHNSW(  # type: ignore[attr-defined]
            efSearch=max(_GRAPH_EFFORT, 2 * k)
        )
        graph: Any = self._graph
        scores, rows = graph.search(query[None], k, params=effort)
        found = rows[0] >= 0  # a graph may reach fewer than it was asked for
        return rows[0][found], scores[0][found]


def _collected(rows: Iterable[VectorRow]) -> dict[str, NDArray[Any]]:
    hashes: list[bytes] = []
    vectors, spans, nugget_vectors = [], [], []
    offsets = [0]
    for row in rows:
        hashes.append(bytes.fromhex(row.content_hash))
        vectors.append(row.chunk_vector)
        spans.append(row.nuggets[:, :4])
        nugget_vectors.append(row.nugget_vectors)
        offsets.append(offsets[-1] + len(row.nuggets))
    dimension = len(vectors[0]) if vectors else 0
    return {
        "chunk_hashes": np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32),
        "chunk_vectors": _stacked(vectors, (len(vectors), dimension), np.float32),
        "nugget_offsets": np.asarray(offsets, np.int64),
        "nugget_spans": _stacked(spans, (offsets[-1], 4), np.int32),
        "nugget_vectors": _stacked(nugget_vectors, (offsets[-1], dimension), np.float32),
    }


def _meta(arrays: dict[str, NDArray[Any]], embedder: str, flat_limit: int) -> dict[str, Any]:
    """What `meta.json` says of these arrays, but for the checksums of files."""
    chunks = len(arrays["chunk_hashes"])
    return {
        "embedder": embedder,
        "chunks": chunks,
        "nuggets": len(arrays["nugget_spans"]),
        "graph": chunks > flat_limit,
        "checksums": {},
    }


def _stacked(parts: Sequence[NDArray[Any]], shape: tuple[int, int], dtype: Any) -> NDArray[Any]:
    joined = np.concatenate([part.reshape(-1) for part in parts]) if parts else np.empty(0)
    return np.ascontiguousarray(joined.reshape(shape), dtype=dtype)


def _write_graph(path: Path, vectors: NDArray[np.float32]) -> None:
    import faiss

    graph = faiss.IndexHNSWFlat(vectors.shape[1], _GRAPH_LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = _GRAPH_EFFORT
    graph.add(vectors)
    faiss.write_index(graph, str(path))


def _file_checksum(path: Path) -> str:
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()
