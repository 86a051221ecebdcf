"""Contexts composed by hand-picked evidence, and the models' own logits to compare them with."""

from __future__ import annotations

import torch

from coinkv.model.clock import StageClock
from coinkv.retrieval.two_stage import Retrieval, RetrievedChunk, RetrievedNugget

ROOM = 64


def hashes(index, count):
    """Hashes of chunks that no other chunk resembles, in an order of their own."""
    return [index.vectors.content_hash(row) for row in range(count)][::-1]


def retrieval(content_hashes, nuggets=()):
    """What was retrieved: chunks, and nuggets given as (chunk's rank, first token, end)."""
    chunks = tuple(RetrievedChunk(row, name, 1.0) for row, name in enumerate(content_hashes))
    return Retrieval(chunks, tuple(RetrievedNugget(*n, 1.0, 0, 1) for n in nuggets))


def compose(method, index, evidence, room=ROOM):
    clock = StageClock(index.backbone.synchronize)
    return method.compose(index.bench, evidence, room, clock)


def token_ids(index, content_hash):
    return index.catalogue.content(content_hash).token_ids.tolist()


def own_logits(index, ids, last):
    """What transformers computes by itself."""
    with torch.no_grad():
        return index.backbone.model(torch.tensor([ids])).logits[0, -last:].float()


def difference(measured, reference):
    return float((measured - reference).abs().max() / reference.abs().max())
