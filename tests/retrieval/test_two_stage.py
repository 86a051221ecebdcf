"""Two stages: the best chunks, then the best nuggets of those chunks only."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coinkv.errors import InputError
from coinkv.retrieval.index import VectorIndex
from coinkv.retrieval.two_stage import retrieve
from vector_rows import Row

QUERY = np.asarray([1, 0, 0, 0], np.float32)


def vector(score: float) -> NDArray[np.float32]:
    """A vector whose product with `QUERY` is exactly the score."""
    return np.asarray([score, 0.25, 0, 0], np.float32)


def made(folder: Path, chunks: list[tuple[float, list[tuple[int, float]]]]) -> VectorIndex:
    """An index of chunks: (score, nuggets: (token start, score)); a nugget has 5 tokens."""
    rows = [
        Row(
            sha256(str(at).encode()).hexdigest(),
            vector(score),
            np.asarray([(0, 1, s, s + 5, 0) for s, _ in nuggets], np.int32).reshape(-1, 5),
            np.asarray([vector(n) for _, n in nuggets], np.float32).reshape(-1, 4),
        )
        for at, (score, nuggets) in enumerate(chunks)
    ]
    VectorIndex.write(folder / "1", rows, "an embedder")
    return VectorIndex.open(folder / "1")


@pytest.fixture
def index(tmp_path: Path) -> VectorIndex:
    return made(
        tmp_path,
        [
            (0.25, [(0, 1.0)]),
            (0.75, [(0, 0.125), (5, 0.5), (10, 0.25)]),
            (0.5, [(7, 0.5), (0, 0.5)]),
            (0.125, []),
        ],
    )


def test_nuggets_come_from_the_retrieved_chunks_only(index: VectorIndex):
    found = retrieve(index, QUERY, k_chunks=2, k_nuggets=1)
    assert [chunk.row for chunk in found.chunks] == [1, 2]
    assert [chunk.score for chunk in found.chunks] == [0.75, 0.5]
    # the best nugget of all lies in chunk 0, which was not retrieved
    assert [(n.chunk, n.start, n.end, n.score) for n in found.nuggets] == [(0, 5, 10, 0.5)]


def test_chunks_carry_the_hash_of_their_row(index: VectorIndex):
    found = retrieve(index, QUERY, k_chunks=4, k_nuggets=1)
    assert [chunk.content_hash for chunk in found.chunks] == [
        sha256(str(chunk.row).encode()).hexdigest() for chunk in found.chunks
    ]


def test_equal_nuggets_go_by_chunk_rank_then_by_start(index: VectorIndex):
    found = retrieve(index, QUERY, k_chunks=2, k_nuggets=3)
    assert [(n.chunk, n.start) for n in found.nuggets] == [(0, 5), (1, 0), (1, 7)]


def test_a_nugget_names_its_chunk_by_rank_not_by_row(index: VectorIndex):
    found = retrieve(index, QUERY, k_chunks=3, k_nuggets=1)
    assert (found.nuggets[0].chunk, found.chunks[2].row) == (2, 0)


def test_more_nuggets_than_the_chunks_hold_gives_those_there_are(index: VectorIndex):
    assert len(retrieve(index, QUERY, k_chunks=2, k_nuggets=100).nuggets) == 5


def test_chunks_without_a_nugget_give_none(tmp_path: Path):
    index = made(tmp_path, [(0.5, []), (0.25, [])])
    found = retrieve(index, QUERY, k_chunks=2, k_nuggets=3)
    assert len(found.chunks) == 2
    assert found.nuggets == ()


@pytest.mark.parametrize(("k_chunks", "k_nuggets"), [(0, 1), (-1, 1), (5, 1), (1, 0), (1, -2)])
def test_k_outside_of_what_there_is_is_refused(index: VectorIndex, k_chunks: int, k_nuggets: int):
    with pytest.raises(InputError):
        retrieve(index, QUERY, k_chunks=k_chunks, k_nuggets=k_nuggets)


_scores = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(_scores, st.lists(_scores, max_size=4)), min_size=1, max_size=6), st.data()
)
def test_two_stages_equal_sorting_by_score_rank_and_start(tmp_path_factory, chunks, data):
    k_chunks = data.draw(st.integers(1, len(chunks)))
    k_nuggets = data.draw(st.integers(1, 8))
    index = made(
        tmp_path_factory.mktemp("law"),
        [(score, [(3 * at, n) for at, n in enumerate(nuggets)]) for score, nuggets in chunks],
    )
    found = retrieve(index, QUERY, k_chunks=k_chunks, k_nuggets=k_nuggets)
    rows = sorted(range(len(chunks)), key=lambda row: (-chunks[row][0], row))[:k_chunks]
    nuggets = sorted(
        (-score, rank, 3 * at)
        for rank, row in enumerate(rows)
        for at, score in enumerate(chunks[row][1])
    )
    assert [chunk.row for chunk in found.chunks] == rows
    assert [(-n.score, n.chunk, n.start) for n in found.nuggets] == nuggets[:k_nuggets]
