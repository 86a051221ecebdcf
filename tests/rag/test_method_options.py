"""Options of CoinRAG and its text baseline: what stands in the context, and in which order."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from coinkv.corpus.extract.base import Extractor
from coinkv.methods.coinrag import CoinRAG
from coinkv.methods.registry import METHODS, method_named
from coinkv.methods.text_nuggets import TextNuggets
from coinkv.model.decode import Sampling
from coinkv.rag.ask import CoinRAG as Asker
from coinkv.rag.ask import prefilled
from coinkv.rag.index import Index
from coinkv.retrieval.two_stage import Retrieval
from composing import compose, difference, hashes, own_logits, retrieval
from made_up_chunks import CHUNKS, SUFFIX, asked, masked_logits
from small_corpus import QUESTIONS

ORDERS = ("retrieval", "rank", "document")
NUGGETS = [(2, 3, 20), (0, 20, 35), (2, 0, 4), (0, 4, 24), (1, 1, 30), (2, 20, 22)]


def shuffled(index):
    """Three chunks whose rank is not their row in the index, with overlapping nuggets."""
    found = retrieval(hashes(index, 3), NUGGETS)
    chunks = (dataclasses.replace(c, row=(c.row + 1) % 3) for c in found.chunks)
    return Retrieval(tuple(chunks), found.nuggets)


def spans_of(context):
    return [(piece.chunk, piece.start, piece.end) for piece in context.pieces[1:]]


@pytest.mark.parametrize("order", ORDERS)
def test_text_nuggets_is_full_prefill_of_the_tokens_that_coinrag_places(index, order):
    evidence, suffix = shuffled(index), index.bench.prompt.suffix_ids(QUESTIONS[0])
    placed = compose(CoinRAG(order=order), index, evidence)
    text = compose(TextNuggets(order), index, evidence)
    ids = index.bench.token_ids(placed.pieces, evidence)
    assert text.live.token_ids == ids
    assert text.len_tokens == placed.len_tokens == len(ids)
    logits = prefilled(index.backbone, text, suffix)
    reference = own_logits(index, [*ids, *suffix], 1)
    assert difference(logits, reference) < 1e-5
    assert difference(prefilled(index.backbone, placed, suffix), reference) > 1e-3


def test_each_order_puts_nuggets_where_it_says_and_no_token_twice(index):
    found = {o: spans_of(compose(CoinRAG(order=o), index, shuffled(index))) for o in ORDERS}
    chunks = {0: (0, 4, 35), 1: (1, 1, 30), 2: (2, 0, 22)}
    assert found["retrieval"] == [chunks[0], chunks[1], chunks[2]]
    assert found["document"] == [chunks[2], chunks[0], chunks[1]]  # rows 0, 1, 2
    assert found["rank"] == [
        (2, 3, 20),
        (0, 20, 35),
        (2, 0, 3),
        (0, 4, 20),
        (1, 1, 30),
        (2, 20, 22),
    ]


@pytest.mark.parametrize("title", ["encoded", "shown"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_kv_in_the_context_is_that_of_the_tokens_it_says_it_holds(index, order, title):
    evidence, blocks = shuffled(index), index.bench.blocks
    context = compose(CoinRAG(order=order, title=title), index, evidence)
    read = [blocks.store.get(blocks.key_of(chunk.content_hash)).kv for chunk in evidence.chunks]
    rows = [read[chunk][start:end] for chunk, start, end in spans_of(context)]
    values = torch.cat(rows)[:, :, 1].permute(1, 2, 0, 3).float()
    assert torch.equal(context.cache.block(len(index.bench.prompt.prefix_ids)).values, values)


def test_questions_of_one_order_hold_the_same_tokens_as_those_of_another(index):
    for question in QUESTIONS:
        held = []
        for order in ORDERS:
            asker = Asker(index, method=CoinRAG(order=order), k_nuggets=8)
            first = asker.first_token(question, answer_tokens=4)
            spans = spans_of(first.context)
            held.append({(c, token) for c, start, end in spans for token in range(start, end)})
            rows = [first.retrieval.chunks[chunk].row for chunk, _, _ in spans]
            assert order != "document" or rows == sorted(rows)
            assert sum(end - start for _, start, end in spans) == len(held[-1])
        assert held[0] == held[1] == held[2]


@pytest.mark.parametrize("order", ORDERS)
def test_a_title_that_is_shown_stands_once_before_the_nuggets_of_its_chunk(index, order):
    evidence = shuffled(index)
    headers = [index.catalogue.content(c.content_hash).header_tokens for c in evidence.chunks]
    behind = (
        dataclasses.replace(n, start=n.start + headers[n.chunk], end=n.end + headers[n.chunk])
        for n in evidence.nuggets
    )
    evidence = Retrieval(evidence.chunks, tuple(behind))
    plain, shown = (
        spans_of(compose(CoinRAG(order=order, title=title), index, evidence))
        for title in ("encoded", "shown")
    )
    expected, seen = [], set()
    for chunk, start, end in plain:
        if chunk not in seen:
            expected += [(chunk, token) for token in range(headers[chunk])]
        seen.add(chunk)
        expected += [(chunk, token) for token in range(start, end)]
    assert min(headers) > 0
    assert [
        (chunk, token) for chunk, start, end in shown for token in range(start, end)
    ] == expected


def test_nuggets_that_are_not_aligned_stay_where_they_stood_in_their_chunk(index):
    evidence = retrieval(hashes(index, 2), [(1, 30, 34), (0, 12, 20)])
    context = compose(CoinRAG(align=False), index, evidence)
    prefix = len(index.bench.prompt.prefix_ids)
    stood = [*range(prefix + 12, prefix + 20), *range(prefix + 30, prefix + 34)]
    assert context.cache.positions.tolist() == [*range(prefix), *stood]
    blocks = index.bench.blocks
    name = evidence.chunks[1].content_hash
    kv = blocks.store.get(blocks.key_of(name), [(30, 34)]).kv.float()
    assert torch.equal(
        context.cache.keys[:, :, prefix + 8 : prefix + 12], kv[:, :, 0].permute(1, 2, 0, 3)
    )
    suffix = index.bench.prompt.suffix_ids(QUESTIONS[0])
    prefilled(index.backbone, context, suffix)
    asked_at = range(prefix + 34, prefix + 34 + len(suffix))
    assert context.cache.positions.tolist() == [*range(prefix), *stood, *asked_at]


@pytest.mark.parametrize("question", QUESTIONS[:3])
def test_one_stage_takes_the_best_nuggets_of_all_chunks(index, question):
    asker = Asker(index, method=CoinRAG(stages=1), k_chunks=1, k_nuggets=6)
    vector = index.embedder.embed([question])[0]
    every = []
    for row in range(index.vectors.chunks):
        content = index.catalogue.content(index.vectors.content_hash(row))
        for score, nugget in zip(content.nugget_vectors @ vector, content.nuggets, strict=True):
            every.append((-round(float(score), 5), content.content_hash, *nugget[2:4].tolist()))
    best = sorted(every)[:6]
    found = asker.first_token(question, answer_tokens=4)
    chunks = found.retrieval.chunks
    assert [
        (-round(n.score, 5), chunks[n.chunk].content_hash, n.start, n.end)
        for n in found.retrieval.nuggets
    ] == best
    assert [c.content_hash for c in chunks] == list(dict.fromkeys(name for _, name, *_ in best))
    assert len(chunks) > 1  # two stages would have stayed in one
    assert {piece.chunk for piece in found.context.pieces[1:]} == set(range(len(chunks)))


def test_nuggets_encoded_alone_are_one_forward_in_which_they_see_only_themselves(bench):
    """Two nuggets of chunk 2 touch: each is encoded alone all the same."""
    nuggets = [(0, 4, 9), (0, 12, 20), (1, 0, 6), (2, 3, 9), (2, 9, 12)]
    alone = [("alone", CHUNKS[chunk][start:end]) for chunk, start, end in nuggets]
    segments = [("prompt", bench.prompt.prefix_ids), *alone, ("question", SUFFIX)]
    context, logits = asked(CoinRAG(encoding="isolated"), bench)
    assert spans_of(context) == nuggets
    assert difference(logits, masked_logits(bench, segments)) < 1e-4
    assert difference(asked(CoinRAG(), bench)[1], logits) > 1e-2


@pytest.mark.parametrize("name", METHODS)
def test_no_nugget_at_all_leaves_nuggets_methods_the_prompt_and_others_their_chunks(index, name):
    method = method_named(name)
    for evidence in (retrieval(hashes(index, 2)), Retrieval((), ())):
        context = compose(method, index, evidence)
        chunks = [] if method.unit == "nugget" else [0, 1][: len(evidence.chunks)]
        held = [piece.chunk for piece in context.pieces[1:] if not piece.linking]
        assert held == chunks
        suffix = index.bench.prompt.suffix_ids(QUESTIONS[0])
        logits = prefilled(index.backbone, context, suffix)
        if not chunks:
            ids = [*index.bench.prompt.prefix_ids, *suffix]
            assert difference(logits, own_logits(index, ids, 1)) < 1e-5


class Speechless(Extractor):
    def extract(self, text):
        return []


def test_an_index_without_nuggets_answers_by_every_method(village, tmp_path, options):
    options = dataclasses.replace(options, extractor=Speechless())
    index = Index.build(village, tmp_path / "index", options)
    one_stage = (CoinRAG(stages=1), method_named("coinrag_kvlink", {"stages": 1}))
    for method in (*METHODS, *one_stage):
        answer = Asker(index, method=method, sampling=Sampling(2)).ask(QUESTIONS[0])
        assert answer.answer_tokens > 0
        assert (answer.evidence == ()) == (METHODS[answer.method].unit == "nugget")


def test_four_threads_with_different_methods_get_what_each_gets_alone(
    index_folder, index, backbone
):
    """Also while they make blocks that are not there yet, and need the same ones."""
    asks = [(name, question) for question in QUESTIONS[:2] for name in METHODS]

    def first_logits(opened, ask):
        asker = Asker(opened, method=ask[0])
        return asker.first_token(ask[1], answer_tokens=4).logits

    alone = [first_logits(index, ask) for ask in asks]
    for path in (index_folder / "blocks").rglob("*.safetensors"):
        path.unlink()
    opened = Index.open(index_folder, model=backbone)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda ask: first_logits(opened, ask), asks))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
