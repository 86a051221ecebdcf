"""The vectors of a generation are found again as written, searched exactly, and checked."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coinkv.errors import CoinKVError, IndexMismatchError, IndexNotFoundError, StorageError
from coinkv.retrieval.index import VectorIndex
from vector_rows import Row


def unit(rng: np.random.Generator, count: int, dimension: int) -> NDArray[np.float32]:
    vectors = rng.standard_normal((count, dimension), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def rows_of(counts: list[int], dimension: int = 16, seed: int = 0) -> list[Row]:
    """A row with so many nuggets for each count."""
    rng = np.random.default_rng(seed)
    rows = []
    for at, count in enumerate(counts):
        spans = np.asarray([(9, 9, 3 * n, 3 * n + 2, 0) for n in range(count)], np.int32)
        rows.append(
            Row(
                sha256(str(at).encode()).hexdigest(),
                unit(rng, 1, dimension)[0],
                spans.reshape(-1, 5),
                unit(rng, count, dimension),
            )
        )
    return rows


def write(folder: Path, rows: list[Row], **options: int) -> VectorIndex:
    VectorIndex.write(folder, iter(rows), "an embedder", **options)
    return VectorIndex.open(folder)


@pytest.mark.parametrize("counts", [[2, 0, 3], [0, 0], [1], [0, 5]])
def test_every_chunk_has_its_own_hash_and_nuggets_back(tmp_path: Path, counts: list[int]):
    rows = rows_of(counts)
    index = write(tmp_path / "1", rows)
    assert (index.chunks, index.nuggets) == (len(counts), sum(counts))
    for at, row in enumerate(rows):
        spans, vectors = index.nuggets_of(at)
        assert index.content_hash(at) == row.content_hash
        assert spans.tolist() == row.nuggets[:, :4].tolist()
        assert vectors.tobytes() == row.nugget_vectors.tobytes()
        assert (spans.dtype, vectors.dtype) == (np.int32, np.float32)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.data())
def test_search_gives_what_sorting_all_chunks_gives(tmp_path_factory, chunks: int, data):
    k = data.draw(st.integers(1, chunks))
    rows = rows_of([0] * chunks, seed=chunks)
    query = unit(np.random.default_rng(99), 1, 16)[0]
    index = write(tmp_path_factory.mktemp("law") / "1", rows)
    found, scores = index.search(query, k)
    products = np.stack([row.chunk_vector for row in rows]).astype(np.float64) @ query
    assert found.tolist() == np.argsort(-products, kind="stable")[:k].tolist()
    assert np.allclose(scores, products[found], atol=1e-6)
    assert (found.dtype, scores.dtype) == (np.int64, np.float32)


@pytest.mark.parametrize("k", [1, 3, 7, 12])
def test_equal_scores_go_to_the_smaller_row(tmp_path: Path, k: int):
    axes = np.eye(16, dtype=np.float32)
    pattern = [0, 1, 0, 2, 1, 0, 0, 1, 2, 0, 1, 0]  # products are exact: 1, 0.5, 0
    rows = [
        Row(row.content_hash, axes[which], row.nuggets, row.nugget_vectors)
        for row, which in zip(rows_of([0] * len(pattern)), pattern, strict=True)
    ]
    query = axes[0] + axes[1] / 2
    found, _ = write(tmp_path / "1", rows).search(query, k)
    expected = sorted(range(len(pattern)), key=lambda row: (pattern[row], row))
    assert found.tolist() == expected[:k]


def test_a_graph_finds_nearly_all_that_the_exact_search_finds(tmp_path: Path):
    rows = rows_of([0] * 2000, dimension=64)
    exact = write(tmp_path / "flat", rows)
    graph = write(tmp_path / "graph", rows, flat_limit=1999)
    assert (tmp_path / "graph" / "graph.faiss").is_file()
    assert not (tmp_path / "flat" / "graph.faiss").exists()
    hits = 0
    for query in unit(np.random.default_rng(7), 40, 64):
        best, scores = exact.search(query, 10)
        found, found_scores = graph.search(query, 10)
        hits += len(set(best) & set(found))
        assert (np.diff(found_scores) <= 0).all()
        same = {int(row): score for row, score in zip(best, scores, strict=True)}
        for row, score in zip(found, found_scores, strict=True):
            assert score == pytest.approx(same.get(int(row), score), abs=1e-6)
    assert hits / 400 >= 0.95
    graph.verify()


def test_up_to_the_limit_the_search_is_exact(tmp_path: Path):
    write(tmp_path / "1", rows_of([1] * 20), flat_limit=20)
    assert not (tmp_path / "1" / "graph.faiss").exists()


def test_an_index_of_another_embedder_is_refused(tmp_path: Path):
    index = write(tmp_path / "1", rows_of([1]))
    index.require_embedder("an embedder")
    with pytest.raises(IndexMismatchError, match="another one"):
        index.require_embedder("another one")


def test_writing_again_replaces_what_an_interrupted_build_left(tmp_path: Path):
    write(tmp_path / "1", rows_of([1, 1]))
    index = write(tmp_path / "1", rows_of([2, 2, 2]))
    assert (index.chunks, index.nuggets) == (3, 6)
    assert [entry.name for entry in tmp_path.iterdir()] == ["1"]


def test_a_build_that_fails_on_the_way_leaves_the_old_files_and_nothing_else(tmp_path: Path):
    write(tmp_path / "1", rows_of([1, 1]))

    def failing():
        yield rows_of([1])[0]
        raise StorageError("the catalogue went away")

    with pytest.raises(StorageError, match="went away"):
        VectorIndex.write(tmp_path / "1", failing(), "an embedder")
    assert [entry.name for entry in tmp_path.iterdir()] == ["1"]
    assert VectorIndex.open(tmp_path / "1").chunks == 2


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be written"):
        VectorIndex.write(tmp_path / "file" / "1", rows_of([1]), "an embedder")


def test_an_open_index_is_read_after_its_folder_is_gone(tmp_path: Path):
    rows = rows_of([1, 2])
    index = write(tmp_path / "1", rows)
    (tmp_path / "1").rename(tmp_path / "gone")
    for file in (tmp_path / "gone").iterdir():
        file.unlink()
    assert index.search(rows[1].chunk_vector, 1)[0].tolist() == [1]
    assert len(index.nuggets_of(1)[0]) == 2


def test_a_folder_that_is_not_there_holds_no_index(tmp_path: Path):
    with pytest.raises(IndexNotFoundError) as raised:
        VectorIndex.open(tmp_path / "1")
    assert "\n" not in str(raised.value)


FILES = ["chunk_hashes", "chunk_vectors", "nugget_offsets", "nugget_spans", "nugget_vectors"]


@pytest.mark.parametrize("name", [*(f"{name}.npy" for name in FILES), "meta.json"])
@pytest.mark.parametrize("harm", ["missing", "empty", "cut", "other"])
def test_a_file_missing_or_cut_is_noticed_at_opening(tmp_path: Path, name: str, harm: str):
    write(tmp_path / "1", rows_of([2, 3, 1]))
    file = tmp_path / "1" / name
    whole = file.read_bytes()
    file.unlink()
    if harm != "missing":
        file.write_bytes({"empty": b"", "cut": whole[:-7], "other": b"{}" * 40}[harm])
    with pytest.raises((IndexNotFoundError, IndexMismatchError)) as raised:
        VectorIndex.open(tmp_path / "1")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_is_found_by_verifying(tmp_path: Path, name: str):
    index = write(tmp_path / "1", rows_of([2, 3, 1]))
    index.verify()
    file = tmp_path / "1" / f"{name}.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CoinKVError, match=name):
        index.verify()


def test_files_of_two_generations_do_not_open_together(tmp_path: Path):
    write(tmp_path / "1", rows_of([1, 1, 1]))
    write(tmp_path / "2", rows_of([1, 1]))
    meta = json.loads((tmp_path / "1" / "meta.json").read_text())
    (tmp_path / "2" / "meta.json").write_text(json.dumps(meta))
    with pytest.raises((IndexNotFoundError, IndexMismatchError)):
        VectorIndex.open(tmp_path / "2")
