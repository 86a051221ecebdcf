"""Spans: whatever was retrieved, every token of a nugget stands in the context exactly once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinkv.methods.spans import disjoint, runs, without
from coinkv.retrieval.two_stage import Retrieval, RetrievedChunk, RetrievedNugget

ORDERS = ("retrieval", "rank", "document")
SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 15)), max_size=12).map(
    lambda found: [(start, start + length) for start, length in found]
)


@st.composite
def evidence(draw):
    """Four chunks whose rank says nothing of their row, and nuggets of them, best first."""
    rows = draw(st.permutations(range(4)))
    chunks = tuple(RetrievedChunk(row, f"{row:064x}", 1.0) for row in rows)
    found = draw(SPANS)
    ranks = draw(st.lists(st.integers(0, 3), min_size=len(found), max_size=len(found)))
    nuggets = (RetrievedNugget(c, *span, 1.0, 0, 1) for c, span in zip(ranks, found, strict=True))
    return Retrieval(chunks, tuple(nuggets))


def tokens_of(spans):
    return [token for start, end in spans for token in range(start, end)]


def placed(found):
    """(chunk's rank, token) in the order of the context."""
    return [(run.chunk, token) for run in found for token in tokens_of(run.spans)]


def wanted(retrieved):
    """(chunk's rank, token) of the nuggets as they come, each where it comes first."""
    return list(
        dict.fromkeys(
            (n.chunk, token) for n in retrieved.nuggets for token in range(n.start, n.end)
        )
    )


@pytest.mark.parametrize("join_touching", [True, False])
@pytest.mark.parametrize("order", ORDERS)
@given(retrieved=evidence())
def test_runs_hold_every_token_of_the_nuggets_once_and_no_other(retrieved, order, join_touching):
    found = runs(retrieved, order, join_touching=join_touching)
    tokens = placed(found)
    assert len(tokens) == len(set(tokens))
    assert set(tokens) == set(wanted(retrieved))
    assert all(start < end for run in found for start, end in run.spans)


@given(evidence())
def test_retrieval_order_is_chunks_by_rank_and_their_tokens_as_in_the_document(retrieved):
    assert placed(runs(retrieved, "retrieval")) == sorted(wanted(retrieved))


@given(evidence())
def test_document_order_is_chunks_by_row_and_their_tokens_as_in_the_document(retrieved):
    def place(at):
        return retrieved.chunks[at[0]].row, at[1]

    assert placed(runs(retrieved, "document")) == sorted(wanted(retrieved), key=place)


@given(evidence())
def test_rank_order_is_nuggets_by_score_the_better_one_keeping_what_two_share(retrieved):
    assert placed(runs(retrieved, "rank")) == wanted(retrieved)


@given(evidence())
def test_a_chunk_has_one_run_in_retrieval_and_document_order(retrieved):
    for order in ("retrieval", "document"):
        chunks = [run.chunk for run in runs(retrieved, order)]
        assert len(chunks) == len(set(chunks))


@given(SPANS)
def test_joined_spans_neither_touch_nor_overlap(spans):
    assert all(before[1] < after[0] for before, after in pairwise(disjoint(spans)))


@given(SPANS)
def test_spans_that_are_not_joined_are_cut_exactly_where_no_span_goes_on(spans):
    found = disjoint(spans, join_touching=False)
    covered = set(tokens_of(spans))
    starts = {token for token in covered if not any(start < token < end for start, end in spans)}
    assert [start for start, _ in found] == sorted(starts)
    assert tokens_of(found) == sorted(covered)


@given(st.tuples(st.integers(0, 40), st.integers(1, 20)), SPANS)
def test_what_is_left_of_a_span_is_what_no_other_took(start_and_length, taken):
    start, length = start_and_length
    left = without((start, start + length), disjoint(taken))
    assert tokens_of(left) == sorted(set(range(start, start + length)) - set(tokens_of(taken)))
    assert all(before[1] < after[0] for before, after in pairwise(left))
    assert all(first < end for first, end in left)
