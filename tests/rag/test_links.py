"""Link tokens: computed live behind each chunk, seeing all before them, trained or not."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from coinkv.errors import InputError
from coinkv.methods.coinrag import CoinRAG
from coinkv.methods.coinrag_kvlink import CoinRAGKVLink
from coinkv.methods.kvlink import KVLink
from coinkv.methods.standard_cag import StandardCAG
from coinkv.rag.ask import CoinRAG as Asker
from composing import difference
from made_up_chunks import BY_HASH, CHUNKS, LENGTHS, SUFFIX, asked, masked_logits
from small_corpus import QUESTIONS

SET_APART = {"encoding": "isolated", "encode_after": "nothing"}


def linked_segments(bench, chunks, links):
    """Prompt, chunks (lists of token lists that were encoded apart) each with links, question."""
    (line_break,) = bench.backbone.tokenize("\n").ids
    segments = [("prompt", bench.prompt.prefix_ids)]
    for parts in chunks:
        segments += [("alone", part) for part in parts]
        segments.append(("links", [line_break] * links))
    return [*segments, ("question", SUFFIX)]


def whole_chunks():
    return [[ids] for ids in CHUNKS]


def nuggets_in_retrieval_order():
    """The nuggets of chunk 2 touch, and are encoded apart all the same."""
    spans = {0: [(4, 9), (12, 20)], 1: [(0, 6)], 2: [(3, 9), (9, 12)]}
    return [[CHUNKS[chunk][start:end] for start, end in found] for chunk, found in spans.items()]


@pytest.mark.parametrize(
    "name", ["llama", "gemma3-two-thetas", "cohere-interleaved", "stablelm-partial"]
)
def test_kvlink_is_one_forward_in_which_chunks_see_only_themselves(bench_of, tiny_backbone, name):
    bench = bench_of(tiny_backbone(name))
    segments = linked_segments(bench, whole_chunks(), 3)
    if name.startswith("gemma3"):  # its embedding layer scales what it looks up
        assert float(bench.backbone.model.get_input_embeddings().embed_scale) != 1
    reference = masked_logits(bench, segments)
    assert difference(asked(KVLink(links=3), bench)[1], reference) < 1e-4
    blind = [("alone" if kind == "links" else kind, tokens) for kind, tokens in segments]
    assert difference(masked_logits(bench, blind), reference) > 1e-2


def test_coinrag_kvlink_is_one_forward_in_which_nuggets_set_apart_see_only_themselves(bench):
    segments = linked_segments(bench, nuggets_in_retrieval_order(), 2)
    logits = asked(CoinRAGKVLink(links=2, **SET_APART), bench)[1]
    assert difference(logits, masked_logits(bench, segments)) < 1e-4


def test_the_links_of_coinrag_kvlink_see_nuggets_as_their_chunk_made_them(bench):
    apart, cut = (
        asked(CoinRAGKVLink(links=2, **options), bench)[0]
        for options in (SET_APART, {"encode_after": "nothing"})
    )
    assert cut.len_tokens == apart.len_tokens
    assert not torch.allclose(links_of(cut)[0], links_of(apart)[0], atol=1e-3)


def trained(path, chunks=3, links=3, hidden=64, seed=5):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(chunks, links, hidden, generator=generator)
    save_file({"link_embeddings": vectors}, path)
    return vectors


def test_trained_embeddings_are_what_the_link_tokens_look_like(bench, tmp_path):
    vectors = trained(tmp_path / "links.safetensors", chunks=5)
    method = KVLink(links=3, embeddings=str(tmp_path / "links.safetensors"))
    segments = linked_segments(bench, whole_chunks(), 3)
    reference = masked_logits(bench, segments, link_vectors=vectors[:3].flatten(0, 1))
    logits = asked(method, bench)[1]
    assert difference(logits, reference) < 1e-4
    assert difference(logits, asked(KVLink(links=3), bench)[1]) > 1e-2


def test_embeddings_of_a_line_break_are_the_untrained_form(bench, tmp_path):
    (line_break,) = bench.backbone.tokenize("\n").ids
    vector = bench.backbone.model.get_input_embeddings().weight.detach()[line_break]
    save_file({"link_embeddings": vector.repeat(3, 4, 1)}, tmp_path / "links.safetensors")
    method = KVLink(links=4, embeddings=str(tmp_path / "links.safetensors"))
    assert torch.equal(asked(method, bench)[1], asked(KVLink(links=4), bench)[1])


def test_embeddings_that_were_trained_on_are_read_anew(bench, tmp_path):
    path = tmp_path / "links.safetensors"
    method = KVLink(links=3, embeddings=str(path))
    trained(path)
    before = asked(method, bench)[1]
    assert torch.equal(asked(method, bench)[1], before)
    path.unlink()
    trained(path, seed=6)
    assert not torch.equal(asked(method, bench)[1], before)


def groups(context):
    """Slots of each group of link tokens."""
    start, found = 0, []
    for piece in context.pieces:
        if piece.linking:
            found.append(slice(start, start + len(piece)))
        start += len(piece)
    return found


def links_of(context):
    """Values of each group of link tokens in all layers."""
    return [context.cache.values[:, :, slots].clone() for slots in groups(context)]


@pytest.mark.parametrize("method", [KVLink(links=3), CoinRAGKVLink(links=3)])
def test_links_stand_behind_each_chunk_and_nothing_else_of_the_evidence_is_computed(bench, method):
    context, _ = asked(method, bench)
    layers, prefix = bench.backbone.shape.layers, len(bench.prompt.prefix_ids)
    per_chunk = LENGTHS if method.unit == "chunk" else (13, 6, 9)
    expected = [0] * prefix
    for tokens in per_chunk:
        expected += [0] * tokens + [layers] * 3
    assert context.cache.layers_computed.tolist() == expected + [layers] * len(SUFFIX)
    assert context.cache.positions.tolist() == list(range(len(expected) + len(SUFFIX)))
    assert context.len_tokens == len(expected)
    order = [(piece.chunk, piece.linking) for piece in context.pieces[1:]]
    assert [chunk for chunk, _ in dict.fromkeys(order)] == [0, None, 1, 2]
    assert sum(linking for _, linking in order) == 3


def test_under_rank_order_each_chunk_has_one_group_of_links_behind_its_last_nugget(bench):
    context, _ = asked(CoinRAGKVLink(links=2, order="rank"), bench)
    pieces = ["links" if piece.linking else piece.chunk for piece in context.pieces[1:]]
    assert pieces == [2, 0, 2, "links", 1, "links", 0, "links"]
    assert context.cache.positions.tolist() == list(range(context.len_tokens + len(SUFFIX)))


@pytest.mark.parametrize("method", [KVLink(links=2), CoinRAGKVLink(links=2)])
@pytest.mark.parametrize("changed", [0, 1, 2])
def test_links_hear_of_chunks_before_them_and_of_none_behind(bench, method, changed):
    before = links_of(asked(method, bench)[0])
    name = list(BY_HASH)[changed]
    key = bench.blocks.key_of(name)
    read = bench.blocks.store.get(key)
    bench.blocks.store.delete(key)
    noise = torch.randn(read.kv.shape, generator=torch.Generator().manual_seed(2))
    bench.blocks.store.put(key, read.kv + noise, read.positions)
    after = links_of(asked(method, bench)[0])
    same = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert same == [place < changed for place in range(3)]


def test_a_link_token_hears_of_the_link_tokens_before_it(bench, tmp_path):
    path = tmp_path / "links.safetensors"
    vectors = trained(path)
    before = links_of(asked(KVLink(links=3, embeddings=str(path)), bench)[0])
    vectors[1, 1] += 1
    path.unlink()
    save_file({"link_embeddings": vectors}, path)
    after = links_of(asked(KVLink(links=3, embeddings=str(path)), bench)[0])
    same = [(a == b).all(3).all(1).all(0).tolist() for a, b in zip(before, after, strict=True)]
    assert same == [[True] * 3, [True, False, False], [False] * 3]


@pytest.mark.parametrize(
    ("without_links", "plain"),
    [
        (KVLink(links=0), StandardCAG(encode_after="nothing")),
        (CoinRAGKVLink(links=0), CoinRAG()),
        (CoinRAGKVLink(links=0, order="rank", **SET_APART), CoinRAG(order="rank", **SET_APART)),
    ],
)
def test_without_links_the_method_beneath_is_left_bit_for_bit(bench, without_links, plain):
    (bare, expected), (context, logits) = (asked(m, bench) for m in (plain, without_links))
    assert torch.equal(logits, expected)
    assert context.pieces == bare.pieces
    assert context.cache.work == bare.cache.work


def damaged(path, kind):
    """A file of embeddings that cannot be used."""
    if kind == "of no such tensor":
        save_file({"embeddings": torch.ones(3, 5, 64)}, path)
    elif kind == "no safetensors":
        path.write_bytes(b"not a tensor at all")
    elif kind == "a folder":
        path.mkdir()
    elif kind != "missing":
        tensors = {
            "of other links": torch.ones(9, 4, 64),
            "of another model": torch.ones(9, 5, 32),
            "flat": torch.ones(45, 64),
            "for two chunks": torch.ones(2, 5, 64),
            "whole numbers": torch.ones(9, 5, 64, dtype=torch.int64),
            "not finite": torch.full((9, 5, 64), torch.nan),
        }
        save_file({"link_embeddings": tensors[kind]}, path)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("of other links", "is [9, 4, 64], not [chunks, 5, 64]"),
        ("of another model", "is [9, 5, 32], not [chunks, 5, 64]"),
        ("flat", "is [45, 64], not [chunks, 5, 64]"),
        ("for two chunks", "are for 2 chunks, the context has 3"),
        ("whole numbers", "no finite floating-point number"),
        ("not finite", "no finite floating-point number"),
        ("of no such tensor", "no link embeddings can be read"),
        ("no safetensors", "no link embeddings can be read"),
        ("a folder", "no link embeddings can be read"),
        ("missing", "no link embeddings can be read"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused_in_one_line(index, tmp_path, kind, message):
    path = tmp_path / "links.safetensors"
    damaged(path, kind)
    asker = Asker(index, method=KVLink(embeddings=str(path)), k_chunks=3)
    with pytest.raises(InputError) as raised:
        asker.ask(QUESTIONS[0])
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("method", [KVLink, CoinRAGKVLink])
def test_what_was_not_trained_says_so(method):
    assert "untrained" in method().note
    assert method(embeddings="links.safetensors").note == ""
