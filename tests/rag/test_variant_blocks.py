"""Blocks that an option wants encoded in another way: made when first asked for, kept, and equal to
what an index built that way holds.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from coinkv.kv.block import KVBlock
from coinkv.methods.blocks import ReadCounts
from coinkv.methods.cacheblend import CacheBlend
from coinkv.methods.coinrag import CoinRAG
from coinkv.methods.coinrag_cacheblend import CoinRAGCacheBlend
from coinkv.methods.epic import EPIC
from coinkv.methods.standard_cag import StandardCAG
from coinkv.methods.turborag import TurboRAG
from coinkv.rag.ask import CoinRAG as Asker
from coinkv.rag.build import build
from coinkv.rag.index import Index
from coinkv.rag.verify import verify
from composing import compose, hashes, retrieval, token_ids
from small_corpus import QUESTIONS, block_files, contents_of

NUGGETS = [(1, 30, 44), (0, 12, 20), (1, 44, 50), (0, 20, 30), (0, 26, 33)]
APART = [(0, 12, 20), (0, 20, 33), (1, 30, 44), (1, 44, 50)]  # only overlapping ones are one


@pytest.fixture
def folder(index_folder):
    """The index with the blocks of its build and no others."""
    index = Index.open(index_folder)
    built = {index.settings.block_key(name) for name in index.catalogue.hashes()}
    for path in block_files(index_folder):
        if path.stem not in built:
            path.unlink()
    return index_folder


@pytest.fixture
def fresh(folder, backbone):
    return Index.open(folder, model=backbone)


@pytest.fixture(scope="module")
def other_way(village, options, tmp_path_factory):
    """The village built with chunks encoded alone."""
    folder = tmp_path_factory.mktemp("alone") / "index"
    build(village, folder, dataclasses.replace(options, encode_after="nothing"))
    return Index.open(folder, model=options.model)


def own_kv(index, before, ids):
    """What the model makes of tokens behind others, as a block."""
    with torch.no_grad():
        own = index.backbone.model(torch.tensor([[*before, *ids]]), use_cache=True).past_key_values
    start = len(before)
    return KVBlock(
        torch.stack([layer.keys[0] for layer in own.layers])[:, :, start:],
        torch.stack([layer.values[0] for layer in own.layers])[:, :, start:],
        torch.arange(start, start + len(ids)),
    )


def require_close(block, own):
    assert torch.equal(block.positions, own.positions)
    for got, wanted in ((block.keys, own.keys), (block.values, own.values)):
        torch.testing.assert_close(got.float(), wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("encode_after", ["prefix", "nothing"])
def test_a_nugget_encoded_alone_is_what_the_model_makes_of_its_tokens_alone(fresh, encode_after):
    evidence = retrieval(hashes(fresh, 2), NUGGETS)
    method = CoinRAG(encoding="isolated", encode_after=encode_after)
    context = compose(method, fresh, evidence)
    assert [(p.chunk, p.start, p.end) for p in context.pieces[1:]] == APART
    before = fresh.bench.prompt.prefix_ids if encode_after == "prefix" else ()
    blocks = fresh.bench.blocks.encoded_after(encode_after)
    at = len(fresh.bench.prompt.prefix_ids)
    for chunk, start, end in APART:
        name = evidence.chunks[chunk].content_hash
        own = own_kv(fresh, before, token_ids(fresh, name)[start:end])
        counts = ReadCounts()
        kept = blocks.rows(name, None, counts, within=(start, end))
        assert counts.missing == 0
        require_close(kept, own)
        placed = context.cache.block(at, at + end - start)
        assert torch.equal(placed.values, kept.values.float())
        cut = blocks.rows(name, [(start, end)], counts)
        assert not torch.allclose(cut.values.float(), own.values, atol=1e-2)
        at += end - start


def test_nuggets_encoded_alone_are_encoded_once_and_read_afterwards(fresh, folder, encodings):
    evidence = retrieval(hashes(fresh, 2), NUGGETS)
    method = CoinRAG(encoding="isolated")
    before = len(block_files(folder))
    first, second = (compose(method, fresh, evidence) for _ in range(2))
    assert encodings == [end - start for _, start, end in APART]
    assert len(block_files(folder)) == before + len(APART)
    assert (first.counts.missing, first.counts.bytes_read) == (len(APART), 0)
    assert second.counts.missing == second.counts.damaged == 0
    assert second.counts.bytes_read > 0
    assert torch.equal(first.cache.block().keys, second.cache.block().keys)
    # the same nugget beside others is the same block
    third = compose(method, fresh, retrieval(hashes(fresh, 2), [(1, 44, 50), (0, 40, 44)]))
    assert third.counts.missing == 1


@pytest.mark.parametrize("encode_after", ["prefix", "nothing"])
def test_without_title_a_chunk_is_encoded_without_its_header(fresh, encodings, encode_after):
    (name,) = hashes(fresh, 1)
    header, ids = fresh.catalogue.content(name).header_tokens, token_ids(fresh, name)
    method = CoinRAG(title="none", encode_after=encode_after)
    nuggets = [(0, 30, 40), (0, header, header + 5)]
    context = compose(method, fresh, retrieval([name], nuggets))
    assert header > 0
    assert encodings == [len(ids) - header]
    before = fresh.bench.prompt.prefix_ids if encode_after == "prefix" else ()
    own = own_kv(fresh, before, ids[header:])
    rows = [*range(5), *range(30 - header, 40 - header)]
    values = context.cache.block(len(fresh.bench.prompt.prefix_ids)).values
    torch.testing.assert_close(values, own.values[:, :, rows], rtol=2e-3, atol=2e-3)
    again = compose(method, fresh, retrieval([name], nuggets))
    assert (again.counts.missing, encodings) == (0, [len(ids) - header])
    assert torch.equal(again.cache.block().keys, context.cache.block().keys)


def test_where_chunks_have_no_header_the_blocks_there_are_do_without_title(
    village, tmp_path, options, encodings
):
    options = dataclasses.replace(options, title_header=False)
    index = Index.build(village, tmp_path / "index", options)
    encodings.clear()
    evidence = retrieval(hashes(index, 2), NUGGETS)
    plain = compose(CoinRAG(), index, evidence)
    for title in ("none", "shown"):
        context = compose(CoinRAG(title=title), index, evidence)
        assert context.counts.missing == 0
        assert context.counts.page_bytes == plain.counts.page_bytes
        assert context.pieces == plain.pieces
    assert encodings == []


@pytest.mark.parametrize(
    "method",
    [
        StandardCAG,
        CacheBlend,
        EPIC,
        TurboRAG,
        CoinRAG,
        CoinRAGCacheBlend,
        lambda **options: CoinRAG(title="none", **options),
        lambda **options: CoinRAG(encoding="isolated", **options),
    ],
)
def test_chunks_encoded_behind_something_else_are_those_of_an_index_built_so(
    fresh, other_way, method
):
    for index, other, encode_after in ((fresh, other_way, "nothing"), (other_way, fresh, "prefix")):
        for question in QUESTIONS[:2]:
            wanted = Asker(other, method=method(encode_after=None))
            found = Asker(index, method=method(encode_after=encode_after))
            logits = [
                asker.first_token(question, answer_tokens=4).logits for asker in (wanted, found)
            ]
            assert torch.equal(*logits)
            as_built = Asker(index, method=method(encode_after=None))
            own = as_built.first_token(question, answer_tokens=4).logits
            assert not torch.equal(own, logits[0])


VARIANTS = [
    CoinRAG(encode_after="nothing"),
    CoinRAG(title="none"),
    CoinRAG(encoding="isolated"),
    TurboRAG(),
]


def test_variants_are_extra_files_that_verify_counts_and_the_next_build_removes(
    village, folder, options, backbone
):
    built = contents_of(folder / "blocks")
    index = Index.open(folder, model=backbone)

    def answers():
        return [Asker(index, method=m).ask(q) for m in VARIANTS for q in QUESTIONS[:2]]

    before = answers()
    extra = contents_of(folder / "blocks").keys() - built.keys()
    report = verify(folder)
    assert (report.clean, report.unneeded, report.blocks) == (True, len(extra), len(built))
    assert len(extra) == sum(answer.blocks_missing for answer in before) > len(VARIANTS)
    build(village, folder, options)
    assert contents_of(folder / "blocks") == built
    after = answers()
    assert [(a.text, a.len_tokens, a.blocks_missing) for a in after] == [
        (a.text, a.len_tokens, a.blocks_missing) for a in before
    ]
    assert contents_of(folder / "blocks").keys() == built.keys() | extra
