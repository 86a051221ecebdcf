"""Rung 4 of the exactness ladder: what methods compose, against each other and full prefill."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coinkv.errors import InputError
from coinkv.kv.block import KVBlock
from coinkv.methods.coinrag import CoinRAG
from coinkv.methods.registry import METHODS, method_named
from coinkv.methods.spans import disjoint
from coinkv.methods.standard_cag import StandardCAG
from coinkv.methods.standard_rag import StandardRAG
from coinkv.model.decode import Sampling
from coinkv.model.fill import fill
from coinkv.rag import ask
from coinkv.rag.build import build
from coinkv.rag.index import Index
from composing import compose, difference, hashes, own_logits, retrieval, token_ids
from small_corpus import CHUNK_TOKENS, QUESTIONS, contents_of, write_documents


def stored(index, content_hash):
    blocks = index.bench.blocks
    read = blocks.store.get(blocks.key_of(content_hash))
    return KVBlock.from_token_major(read.kv, read.positions)


def logits_behind(index, context, ids):
    live = context.live
    start = context.len_tokens
    positions = torch.cat([live.positions, torch.arange(start, start + len(ids))])
    return fill(index.backbone, context.cache, [*live.token_ids, *ids], positions, logits="all")[
        len(live.token_ids) :
    ]


def same(a: KVBlock, b: KVBlock) -> bool:
    return (
        torch.equal(a.keys, b.keys)
        and torch.equal(a.values, b.values)
        and torch.equal(a.positions, b.positions)
    )


@pytest.fixture(scope="module")
def alone(village, options, tmp_path_factory):
    """The village with chunks encoded alone, as in the paper."""
    folder = tmp_path_factory.mktemp("alone") / "index"
    build(village, folder, dataclasses.replace(options, encode_after="nothing"))
    return Index.open(folder, model=options.model)


def test_nuggets_that_cover_whole_chunks_give_the_context_of_standard_cag(index):
    names = hashes(index, 4)
    lengths = [len(token_ids(index, name)) for name in names]
    whole = [(rank, 0, length) for rank, length in enumerate(lengths)]
    halves = [(rank, 0, length // 2) for rank, length in enumerate(lengths)]
    halves += [(rank, length // 2, length) for rank, length in enumerate(lengths)]
    cag = compose(StandardCAG(), index, retrieval(names)).cache.block()
    for nuggets in (whole, halves[::-1]):
        coinrag = compose(CoinRAG(), index, retrieval(names, nuggets)).cache.block()
        assert same(coinrag, cag)


def test_standard_rag_is_the_models_own_forward_on_the_ids(index):
    names = hashes(index, 3)
    suffix = index.bench.prompt.suffix_ids(QUESTIONS[0])
    context = compose(StandardRAG(), index, retrieval(names))
    ids = [*index.bench.prompt.prefix_ids, *(i for n in names for i in token_ids(index, n))]
    assert context.len_tokens == len(ids)
    assert list(context.live.token_ids) == ids
    reference = own_logits(index, [*ids, *suffix], len(suffix))
    assert difference(logits_behind(index, context, suffix), reference) < 1e-5


def test_standard_cag_of_one_chunk_is_full_prefill_within_the_rounding_of_16_bit(index):
    (name,) = hashes(index, 1)
    suffix = index.bench.prompt.suffix_ids(QUESTIONS[0])
    ids = [*index.bench.prompt.prefix_ids, *token_ids(index, name), *suffix]
    reference = own_logits(index, ids, len(suffix))
    context = compose(StandardCAG(), index, retrieval([name]))
    rounded = difference(logits_behind(index, context, suffix), reference)
    assert 0 < rounded < 4e-3
    assert stored(index, name).keys.dtype == torch.float16


def test_standard_cag_of_one_chunk_in_float32_is_full_prefill(index_folder, backbone):
    index = Index.open(index_folder, model=backbone)
    (name,) = hashes(index, 1)
    in_float32(index, name)
    suffix = index.bench.prompt.suffix_ids(QUESTIONS[0])
    ids = [*index.bench.prompt.prefix_ids, *token_ids(index, name), *suffix]
    context = compose(StandardCAG(), index, retrieval([name]))
    measured = logits_behind(index, context, suffix)
    assert difference(measured, own_logits(index, ids, len(suffix))) < 1e-5


def in_float32(index, content_hash):
    """Keep a chunk's block as one is kept whose numbers overflow 16 bit."""
    blocks = index.bench.blocks
    ids = [*index.bench.prompt.prefix_ids, *token_ids(index, content_hash)]
    with torch.no_grad():
        cache = blocks.backbone.model(torch.tensor([ids]), use_cache=True).past_key_values
    start = len(index.bench.prompt.prefix_ids)
    block = KVBlock(
        torch.stack([layer.keys[0] for layer in cache.layers])[:, :, start:],
        torch.stack([layer.values[0] for layer in cache.layers])[:, :, start:],
        torch.arange(start, len(ids)),
    )
    blocks.store.delete(blocks.key_of(content_hash))
    blocks.write(content_hash, block)


def test_a_block_kept_in_float32_stands_beside_others_in_16_bit(index_folder, backbone):
    index = Index.open(index_folder, model=backbone)
    names = hashes(index, 2)
    before = compose(StandardCAG(), index, retrieval(names)).cache.block()
    in_float32(index, names[1])
    after = compose(StandardCAG(), index, retrieval(names)).cache.block()
    assert not torch.equal(after.keys, before.keys)
    torch.testing.assert_close(after.keys, before.keys, rtol=2e-3, atol=2e-3)


