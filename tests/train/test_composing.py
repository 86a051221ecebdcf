"""What is shown comes from the store or from the weights as they are; noise goes by the epoch."""

from __future__ import annotations

import pytest
import torch

from coinkv.model.load import load
from coinkv.rag.options import BuildOptions
from coinkv.train.evidence import noise_of
from coinkv.train.passages import Passages
from coinkv.train.showing import loss_sum
from training_rows import Parts, small_recipe


@pytest.mark.parametrize(
    ("weights", "through_cache", "stored"),
    [("lora", False, True), ("lora", True, False), ("all", False, False), ("all", True, False)],
)
def test_prefixes_come_from_the_store_only_where_weights_behind_them_stay(
    passages, own_model, data, weights, through_cache, stored
):
    recipe = small_recipe(weights=weights, through_cache=through_cache, raft=0)
    parts = Parts.of(passages, recipe, own_model)
    assert parts.composer.stored is stored
    with parts.composer.learning(data.rows[:1], 0, 0, 0) as shown:
        cached = shown[0].row.cached
        assert cached.keys.requires_grad is through_cache
        loss_sum(parts.learner.view, shown, checkpointing=False).backward()


def test_without_gradient_a_prefix_still_follows_the_weights(passages, own_model, data):
    recipe = small_recipe(weights="all", raft=0)
    parts = Parts.of(passages, recipe, own_model)

    def prefix():
        with parts.composer.learning(data.rows[:1], 0, 0, 0) as shown:
            return shown[0].row.cached.keys

    before = prefix()
    with torch.no_grad():
        for weight in own_model.model.parameters():
            weight.mul_(1.1)
    assert not torch.allclose(prefix(), before)


def test_noise_changes_with_the_epoch_and_never_reaches_development_rows(passages, data):
    parts = Parts.of(passages, small_recipe(raft=0.5))
    row = data.rows[0]
    noises = [noise_of("/".join(row.key), epoch, 0, 0.5) for epoch in range(8)]
    assert len(set(noises)) == 3
    found = [parts.composer.evidence(row, epoch) for epoch in range(8)]
    plain = parts.composer.evidence(row)
    for noise, evidence in zip(noises, found, strict=True):
        assert (evidence == plain) is (noise == "none")


def test_evidence_is_looked_up_once(passages, data, monkeypatch):
    parts = Parts.of(passages, small_recipe(raft=0))
    first = parts.composer.evidence(data.rows[0], 0)
    monkeypatch.setattr("coinkv.train.composing.retrieved", None)
    assert parts.composer.evidence(data.rows[0], 1) is first


def kept(folder, small_model, rows, *, half):
    """Everything a cache keeps of rows: vectors and blocks."""
    model = load(str(small_model), device="cpu")
    with Passages.open(folder, BuildOptions(model=model, chunk_tokens=64)) as passages:
        parts = Parts.of(passages, small_recipe(raft=0))
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=half),
            parts.composer.learning(rows, 0, 0, 0) as shown,
        ):
            loss_sum(parts.learner.view, shown, checkpointing=False)
        store, catalogue = passages.bench.blocks.store, passages.catalogue
        keys = list(store.keys())
        blocks = {key: store.get(key, None).kv for key in keys}
        hashes = {c.content_hash for row in rows for c in parts.composer.evidence(row).chunks}
        return blocks, {name: catalogue.content(name).chunk_vector for name in hashes}


def test_passes_in_half_precision_keep_nothing_in_half_precision(tmp_path, small_model, data):
    rows = data.rows[:2]
    (blocks, vectors), (half_blocks, half_vectors) = (
        kept(tmp_path / str(half), small_model, rows, half=half) for half in (False, True)
    )
    assert len(blocks) >= 3
    assert blocks.keys() == half_blocks.keys()
    assert all(torch.equal(blocks[key], half_blocks[key]) for key in blocks)
    assert all((vectors[name] == half_vectors[name]).all() for name in vectors)


@pytest.mark.parametrize("through_cache", [False, True])
def test_a_bench_composes_without_gradient_and_leaves_the_base_in_place(
    passages, data, through_cache
):
    parts = Parts.of(passages, small_recipe(through_cache=through_cache))
    with parts.composer.bench() as bench:
        row = data.rows[0]
        found = parts.composer.shower.fitting(
            bench, parts.objective.method, row.row, parts.composer.evidence(row), 8
        )
    assert not found.cache.keys.requires_grad
    layers = parts.learner.view.adapters["learning"]
    assert all(layer.siblings[layer.name] is layer.plain for layer in layers)
