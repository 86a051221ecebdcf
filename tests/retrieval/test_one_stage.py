"""One stage: the best nuggets of the whole index, and the chunks they lie in."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coinkv.errors import InputError
from coinkv.retrieval.index import VectorIndex
from coinkv.retrieval.two_stage import Retrieval, retrieve, retrieve_nuggets
from vector_rows import Row

QUERY = np.asarray([1, 0], np.float32)


def made(folder: Path, chunks: list[list[float]]) -> VectorIndex:
    """An index of chunks, given as the scores of their nuggets; a nugget has 5 tokens."""
    rows = [
        Row(
            sha256(str(at).encode()).hexdigest(),
            np.asarray([0.5, 0], np.float32),
            np.asarray(
                [(7 * n, 7 * n + 3, 5 * n, 5 * n + 5, 0) for n in range(len(scores))], np.int32
            ).reshape(-1, 5),
            np.asarray([(score, 0.25) for score in scores], np.float32).reshape(-1, 2),
        )
        for at, scores in enumerate(chunks)
    ]
    VectorIndex.write(folder / "1", rows, "an embedder")
    return VectorIndex.open(folder / "1")


def places(found: Retrieval) -> list[tuple[float, int, int]]:
    """Score, row of the chunk and first token of each nugget."""
    return [(n.score, found.chunks[n.chunk].row, n.start) for n in found.nuggets]


def test_the_best_nugget_is_found_in_a_chunk_that_two_stages_would_not_look_at(tmp_path: Path):
    index = made(tmp_path, [[0.25, 0.5], [1.0]])
    assert places(retrieve_nuggets(index, QUERY, k_nuggets=1)) == [(1.0, 1, 0)]
    assert places(retrieve(index, QUERY, k_chunks=1, k_nuggets=1)) == [(0.5, 0, 5)]


def test_a_nugget_carries_its_tokens_and_its_characters(tmp_path: Path):
    index = made(tmp_path, [[], [0.25, 0.5]])
    (nugget,) = retrieve_nuggets(index, QUERY, k_nuggets=1).nuggets
    assert (nugget.start, nugget.end, nugget.text_start, nugget.text_end) == (5, 10, 7, 10)


def test_an_index_without_nuggets_gives_nothing(tmp_path: Path):
    assert retrieve_nuggets(made(tmp_path, [[], []]), QUERY, k_nuggets=3) == Retrieval((), ())


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_refused(tmp_path: Path, k: int):
    with pytest.raises(InputError, match="k_nuggets"):
        retrieve_nuggets(made(tmp_path, [[0.5]]), QUERY, k_nuggets=k)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([-0.5, 0.0, 0.25, 1.0]), max_size=4), min_size=1, max_size=6),
    st.integers(1, 9),
)
def test_one_stage_is_sorting_all_nuggets_by_score_then_by_row_then_by_place(
    tmp_path_factory, chunks, k
):
    index = made(tmp_path_factory.mktemp("law"), chunks)
    found = retrieve_nuggets(index, QUERY, k_nuggets=k)
    every = [(-s, row, 5 * n) for row, scores in enumerate(chunks) for n, s in enumerate(scores)]
    best = [(-minus, row, start) for minus, row, start in sorted(every)[:k]]
    assert places(found) == best
    rows = list(dict.fromkeys(row for _, row, _ in best))
    assert [chunk.row for chunk in found.chunks] == rows
    assert [chunk.content_hash for chunk in found.chunks] == [
        sha256(str(row).encode()).hexdigest() for row in rows
    ]
    assert [chunk.score for chunk in found.chunks] == [
        max(score for score, of, _ in best if of == row) for row in rows
    ]
