"""A checkpoint appears whole or not at all, and one that is no good says so and changes nothing."""

from __future__ import annotations

import errno
import json
import shutil

import pytest
import torch
from safetensors import SafetensorError

from coinkv.errors import InputError, StorageError
from coinkv.train import checkpoint
from coinkv.train.checkpoint import load, save
from coinkv.train.learner import Learner
from coinkv.train.objectives import objective_named
from coinkv.train.optimising import optimizer_of
from training_rows import small_recipe


def begun(backbone, objective="kvlink", **options):
    """A learner and its optimizer."""
    recipe = small_recipe(objective, **options)
    learner = Learner.of(backbone, recipe, objective_named(objective, recipe.options))
    return learner, optimizer_of(learner.parameters, recipe)


def take_steps(learner, optimizer, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for weight in learner.parameters.values():
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()


def weights_of(learner):
    return {name: weight.detach().clone() for name, weight in learner.parameters.items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one.keys() | other.keys())


@pytest.fixture
def kept(passages, tmp_path):
    """A folder with a checkpoint of step 3, and the weights in it."""
    learner, optimizer = begun(passages.bench.backbone)
    take_steps(learner, optimizer, 3)
    save(tmp_path, 3, learner, optimizer, {"step": 3, "best": None})
    return tmp_path, weights_of(learner)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_learner_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(passages, tmp_path):
    learner, optimizer = begun(passages.bench.backbone, weight_decay=0.1)
    take_steps(learner, optimizer, 3)
    save(tmp_path, 3, learner, optimizer, {"step": 3})
    take_steps(learner, optimizer, 2, seed=1)
    other, its_optimizer = begun(passages.bench.backbone, seed=9, weight_decay=0.1)
    assert load(tmp_path, other, its_optimizer) == {"step": 3}
    take_steps(other, its_optimizer, 2, seed=1)
    assert same(weights_of(learner), weights_of(other))


def test_nothing_kept_is_nothing_taken(passages, tmp_path):
    learner, optimizer = begun(passages.bench.backbone)
    assert load(tmp_path / "nowhere", learner, optimizer) is None
    (tmp_path / "checkpoint-9.abc.part").mkdir()
    (tmp_path / "checkpoint-old").mkdir()
    assert load(tmp_path, learner, optimizer) is None


def test_weights_can_be_taken_without_moments(passages, tmp_path):
    learner, optimizer = begun(passages.bench.backbone)
    take_steps(learner, optimizer, 1)
    save(tmp_path, 1, learner, None, {})
    other, its_optimizer = begun(passages.bench.backbone, seed=9)
    load(tmp_path, other, None)
    assert same(weights_of(learner), weights_of(other))
    assert not its_optimizer.state_dict()["state"]


def test_a_newer_checkpoint_takes_the_place_of_older_ones_and_of_leftovers(kept, passages):
    folder, _ = kept
    (folder / "checkpoint-7.0123.part").mkdir()
    learner, optimizer = begun(passages.bench.backbone)
    take_steps(learner, optimizer, 1)
    save(folder, 5, learner, optimizer, {"step": 5})
    assert names(folder) == ["checkpoint-5"]


def test_a_writer_that_died_leaves_the_checkpoint_before(kept, passages):
    folder, weights = kept
    part = folder / "checkpoint-5.0123.part"
    shutil.copytree(folder / "checkpoint-3", part)
    (part / "weights.safetensors").write_bytes(b"half")
    learner, optimizer = begun(passages.bench.backbone)
    assert load(folder, learner, optimizer)["step"] == 3
    assert same(weights_of(learner), weights)


def test_of_two_whole_checkpoints_the_newer_counts_by_number(kept, passages):
    folder, _ = kept
    learner, optimizer = begun(passages.bench.backbone)
    shutil.copytree(folder / "checkpoint-3", folder / "kept")
    save(folder, 10, learner, optimizer, {"step": 10})
    (folder / "kept").rename(folder / "checkpoint-3")
    assert load(folder, learner, optimizer) == {"step": 10}


def test_an_equal_step_is_replaced(kept, passages):
    folder, weights = kept
    learner, optimizer = begun(passages.bench.backbone, seed=9)
    save(folder, 3, learner, optimizer, {"step": 3, "best": "new"})
    assert names(folder) == ["checkpoint-3"]
    assert load(folder, learner, optimizer)["best"] == "new"
    assert not same(weights_of(learner), weights)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("No space left")]
)
@pytest.mark.parametrize("step", [3, 5])
def test_a_full_disk_keeps_the_checkpoint_before(kept, passages, monkeypatch, error, step):
    folder, weights = kept
    learner, optimizer = begun(passages.bench.backbone)

    def full(tensors, path):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(StorageError, match="No space left") as refused:
        save(folder, step, learner, optimizer, {})
    assert "\n" not in str(refused.value)
    assert names(folder) == ["checkpoint-3"]
    monkeypatch.undo()
    assert load(folder, learner, optimizer)["step"] == 3
    assert same(weights_of(learner), weights)


def test_a_folder_that_cannot_be_written_is_named(passages, tmp_path):
    learner, optimizer = begun(passages.bench.backbone)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file/checkpoints"):
        save(tmp_path / "file" / "checkpoints", 1, learner, optimizer, {})


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "other", "deep", "one bit"])
def test_a_damaged_checkpoint_says_so_and_changes_nothing(kept, passages, name, damage):
    folder, _ = kept
    path = folder / "checkpoint-3" / name
    content = path.read_bytes()
    damaged = {
        "cut": content[: len(content) // 2],
        "other": b"[1, 2]",
        "deep": b"[" * 100_000,
        "one bit": content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    }
    path.unlink() if damage == "gone" else path.write_bytes(damaged[damage])
    learner, optimizer = begun(passages.bench.backbone)
    before = weights_of(learner)
    with pytest.raises(StorageError, match="damaged") as refused:
        load(folder, learner, optimizer)
    assert "\n" not in str(refused.value)
    assert same(weights_of(learner), before)
    assert names(folder) == ["checkpoint-3"]


@pytest.mark.parametrize(
    ("objective", "options"),
    [("kvlink", {"rank": 2}), ("coinrag", {}), ("kvlink", {"k_chunks": 3})],
)
def test_a_checkpoint_of_another_recipe_is_refused_and_kept(kept, passages, objective, options):
    folder, _ = kept
    learner, optimizer = begun(passages.bench.backbone, objective, **options)
    before = weights_of(learner)
    with pytest.raises(InputError, match="do not belong"):
        load(folder, learner, optimizer)
    assert same(weights_of(learner), before)
    assert names(folder) == ["checkpoint-3"]


@pytest.mark.parametrize(
    "facts", [{"step": -1}, {"step": 10**30}, {"step": "3"}, {}, {"step": 3, "ended": "x"}]
)
def test_a_state_that_was_not_kept_is_damage(kept, passages, facts):
    folder, _ = kept
    path = folder / "checkpoint-3" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "facts": facts}))
    learner, optimizer = begun(passages.bench.backbone)
    with pytest.raises(StorageError, match=r"damaged .*; remove the folder checkpoints"):
        load(folder, learner, optimizer)


def test_a_file_in_the_place_of_checkpoints_is_said(passages, tmp_path):
    (tmp_path / "checkpoints").write_text("")
    learner, optimizer = begun(passages.bench.backbone)
    with pytest.raises(StorageError, match="something else has its name"):
        save(tmp_path / "checkpoints", 1, learner, optimizer, {})
