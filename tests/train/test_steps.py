"""A step learns the mean loss of its answers' tokens, however its rows are cut into batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coinkv.errors import TrainingError
from coinkv.model.load import load
from coinkv.rag.options import BuildOptions
from coinkv.train.passages import Passages
from coinkv.train.processes import Processes
from coinkv.train.showing import answer_ids, loss_sum
from coinkv.train.steps import Stepper
from training_rows import Parts, small_recipe


def step_of(parts, micro_batches, rate=1.0):
    """What a step of plain gradient descent comes to: sum, norm and the change of each weight."""
    parameters = parts.learner.parameters
    before = {name: weight.detach().clone() for name, weight in parameters.items()}
    optimizer = torch.optim.SGD(parameters.values(), lr=rate)
    stepper = Stepper(Path("run"), parts.composer, Processes(torch.device("cpu")), optimizer)
    learned, norm = stepper.step(micro_batches, epoch=0, step=0, rate=rate)
    changes = {name: before[name] - weight.detach() for name, weight in parameters.items()}
    with torch.no_grad():
        for name, weight in parameters.items():
            weight.copy_(before[name])
    return learned, norm, changes


def parts_of(passages, objective="coinrag", **options):
    return Parts.of(passages, small_recipe(objective, raft=0.0, clip=1e6, **options))


@pytest.mark.parametrize("objective", ["coinrag", "block_attention", "kvlink"])
@pytest.mark.parametrize("through_cache", [False, True])
def test_micro_batches_change_neither_loss_nor_gradient(passages, data, objective, through_cache):
    parts, rows = parts_of(passages, objective, through_cache=through_cache), data.rows[:8]
    one = step_of(parts, [tuple(rows)])
    each = step_of(parts, [(row,) for row in rows])
    assert one[0].tokens == each[0].tokens
    assert one[0].rows == each[0].rows == 8
    assert one[0].loss == pytest.approx(each[0].loss, rel=1e-5)
    assert one[1] == pytest.approx(each[1], rel=1e-4)
    for name, change in one[2].items():
        torch.testing.assert_close(change, each[2][name], rtol=1e-3, atol=1e-5)
    assert all(bool(change.any()) for name, change in one[2].items() if "lora_B" in name)


def test_a_step_follows_the_gradient_of_the_mean(passages, data):
    parts, rows = parts_of(passages), data.rows[:2]
    learned, norm, changes = step_of(parts, [tuple(rows)], rate=0.5)
    tokens = sum(len(answer_ids(passages.bench.backbone, row.row)) for row in rows)
    assert learned.tokens == tokens
    with parts.composer.learning(rows, 0, 0, 0) as shown:
        loss = loss_sum(parts.learner.view, shown, checkpointing=False) / tokens
        loss.backward()
    assert learned.loss / tokens == pytest.approx(float(loss), rel=1e-6)
    gradients = {name: w.grad for name, w in parts.learner.weights.items()}
    total = torch.stack([g.norm() for g in gradients.values()]).norm()
    assert norm == pytest.approx(float(total), rel=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(changes[name], 0.5 * gradient, rtol=1e-3, atol=1e-6)


def test_the_gradient_is_clipped(passages, data):
    parts = parts_of(passages).with_recipe(clip=0.01)
    _, norm, changes = step_of(parts, [tuple(data.rows[:2])])
    assert norm > 0.01
    total = torch.stack([change.norm() for change in changes.values()]).norm()
    assert float(total) == pytest.approx(0.01, rel=1e-3)


def test_rows_left_out_do_not_dilute_the_others(passages, data):
    parts = parts_of(passages, "turborag")
    rows = sorted(data.rows, key=lambda row: shortest(parts, row))
    few, many = rows[:2], [*rows[:2], *rows[-2:]]
    parts = parts.with_recipe(max_length=shortest(parts, rows[1]))
    assert shortest(parts, rows[-2]) > parts.recipe.max_length
    alone, among = step_of(parts, [tuple(few)]), step_of(parts, [tuple(many)])
    assert among[0] == alone[0]
    assert among[0].rows == 2
    for name, change in alone[2].items():
        assert torch.equal(change, among[2][name])


def shortest(parts, row):
    """Tokens of a row with its best chunk alone."""
    bench = parts.passages.bench
    chunk = parts.composer.evidence(row).chunks[0].content_hash
    return (
        len(bench.prompt.prefix_ids)
        + len(bench.blocks.tokens_of(chunk).token_ids)
        + len(bench.prompt.suffix_ids(row.row.question))
        + len(answer_ids(bench.backbone, row.row))
    )


@pytest.mark.parametrize("through_cache", [False, True])
def test_passes_in_half_precision_learn_about_the_same(
    passages, own_model, data, monkeypatch, through_cache
):
    recipe = small_recipe(weights="all", through_cache=through_cache, raft=0.0, clip=1e6)
    parts, rows = Parts.of(passages, recipe, own_model), [tuple(data.rows[:4])]
    whole = step_of(parts, rows)
    half = torch.autocast("cpu", torch.bfloat16)
    monkeypatch.setattr(Processes, "autocast", lambda self, **_: half)
    halved = step_of(parts, rows)
    assert halved[0].loss != whole[0].loss
    assert halved[0].loss == pytest.approx(whole[0].loss, rel=0.05)
    for name, change in whole[2].items():
        assert alike(halved[2][name], change) > 0.9, name


@pytest.mark.parametrize("through_cache", [False, True])
def test_an_adapter_of_a_bfloat16_model_learns_about_the_same(
    passages, small_model, data, tmp_path, through_cache
):
    model = load(str(small_model), device="cpu", dtype="bfloat16")
    recipe = small_recipe("kvlink", through_cache=through_cache, raft=0.0, clip=1e6)
    rows = [tuple(data.rows[:4])]
    whole = step_of(Parts.of(passages, recipe), rows)
    with Passages.open(tmp_path, BuildOptions(model=model, chunk_tokens=64)) as its_passages:
        halved = step_of(Parts.of(its_passages, recipe), rows)
    assert halved[0].loss == pytest.approx(whole[0].loss, rel=0.05)
    for name, change in whole[2].items():
        if bool(change.any()):
            assert alike(halved[2][name], change) > 0.8, name


def alike(one, other):
    """Cosine similarity of two weights' changes."""
    return float(torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0))


def test_a_step_of_which_no_row_fits_changes_nothing(passages, data):
    parts = parts_of(passages).with_recipe(max_length=5)
    learned, norm, changes = step_of(parts, [tuple(data.rows[:2])])
    assert (learned.loss, learned.tokens, learned.rows, norm) == (0.0, 0, 0, 0.0)
    assert not any(bool(change.any()) for change in changes.values())


def test_a_loss_that_is_no_number_changes_nothing(passages, data):
    parts = parts_of(passages)
    name, weight = next(iter(parts.learner.weights.items()))
    with torch.no_grad():
        weight.fill_(float("nan"))
    other = next(w for n, w in parts.learner.weights.items() if n != name)
    before = other.detach().clone()
    with pytest.raises(TrainingError, match="loss of step 1 is nan"):
        step_of(parts, [tuple(data.rows[:2])])
    assert torch.equal(other, before)
    assert all(weight.grad is None for weight in parts.learner.weights.values())
