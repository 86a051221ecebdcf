"""Repair: rung 5 of the exactness ladder for every method that recomputes, and what it costs."""

from __future__ import annotations

import pytest
import torch

from coinkv.errors import InputError, UnsupportedModelError
from coinkv.kv.block import KVBlock
from coinkv.methods.cacheblend import CacheBlend
from coinkv.methods.coinrag import CoinRAG
from coinkv.methods.coinrag_cacheblend import CoinRAGCacheBlend
from coinkv.methods.epic import EPIC
from coinkv.methods.standard_cag import StandardCAG
from coinkv.methods.standard_rag import StandardRAG
from coinkv.model.backbone import Backbone
from coinkv.model.fill import LiveCache, fill
from coinkv.model.narrow import decoder_layers
from coinkv.model.work import Work, flops
from coinkv.rag.ask import CoinRAG as Asker
from coinkv.rag.ask import prefilled
from coinkv.repair.deviation import CRITERIA, DeviationRepair, picked
from coinkv.repair.head import heads
from composing import compose, difference, hashes, own_logits, retrieval, token_ids
from small_corpus import QUESTIONS
from tiny_models import SUPPORTED

NUGGETS = [(2, 3, 20), (0, 20, 35), (2, 0, 2), (0, 4, 19), (1, 1, 30)]
REPAIRING = [
    CacheBlend(ratio=1),
    EPIC(tokens=10**6),
    CoinRAGCacheBlend(ratio=1),
    CoinRAGCacheBlend(ratio=1, order="rank", encode_after="nothing"),
    CoinRAGCacheBlend(ratio=1, title="shown", encoding="isolated"),
]


def context_ids(index, context, evidence):
    return list(index.bench.token_ids(context.pieces, evidence))


@pytest.mark.parametrize("method", REPAIRING, ids=lambda method: method.name)
def test_recomputing_everything_is_full_prefill_of_the_same_ids(index, method):
    evidence = retrieval(hashes(index, 3), NUGGETS)
    context = compose(method, index, evidence)
    suffix = index.bench.prompt.suffix_ids(QUESTIONS[0])
    ids = context_ids(index, context, evidence)
    measured = prefilled(index.backbone, context, suffix)
    assert difference(measured[0], own_logits(index, [*ids, *suffix], 1)[0]) < 1e-5
    with torch.no_grad():
        own = index.backbone.model(torch.tensor([ids]), use_cache=True).past_key_values
    keys = torch.stack([layer.keys[0] for layer in own.layers])
    torch.testing.assert_close(context.cache.block(0, len(ids)).keys, keys, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", [CacheBlend(ratio=0), CoinRAGCacheBlend(ratio=0), EPIC(0)])
def test_recomputing_nothing_is_the_method_beneath(index, method):
    plain = CoinRAG() if method.unit == "nugget" else StandardCAG()
    evidence = retrieval(hashes(index, 3), NUGGETS)
    suffix = index.bench.prompt.suffix_ids(QUESTIONS[0])
    bare, repaired = (compose(m, index, evidence) for m in (plain, method))
    expected = prefilled(index.backbone, bare, suffix)
    assert torch.equal(prefilled(index.backbone, repaired, suffix), expected)
    assert repaired.cache.work == bare.cache.work


def asked(index, method):
    """The context of a method after the question's pass, and the first token's logits."""
    context = compose(method, index, retrieval(hashes(index, 4)))
    suffix = index.bench.prompt.suffix_ids(QUESTIONS[0])
    return context, prefilled(index.backbone, context, suffix), len(suffix)


@pytest.mark.parametrize("gradual", [False, True])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_only_picks_are_computed_behind_the_check_layer(index, criterion, gradual):
    method = CacheBlend(ratio=0.25, criterion=criterion, check_layer=0, gradual=gradual)
    context, _, suffix = asked(index, method)
    prefix, length = len(context.pieces[0]), context.len_tokens
    layers = index.backbone.shape.layers
    computed = context.cache.layers_computed
    evidence = computed[prefix:length]
    assert (computed[:prefix] == 0).all()
    assert (computed[length:] == layers).all()
    assert evidence.min() == 1
    if gradual:
        assert (evidence == layers).sum() < (evidence >= 2).sum() < len(evidence)
    else:
        assert sorted(set(evidence.tolist())) == [1, layers]
        assert (evidence == layers).sum() == picked(len(evidence), 0.25)
    assert context.cache.work.layer_tokens == int(computed.sum())
    assert computed.sum() < layers * (length + suffix)


def test_what_repair_leaves_out_keeps_its_stored_kv_and_what_it_picks_changes(index):
    plain, _, _ = asked(index, StandardCAG())
    context, _, _ = asked(index, CacheBlend(ratio=0.3, check_layer=0))
    start, end = len(context.pieces[0]), context.len_tokens
    whole = context.cache.layers_computed[start:end] == index.backbone.shape.layers
    before, after = (c.cache.block(start, end) for c in (plain, context))
    assert torch.equal(after.values[1:, :, ~whole], before.values[1:, :, ~whole])
    assert not torch.equal(after.values[1:, :, whole], before.values[1:, :, whole])


def test_the_tokens_of_the_first_chunk_are_exact_already_and_never_picked(index):
    context, _, _ = asked(index, CacheBlend(ratio=0.4, check_layer=1))
    first = len(token_ids(index, hashes(index, 4)[0]))
    start = len(context.pieces[0])
    computed = context.cache.layers_computed[start : context.len_tokens]
    assert (computed[:first] == 2).all()
    assert (computed[first:] == index.backbone.shape.layers).any()


def test_repair_brings_the_logits_nearer_to_full_prefill(index):
    reference = asked(index, StandardRAG())[1]
    gaps = [difference(asked(index, CacheBlend(ratio=r))[1], reference) for r in (0, 0.5, 1)]
    assert gaps[2] < 1e-3 < gaps[1] < gaps[0]


def test_work_and_flops_fall_with_the_ratio(index):
    work = [asked(index, CacheBlend(ratio=r, check_layer=0))[0].cache.work for r in (1, 0.5, 0.1)]
    costs = [flops(index.backbone, each) for each in work]
    assert work[0].layer_tokens > work[1].layer_tokens > work[2].layer_tokens
    assert costs[0] > costs[1] > costs[2] > flops(index.backbone, Work())


def test_flops_are_those_of_the_models_matrices(tiny_backbone):
    backbone = tiny_backbone("llama")
    config = backbone.model.config
    cache = LiveCache.for_backbone(backbone, 10)
    fill(backbone, cache, range(10), torch.arange(10))
    hidden, inner, heads_ = config.hidden_size, config.intermediate_size, config.num_attention_heads
    kv = config.num_key_value_heads * backbone.shape.head_dim
    layer = 2 * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner)
    attention = 4 * heads_ * backbone.shape.head_dim * 100
    logits = 2 * config.vocab_size * hidden
    assert cache.work == Work(10 * config.num_hidden_layers, 100 * config.num_hidden_layers)
    expected = config.num_hidden_layers * (10 * layer + attention) + logits
    assert flops(backbone, cache.work) == expected


