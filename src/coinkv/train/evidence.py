"""Evidence of a training row: what its question retrieves among its own passages, with noise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from coinkv.evaluate.dataset import EvalRow
from coinkv.retrieval.index import VectorIndex
from coinkv.retrieval.two_stage import Retrieval, retrieve
from coinkv.train.passages import LabelledChunk, Passages

Noise = Literal["none", "left_out", "replaced"]
"""What becomes of the gold evidence of a row."""


def noise_of(row_key: str, epoch: int, seed: int, probability: float) -> Noise:
    """Whether a row's gold evidence is withheld in an epoch, and how.

    RAFT (arXiv 2403.10131), as paper arXiv 2608.07458, appendix G, Table 5 takes it: with that
    probability the gold evidence is left out or replaced by distractors, half and half. The same on
    every machine, whatever other rows there are.

    Args:
        row_key: names the row.
        epoch: from 0.
        seed: of the run.
        probability: 0 to 1.
    """
    draw = random.Random(f"raft {seed} {epoch} {row_key}")
    if draw.random() >= probability:
        return "none"
    return draw.choice(("left_out", "replaced"))


def retrieved(
    passages: Passages, row: EvalRow, noise: Noise, *, k_chunks: int, k_nuggets: int
) -> Retrieval:
    """The two-stage retrieval of a question among the chunks of its own row.

    Paper arXiv 2608.07458, section 2.5: "from these documents", the gold ones and distractors. With
    noise `replaced` the gold chunks are not there to be found, so distractors take their places;
    with `left_out` they are taken out of the chunks found, of which the best distractor always
    stays, and nuggets are retrieved among those that are left. A row without labels or distractors
    stays as it is, since nothing would be left to read.

    Args:
        passages: the cache.
        row: the row.
        noise: what becomes of its gold evidence.
        k_chunks: most chunks.
        k_nuggets: most nuggets among those.
    """
    chunks = passages.chunks_of(row)
    distractors = [chunk for chunk in chunks if not chunk.is_supporting]
    if noise == "none" or not distractors or len(distractors) == len(chunks):
        return _among(passages, row, chunks, k_chunks, k_nuggets)
    if noise == "replaced":
        return _among(passages, row, distractors, k_chunks, k_nuggets)
    gold = {chunk.content.content_hash for chunk in chunks if chunk.is_supporting}
    found = _among(passages, row, chunks, k_chunks, k_nuggets)
    left = sum(chunk.content_hash not in gold for chunk in found.chunks)
    return _among(passages, row, distractors, max(1, left), k_nuggets)


def _among(
    passages: Passages,
    row: EvalRow,
    chunks: Sequence[LabelledChunk],
    k_chunks: int,
    k_nuggets: int,
) -> Retrieval:
    embedder = passages.plan.embedder
    index = VectorIndex.of((chunk.content for chunk in chunks), embedder.identity)
    vector = embedder.embed([row.question])[0]
    return retrieve(index, vector, k_chunks=min(k_chunks, len(chunks)), k_nuggets=k_nuggets)
