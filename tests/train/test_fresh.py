"""Fresh blocks are what stored ones would be, and carry gradients to the weights that made them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

from coinkv.methods.registry import method_named
from coinkv.model.clock import StageClock
from coinkv.train.fresh import fresh_bench
from coinkv.train.objectives import trainable
from coinkv.train.passes import forward
from coinkv.train.showing import loss_sum
from training_rows import Parts, small_recipe

WAYS = [(name, {}) for name in trainable()] + [
    ("turborag", {"positions": "composite"}),
    ("coinrag", {"encoding": "isolated", "title": "shown"}),
    ("coinrag", {"order": "rank", "title": "none", "encode_after": "nothing"}),
]


def composed(bench, evidence, method):
    clock = StageClock(bench.backbone.synchronize)
    return method.compose(bench, evidence, 40, clock)


@pytest.mark.parametrize(("name", "options"), WAYS, ids=lambda part: str(part))
@pytest.mark.parametrize("model", ["small", "cohere-interleaved"])
def test_fresh_blocks_compose_to_the_context_of_stored_ones(opened, data, model, name, options):
    passages = opened(model)
    evidence = Parts.of(passages, small_recipe()).composer.evidence(data.rows[0])
    method, backbone = method_named(name, options), passages.bench.backbone
    stored = composed(passages.bench, evidence, method)
    with backbone.computing():
        bench = fresh_bench(passages.bench, backbone, checkpointing=False)
        fresh = composed(bench, evidence, method)
    assert fresh.pieces == stored.pieces
    assert fresh.live.token_ids == stored.live.token_ids
    assert torch.equal(fresh.cache.positions, stored.cache.positions)
    ready = ~torch.isin(stored.cache.positions, stored.live.positions)
    for kind in ("keys", "values"):
        ours, theirs = (getattr(c.cache, kind)[:, :, : c.cache.length] for c in (fresh, stored))
        scale = float(theirs[:, :, ready].abs().max()) if bool(ready.any()) else 1.0
        assert float((ours - theirs)[:, :, ready].abs().amax() if bool(ready.any()) else 0) < (
            2e-3 * scale
        )


def loud(learner):
    """An adapter that says something: B as a training would leave it."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in learner.weights.items():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)


def loss_of(parts, rows):
    with parts.composer.learning(rows, 0, 0, 0) as shown:
        loss = loss_sum(parts.learner.view, shown, checkpointing=parts.recipe.checkpointing)
        if loss.requires_grad:
            loss.backward()
        return float(loss.detach())


def gradients(parts, rows):
    for weight in parts.learner.weights.values():
        weight.grad = None
    loss = loss_of(parts, rows)
    return loss, {name: w.grad.clone() for name, w in parts.learner.weights.items()}


@pytest.fixture
def through(passages):
    parts = Parts.of(passages, small_recipe(through_cache=True, raft=0.0))
    loud(parts.learner)
    return parts


def test_gradients_reach_the_adapter_through_the_prefix(through, data):
    rows = data.rows[:2]
    loss, ours = gradients(through, rows)
    _, behind = gradients(through.with_recipe(through_cache=False), rows)
    assert any(not torch.allclose(ours[name], behind[name], rtol=0.05) for name in ours)
    name = next(name for name in ours if "layers.0" in name and "k_proj.lora_A" in name)
    weight, at = through.learner.weights[name], int(ours[name].abs().argmax())
    step, losses = 2e-3, []
    for sign in (1, -1):
        with torch.no_grad():
            weight.view(-1)[at] += sign * step
        losses.append(loss_of(through, rows))
        with torch.no_grad():
            weight.view(-1)[at] -= sign * step
    slope = (losses[0] - losses[1]) / (2 * step)
    assert slope == pytest.approx(float(ours[name].view(-1)[at]), rel=0.02)
    assert abs(slope - float(behind[name].view(-1)[at])) > 0.1 * abs(slope)
    assert loss == pytest.approx(sum(losses) / 2, rel=0.01)


@pytest.mark.parametrize("name", ["coinrag", "kvlink", "turborag"])
def test_checkpointing_through_the_prefix_changes_no_gradient(passages, data, name):
    found = []
    for checkpointing in (True, False):
        recipe = small_recipe(
            name, through_cache=True, raft=0.0, checkpointing=checkpointing, dropout=0.1
        )
        parts = Parts.of(passages, recipe)
        loud(parts.learner)
        found.append(gradients(parts, data.rows[:3]))
    (loss, ours), (kept, theirs) = found
    assert loss == kept
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)


def test_a_chunk_is_encoded_once_with_gradient_however_often_it_is_asked_for(
    passages, data, monkeypatch
):
    parts = Parts.of(passages, small_recipe(options={"order": "rank"}, through_cache=True, raft=0))
    evidence = parts.composer.evidence(data.rows[0])
    assert len(evidence.nuggets) > len(evidence.chunks) == 2
    encoded = []

    def counted(*args, **options):
        encoded.append(args)
        return forward(*args, **options)

    monkeypatch.setattr("coinkv.train.fresh.forward", counted)
    with ExitStack() as stack:
        stack.enter_context(parts.composer.learning(data.rows[:1], 0, 0, 0))
    assert len(encoded) == 3  # the system prompt, and each chunk