def random_block(backbone: Backbone, tokens: int) -> KVBlock:
    shape = (backbone.shape.layers, backbone.shape.kv_heads, tokens, backbone.shape.head_dim)
    return KVBlock(torch.randn(shape), torch.randn(shape), torch.arange(tokens))


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_picks_see_exactly_the_positions_before_them_in_every_architecture(tiny_backbone, name):
    """When the first tokens are picked, all they see has been computed: their KV is exact."""
    backbone = tiny_backbone(name)
    ids = list(range(3, 43))
    cache = LiveCache.for_backbone(backbone, 60)
    cache.append(random_block(backbone, 30))
    repair = DeviationRepair(torch.arange(30), 0.4, "first", check_layer=0)
    logits = fill(backbone, cache, ids, torch.arange(40), narrowing=repair)
    with torch.no_grad():
        own = backbone.model(torch.tensor([ids[:12]]), use_cache=True).past_key_values
    for layer, exact in enumerate(own.layers):
        torch.testing.assert_close(cache.keys[layer, :, :12], exact.keys[0], rtol=1e-4, atol=1e-5)
    assert cache.layers_computed.tolist() == (
        [backbone.shape.layers] * 12 + [1] * 18 + [backbone.shape.layers] * 10
    )
    assert torch.isfinite(logits).all()
    # the question sees what was left out as it stood in the cache: a plain pass agrees
    again = LiveCache.for_backbone(backbone, 60)
    again.append(cache.block(0, 30))
    plain = fill(backbone, again, ids[30:], torch.arange(30, 40))
    torch.testing.assert_close(plain, logits, rtol=1e-4, atol=1e-5)


def test_narrowing_takes_no_wish_for_all_logits_and_needs_layers_of_its_own(tiny_backbone):
    backbone = tiny_backbone("llama")
    repair = DeviationRepair(torch.arange(3), 0.5)
    cache = LiveCache.for_backbone(backbone, 8)
    with pytest.raises(InputError, match="last token's logits only"):
        fill(backbone, cache, [1, 2, 3], torch.arange(3), logits="all", narrowing=repair)

    class Layerless:
        config = backbone.model.config
        base_model = torch.nn.Linear(2, 2)

    with pytest.raises(UnsupportedModelError, match="decoder layers cannot be found"):
        decoder_layers(Layerless(), "it")


def test_heads_are_the_first_tokens_of_each_piece():
    assert heads([5, 2, 4], 3).tolist() == [0, 1, 2, 5, 6, 7, 8, 9]
    assert heads([5, 2], 0).tolist() == heads([], 3).tolist() == []


def test_epic_computes_the_heads_and_no_more(index):
    context, _, _ = asked(index, EPIC(tokens=4))
    layers, start = index.backbone.shape.layers, len(context.pieces[0])
    computed = context.cache.layers_computed[start : context.len_tokens].tolist()
    lengths = [len(token_ids(index, name)) for name in hashes(index, 4)]
    assert computed == [v for n in lengths for v in [layers] * 4 + [0] * (n - 4)]


@pytest.mark.parametrize(
    "wrong",
    [{"ratio": -0.1}, {"ratio": 1.5}, {"criterion": "magic"}, {"check_layer": -1}],
)
def test_repairs_that_make_no_sense_are_refused(wrong):
    for method in (CacheBlend, CoinRAGCacheBlend):
        with pytest.raises(InputError):
            method(**wrong)


def test_a_check_layer_that_the_model_lacks_is_refused_when_asked(index):
    asker = Asker(index, method=CacheBlend(check_layer=99))
    with pytest.raises(InputError, match="check_layer is 99, the model has"):
        asker.ask(QUESTIONS[0])


def test_repair_and_positions_left_as_they_were_do_not_go_together():
    with pytest.raises(InputError, match="aligned"):
        CoinRAGCacheBlend(align=False)