def test_overlapping_nuggets_put_no_token_twice_and_leave_no_hole(index):
    names = hashes(index, 2)
    nuggets = [(1, 30, 44), (0, 12, 20), (1, 40, 50), (0, 15, 18), (1, 50, 53), (0, 2, 5)]
    cache = compose(CoinRAG(), index, retrieval(names, nuggets)).cache
    prefix = len(index.bench.prompt.prefix_ids)
    kept = [(0, [*range(2, 5), *range(12, 20)]), (1, [*range(30, 53)])]
    assert cache.positions.tolist() == list(range(prefix + 11 + 23))
    values = torch.cat([stored(index, names[r]).values[:, :, rows] for r, rows in kept], dim=2)
    assert torch.equal(cache.block(prefix).values, values.float())


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=12))
def test_merged_spans_cover_the_same_tokens_once_in_order(starts_and_lengths):
    spans = [(start, start + length) for start, length in starts_and_lengths]
    merged = disjoint(spans)
    tokens = [token for start, end in merged for token in range(start, end)]
    assert tokens == sorted({token for start, end in spans for token in range(start, end)})
    assert all(before[1] < after[0] for before, after in pairwise(merged))


def test_chunks_stand_in_retrieval_order_and_their_nuggets_in_document_order(index):
    names = hashes(index, 3)
    nuggets = [(2, 3, 6), (0, 20, 25), (2, 0, 2), (0, 4, 9)]  # by score
    cache = compose(CoinRAG(), index, retrieval(names, nuggets)).cache
    rows = [(0, [*range(4, 9), *range(20, 25)]), (2, [0, 1, 3, 4, 5])]
    values = torch.cat([stored(index, names[r]).values[:, :, at] for r, at in rows], dim=2)
    assert torch.equal(cache.block(len(index.bench.prompt.prefix_ids)).values, values.float())


def test_moved_keys_are_those_encoded_at_their_new_place(index):
    (name,) = hashes(index, 1)
    cache = compose(CoinRAG(), index, retrieval([name], [(0, 40, 60)])).cache
    prefix = len(index.bench.prompt.prefix_ids)
    here = stored(index, name).to(torch.float32, "cpu")[40:60]
    moved = here.moved_to(torch.arange(prefix, prefix + 20), index.backbone.rope)
    torch.testing.assert_close(cache.block(prefix).keys, moved.keys)
    assert not torch.allclose(cache.block(prefix).keys, here.keys, atol=1e-2)


@pytest.mark.parametrize("method", METHODS)
def test_a_question_asked_twice_gives_the_same_tokens_and_changes_no_file(index, method):
    asker = ask.CoinRAG(index, method=method, sampling=Sampling(12))
    first = asker.ask(QUESTIONS[1])  # some methods make blocks of their own
    before = contents_of(index.folder / "blocks")
    second = asker.ask(QUESTIONS[1])
    assert first.text == second.text
    assert first.answer_tokens == second.answer_tokens > 0
    assert contents_of(index.folder / "blocks") == before


def test_chunks_are_encoded_behind_the_prompt_or_alone_as_asked(index, alone):
    prefix = list(index.bench.prompt.prefix_ids)
    for opened, before in ((index, prefix), (alone, [])):
        name = hashes(opened, 1)[0]
        ids = [*before, *token_ids(opened, name)]
        with torch.no_grad():
            own = opened.backbone.model(torch.tensor([ids]), use_cache=True).past_key_values
        block = stored(opened, name)
        assert block.positions.tolist() == list(range(len(before), len(ids)))
        keys = own.layers[-1].keys[0, :, len(before) :]
        torch.testing.assert_close(block.keys[-1].float(), keys, rtol=2e-3, atol=2e-3)


def test_chunks_encoded_alone_compose_behind_the_prompt_all_the_same(alone):
    names = hashes(alone, 2)
    context = compose(StandardCAG(), alone, retrieval(names))
    assert context.cache.positions.tolist() == list(range(context.len_tokens))
    answer = ask.CoinRAG(alone, sampling=Sampling(4)).ask(QUESTIONS[0])
    assert answer.len_tokens > len(alone.bench.prompt.prefix_ids)


def test_a_context_that_does_not_fit_is_refused_with_the_numbers(tmp_path, options):
    text = " ".join(f"House {n} in the lane has {n + 2} windows." for n in range(160))
    docs = write_documents(tmp_path / "docs", {"lane.txt": text})
    index = Index.build(docs, tmp_path / "index", options)
    enough = 2048 // CHUNK_TOKENS + 2
    assert index.vectors.chunks > enough
    for method in ("standard_rag", "standard_cag"):
        asker = ask.CoinRAG(index, method=method, k_chunks=enough)
        with pytest.raises(InputError, match="holds 2048"):
            asker.ask("How many windows has house 7?")
    assert ask.CoinRAG(index, k_chunks=enough, sampling=Sampling(2)).ask("Windows?").answer_tokens


def test_an_unknown_method_is_refused_with_the_names_there_are():
    with pytest.raises(InputError, match="use one of standard_rag, text_nuggets, standard_cag"):
        method_named("turboragg")
