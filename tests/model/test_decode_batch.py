"""Answers decoded together are the answers decoded one by one."""

from __future__ import annotations

import pytest
import torch

from coinkv.errors import InputError
from coinkv.model.decode import Sampling, decode
from coinkv.model.decode_batch import decode_batch
from coinkv.model.fill import LiveCache, fill
from tiny_models import SUPPORTED

PROMPTS = [[5, 9, 200, 17], [3], list(range(40, 90)), [7, 7, 7, 7, 7, 7, 7], [300, 2, 8]]


def prefilled(backbone, ids, room=40):
    cache = LiveCache.for_backbone(backbone, len(ids) + room)
    return cache, fill(backbone, cache, ids, torch.arange(len(ids)))


def alone(backbone, ids, sampling, room=40):
    pieces = list(decode(backbone, *prefilled(backbone, ids, room), sampling))
    text = "".join(piece.text for piece in pieces)
    tokens = sum(piece.token_id is not None for piece in pieces)
    return text, tokens, pieces[-1].finish_reason


@pytest.mark.parametrize("name", SUPPORTED)
def test_each_answer_is_the_one_decoded_alone(tiny_backbone, name):
    backbone = tiny_backbone(name)
    sampling = Sampling(max_tokens=12)
    caches, logits = zip(*(prefilled(backbone, ids) for ids in PROMPTS), strict=True)
    before = [cache.keys.clone() for cache in caches]
    together = decode_batch(backbone, caches, logits, sampling)
    expected = [alone(backbone, ids, sampling) for ids in PROMPTS]
    assert [(d.text, d.tokens, d.finish_reason) for d in together] == expected
    assert len({text for text, _, _ in expected}) > 1
    for cache, keys in zip(caches, before, strict=True):
        assert torch.equal(cache.keys[:, :, : cache.length], keys[:, :, : cache.length])


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=0),
        Sampling(max_tokens=1),
        Sampling(max_tokens=30, stop=("e", "a")),
        Sampling(max_tokens=9, temperature=1.5, top_p=0.9, seed=3),
    ],
    ids=["none", "one", "stop", "sampled"],
)
def test_limits_stops_and_seeds_hold_for_each(tiny_backbone, sampling):
    backbone = tiny_backbone()
    caches, logits = zip(*(prefilled(backbone, ids) for ids in PROMPTS), strict=True)
    together = decode_batch(backbone, caches, logits, sampling)
    expected = [alone(backbone, ids, sampling) for ids in PROMPTS]
    assert [(d.text, d.tokens, d.finish_reason) for d in together] == expected


def test_a_cache_that_is_full_ends_its_answer_and_no_other(tiny_backbone):
    backbone = tiny_backbone()
    rooms = [2, 30, 0]
    caches, logits = zip(
        *(prefilled(backbone, ids, room) for ids, room in zip(PROMPTS, rooms, strict=False)),
        strict=True,
    )
    together = decode_batch(backbone, caches, logits, Sampling(max_tokens=20))
    assert [decoded.tokens for decoded in together] == [3, 20, 1]


def test_nothing_to_decode_gives_nothing_and_a_mismatch_is_refused(tiny_backbone):
    backbone = tiny_backbone()
    assert decode_batch(backbone, [], [], Sampling()) == []
    cache, _ = prefilled(backbone, [1, 2])
    with pytest.raises(InputError, match="1 caches do not go with 0 rows"):
        decode_batch(backbone, [cache], [], Sampling())
