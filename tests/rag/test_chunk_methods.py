"""Methods of whole chunks encoded alone: the same context where they should agree, and each equal
to one forward pass in which chunks see only themselves.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from coinkv.errors import InputError
from coinkv.methods.block_attention import BlockAttention
from coinkv.methods.coinrag import CoinRAG
from coinkv.methods.epic import EPIC
from coinkv.methods.standard_cag import StandardCAG
from coinkv.methods.turborag import TurboRAG
from coinkv.rag.ask import prefilled
from composing import ROOM, compose, difference, hashes, retrieval
from made_up_chunks import BY_HASH, CHUNKS, LENGTHS, SUFFIX, asked, masked_logits
from small_corpus import QUESTIONS

COMPOSITE = TurboRAG(positions="composite")


def segments(bench):
    chunks = [("alone", ids) for ids in CHUNKS]
    return [("prompt", bench.prompt.prefix_ids), *chunks, ("question", SUFFIX)]


def composite_positions(bench):
    """Everything begins at 0, but for the question, which stands behind the largest position."""
    prefix = len(bench.prompt.prefix_ids)
    parts = [torch.arange(length) for length in (prefix, *LENGTHS)]
    end = max(prefix, *LENGTHS)
    return torch.cat([*parts, torch.arange(end, end + len(SUFFIX))])


def same(a, b):
    return torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values)


def test_turborag_reordered_block_attention_and_cached_chunks_are_one_context(index):
    evidence = retrieval(hashes(index, 4))
    suffix = index.bench.prompt.suffix_ids(QUESTIONS[0])
    methods = TurboRAG(), BlockAttention(), StandardCAG(encode_after="nothing"), StandardCAG()
    contexts = [compose(method, index, evidence) for method in methods]
    logits = [prefilled(index.backbone, context, suffix) for context in contexts]
    alike = [
        same(context.cache.block(), contexts[0].cache.block())
        and context.pieces == contexts[0].pieces
        and torch.equal(logits[at], logits[0])
        for at, context in enumerate(contexts)
    ]
    assert alike == [True, True, True, False]  # the last one's chunks have seen the prompt


@pytest.mark.parametrize("method", [TurboRAG(), BlockAttention(), StandardCAG()])
def test_chunks_encoded_alone_are_one_forward_in_which_they_see_only_themselves(bench, method):
    reference = masked_logits(bench, segments(bench))
    assert difference(asked(method, bench)[1], reference) < 1e-4


def test_composite_positions_are_one_forward_at_these_positions(bench):
    reference = masked_logits(bench, segments(bench), positions=composite_positions(bench))
    logits = asked(COMPOSITE, bench)[1]
    assert difference(logits, reference) < 1e-4
    assert difference(asked(TurboRAG(), bench)[1], reference) > 1e-2


def test_composite_leaves_every_chunk_where_it_was_encoded(bench):
    context, _ = asked(COMPOSITE, bench)
    assert torch.equal(context.cache.positions, composite_positions(bench))
    start = len(bench.prompt.prefix_ids)
    for name, length in zip(BY_HASH, LENGTHS, strict=True):
        read = bench.blocks.store.get(bench.blocks.key_of(name))
        keys = context.cache.keys[:, :, start : start + length]
        assert torch.equal(keys, read.kv[:, :, 0].permute(1, 2, 0, 3))
        start += length


def test_composite_of_chunks_behind_the_prompt_begins_each_behind_the_prompt(index):
    names = hashes(index, 3)
    context = compose(
        TurboRAG(positions="composite", encode_after="prefix"), index, retrieval(names)
    )
    prefix = len(index.bench.prompt.prefix_ids)
    expected = list(range(prefix))
    for piece in context.pieces[1:]:
        expected += range(prefix, prefix + len(piece))
    assert context.cache.positions.tolist() == expected


@pytest.mark.parametrize("method", [COMPOSITE, CoinRAG(align=False)])
def test_positions_left_as_they_were_count_for_the_context_window(bench, method):
    """A short context of late positions needs the window up to the last of them."""
    name = next(iter(BY_HASH))
    evidence = retrieval([name], [(0, 18, 20)])
    blocks = bench.blocks.encoded_after("prefix")
    start = len(bench.prompt.prefix_ids)
    method = dataclasses.replace(method, encode_after="prefix")

    def within(window):
        backbone = dataclasses.replace(bench.backbone, context_length=window)
        return dataclasses.replace(bench, blocks=blocks, backbone=backbone)

    enough = start + LENGTHS[0] + ROOM
    assert len(asked(method, within(enough), evidence)[1]) == 1
    with pytest.raises(InputError, match=f"needs {enough} tokens"):
        asked(method, within(enough - 1), evidence)


def test_epic_computes_heads_that_see_everything_before_them(bench):
    """With heads as long as the chunks, EPIC is full prefill; with none, the cached chunks."""
    seeing = [("seeing", ids) for _, ids in segments(bench)]
    full = masked_logits(bench, seeing)
    gaps = [difference(asked(EPIC(tokens=n), bench)[1], full) for n in (0, max(LENGTHS))]
    assert gaps[1] < 1e-4 < 1e-2 < gaps[0]
    assert torch.equal(asked(EPIC(tokens=0), bench)[1], asked(StandardCAG(), bench)[1])


def test_the_first_head_of_epic_is_what_the_model_makes_of_it_behind_the_prompt(bench):
    context, _ = asked(EPIC(tokens=3), bench)
    start = len(bench.prompt.prefix_ids)
    ids = [*bench.prompt.prefix_ids, *CHUNKS[0][:3]]
    with torch.no_grad():
        own = bench.backbone.model(torch.tensor([ids]), use_cache=True).past_key_values
    values = torch.stack([layer.values[0] for layer in own.layers])[:, :, start:]
    torch.testing.assert_close(
        context.cache.values[:, :, start : start + 3], values, rtol=1e-4, atol=1e-5
    )
