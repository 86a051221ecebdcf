"""Prompts made of pieces of random tokens, and what transformers by itself makes of them."""

from __future__ import annotations

import zlib

import torch

from coinkv.kv.block import KVBlock
from tiny_models import VOCABULARY

QUESTION = 9


def piece(name, tokens=90):
    """The same tokens for the same name; pieces of other names share no run of them."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randint(2, VOCABULARY, (tokens,), generator=generator).tolist()


def prompt(*names, tokens=90, question="?"):
    """Pieces one behind the other, then a short question."""
    return [
        *(token for name in names for token in piece(name, tokens)),
        *piece(question, QUESTION),
    ]


def own_logits(backbone, ids):
    """`[tokens, vocabulary]` float32: what transformers computes by itself."""
    with torch.no_grad():
        return backbone.model(torch.tensor([list(ids)])).logits[0].float()


def own_block(backbone, ids):
    """KV of a plain prefill."""
    with torch.no_grad():
        output = backbone.model(torch.tensor([list(ids)]), use_cache=True)
    layers = output[backbone.cache_argument].layers
    keys = torch.stack([layer.keys[0] for layer in layers])
    values = torch.stack([layer.values[0] for layer in layers])
    return KVBlock(keys, values, torch.arange(len(ids)))


def own_answer(backbone, ids, tokens):
    """What transformers' own greedy search makes of a prompt, without the end token."""
    with torch.no_grad():
        out = backbone.model.generate(
            torch.tensor([list(ids)]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=1,
        )
    made = out[0, len(ids) :].tolist()
    return made[:-1] if made and made[-1] in backbone.end_token_ids else made


def gap(measured, reference):
    """Largest difference, relative to the largest number."""
    return float((measured - reference).abs().max()) / max(1.0, float(reference.abs().max()))


def kv_gap(measured, reference):
    return max(gap(measured.keys, reference.keys), gap(measured.values, reference.values))


def same_bits(first, second):
    return torch.equal(first.keys, second.keys) and torch.equal(first.values, second.values)


def stored(engine, ids):
    """KV that is kept of a prompt's tokens but the last: a prompt that was warmed."""
    first = engine.first_token(ids, reuse="exact")
    assert first.placed.split.exact == len(ids) - 1
    return first.placed.live.block(0, len(ids) - 1)


def spans(first):
    return first.intent.summary().spans
