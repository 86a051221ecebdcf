"""A pass with gradient computes what `fill` and transformers compute, and so are its gradients."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from coinkv.kv.block import KVBlock, concat
from coinkv.model.fill import LiveCache, fill
from coinkv.model.narrow import decoder_layers
from coinkv.train.passes import PassRow, checkpointed, forward

ARCHITECTURES = [
    "llama",
    "qwen2",
    "gemma2-sliding",
    "cohere-interleaved",
    "phi-partial",
    "gpt-neox",
]
IDS = torch.randint(2, 380, (60,), generator=torch.Generator().manual_seed(3)).tolist()


def empty(backbone):
    return LiveCache.for_backbone(backbone, 0).block()


def encoded(backbone, count, start=0):
    """KV of the first tokens, computed at positions from `start` on."""
    cache = LiveCache.for_backbone(backbone, count)
    fill(backbone, cache, IDS[:count], torch.arange(start, start + count), logits="none")
    return cache.block()


def close(measured, reference, tolerance=2e-5):
    torch.testing.assert_close(measured, reference, rtol=tolerance, atol=tolerance * 5)


def computed(backbone, rows, **options):
    with backbone.computing():
        return forward(backbone, rows, **options)


def situations(backbone):
    """Live tokens at the end, in the middle and in place of cached ones; slots in any order."""
    held = encoded(backbone, 20)
    mixed = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(20)
    hole = (positions >= 8) & (positions < 12)
    heads = (positions < 3) | ((positions >= 10) & (positions < 13))
    end = torch.arange(20, 26)
    yield "no cache", empty(backbone), torch.arange(6)
    yield "any order", held_at(held, mixed), end
    yield "a hole", held_at(held, positions[~hole]), torch.cat([positions[hole], end])
    yield "heads anew", held_at(held, mixed[~heads[mixed]]), torch.cat([positions[heads], end])


def held_at(block, slots):
    return KVBlock(block.keys[:, :, slots], block.values[:, :, slots], block.positions[slots])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_pass_computes_what_fill_computes(tiny_backbone, name):
    backbone = tiny_backbone(name)
    for situation, held, live in situations(backbone):
        ids = tuple(IDS[-len(live) :])
        cache = LiveCache.for_backbone(backbone, len(held) + len(live))
        cache.append(held)
        reference = fill(backbone, cache, ids, live, logits="all")
        passed = computed(backbone, [PassRow(held, ids, live)], last=len(live))
        close(passed.logits[0], reference)
        block, made = passed.block(0, live), cache.block(len(held))
        close(block.keys, made.keys)
        close(block.values, made.values)
        assert block.positions is live, situation


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_row_gets_in_a_batch_what_it_gets_alone(tiny_backbone, name):
    backbone = tiny_backbone(name)
    rows = [PassRow(held, tuple(IDS[: len(live)]), live) for _, held, live in situations(backbone)]
    rows.append(PassRow(encoded(backbone, 3, start=40), (7,), torch.tensor([50])))
    together = computed(backbone, rows, last=1)
    for number, row in enumerate(rows):
        alone = computed(backbone, [row], last=1)
        close(together.logits[number], alone.logits[0])
        ours, own = (
            passed.block(n, row.positions) for passed, n in ((together, number), (alone, 0))
        )
        close(ours.keys, own.keys)
        close(ours.values, own.values)


def test_given_vectors_take_the_place_of_tokens(tiny_backbone):
    backbone = tiny_backbone("llama")
    table = backbone.model.get_input_embeddings().weight.detach()
    nothing, live = empty(backbone), torch.arange(6)
    plain = PassRow(nothing, tuple(IDS[:6]), live)
    given = PassRow(nothing, (0, *IDS[1:6]), live, {0: table[IDS[0]]})
    other = PassRow(nothing, tuple(IDS[6:10]), torch.arange(4))
    passed = computed(backbone, [other, given, plain], last=2)
    assert torch.equal(passed.logits[1], passed.logits[2])


def test_no_logits_are_made_where_none_are_wanted(tiny_backbone):
    backbone = tiny_backbone("llama")
    row = PassRow(empty(backbone), tuple(IDS[:6]), torch.arange(6))
    assert computed(backbone, [row], last=0).logits is None


def doubled(backbone):
    """The model in float64, all its weights with gradient."""
    model = copy.deepcopy(backbone.model).double().requires_grad_(True)
    return replace(backbone, model=model)


def loss_of(logits):
    return torch.nn.functional.cross_entropy(logits[0, -4:], torch.tensor(IDS[30:34]))


def composed(backbone, **options):
    """The loss behind a prefix and a chunk encoded behind it, both with gradient."""
    prefix = passed_block(backbone, empty(backbone), 0, 10, **options)
    chunk = passed_block(backbone, prefix, 10, 25, **options)
    row = PassRow(concat([prefix, chunk]), tuple(IDS[25:33]), torch.arange(25, 33))
    return loss_of(forward(backbone, [row], last=4, **options).logits)


def passed_block(backbone, before, start, end, **options):
    positions = torch.arange(start, end)
    row = PassRow(before, tuple(IDS[start:end]), positions)
    return forward(backbone, [row], last=0, **options).block(0, positions)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gradients_through_cached_kv_are_those_of_full_prefill(tiny_backbone, name):
    backbone = doubled(tiny_backbone(name))
    loss = composed(backbone)
    plain = loss_of(backbone.model(torch.tensor([IDS[:33]])).logits)
    close(loss, plain.float(), 1e-6)
    ours = gradients(backbone.model, loss)
    for name, gradient in gradients(backbone.model, plain).items():
        close(ours[name], gradient, 1e-6)


@pytest.mark.parametrize("name", ["llama", "gpt-neox", "phi-partial"])
def test_checkpointing_changes_neither_loss_nor_gradients(tiny_backbone, name):
    backbone = doubled(tiny_backbone(name))
    loss, kept = (composed(backbone, checkpointing=on) for on in (True, False))
    assert torch.equal(loss, kept)
    ours = gradients(backbone.model, loss)
    for name, gradient in gradients(backbone.model, kept).items():
        assert torch.equal(ours[name], gradient)


@pytest.mark.parametrize(("checkpointing", "calls"), [(False, 1), (True, 2)])
def test_checkpointing_computes_every_layer_again(tiny_backbone, checkpointing, calls):
    backbone = doubled(tiny_backbone("llama"))
    layers = decoder_layers(backbone.model, "llama")
    counted = []
    for number, layer in enumerate(layers):
        layer.mlp.register_forward_pre_hook(lambda *_, number=number: counted.append(number))
    row = PassRow(empty(backbone), tuple(IDS[:8]), torch.arange(8))
    loss_of(forward(backbone, [row], last=4, checkpointing=checkpointing).logits).backward()
    assert sorted(counted) == sorted(list(range(len(layers))) * calls)


def test_checkpointing_leaves_the_layers_as_they_were(tiny_backbone):
    backbone = tiny_backbone("llama")
    layers = decoder_layers(backbone.model, "llama")
    others, before = layers[0].forward, [dict(vars(layer)) for layer in layers]
    layers[1].forward = others  # as other libraries do
    before[1] = dict(vars(layers[1]))
    try:
        with checkpointed(backbone):
            assert all(layer.forward is not others for layer in layers)
        assert [vars(layer) for layer in layers] == before
        with pytest.raises(ZeroDivisionError), checkpointed(backbone):
            raise ZeroDivisionError
        assert [vars(layer) for layer in layers] == before
    finally:
        del layers[1].forward
