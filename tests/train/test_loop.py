"""A run that was cut off comes to what an uninterrupted one comes to, to the bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coinkv.errors import InputError, StorageError, TrainingError
from coinkv.train import loop as looping
from coinkv.train.evaluation import Sums
from coinkv.train.loop import Watch
from coinkv.train.sealed import sealed, unsealed
from training_rows import (
    Parts,
    journal,
    losses,
    resumable_recipe,
    resumable_watch,
    small_recipe,
)

HERE = Path(__file__).parent


class CutOffError(Exception):
    """Stands for a run's end by other hands."""


def weights_of(parts):
    return {name: weight.detach().clone() for name, weight in parts.learner.parameters.items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one.keys() | other.keys())


def timeless(learned):
    """What a run came to, without what the clock says."""
    first, best = (replace(scores, seconds=0.0) for scores in (learned.first, learned.best))
    return replace(learned, seconds=0.0, first=first, best=best)


@pytest.fixture(scope="module")
def whole(passages, data, tmp_path_factory):
    """What an uninterrupted run came to: journal, weights, result."""
    folder = tmp_path_factory.mktemp("whole")
    parts = Parts.of(passages, resumable_recipe())
    learned = parts.run(folder, data, resumable_watch())
    assert learned.steps == 16
    return journal(folder), weights_of(parts), timeless(learned)


def cut_off(passages, data, folder, stage, at):
    def tell(told, done, of):
        if (told, done) == (stage, at):
            raise CutOffError

    with pytest.raises(CutOffError):
        Parts.of(passages, resumable_recipe()).run(folder, data, resumable_watch(), tell)


def finished(passages, data, folder):
    parts = Parts.of(passages, resumable_recipe())
    learned = parts.run(folder, data, resumable_watch())
    return journal(folder), weights_of(parts), timeless(learned)


def require_equal(found, whole):
    assert found[0] == whole[0]
    assert same(found[1], whole[1])
    assert found[2] == whole[2]


@pytest.mark.parametrize(
    "cuts",
    [
        [("evaluating", 8)],
        [("training", 0)],
        [("training", 1)],
        [("training", 5), ("training", 6), ("training", 9)],
        [("training", 16)],
    ],
    ids=str,
)
def test_a_run_cut_off_comes_to_the_same(passages, data, tmp_path, whole, cuts):
    for stage, at in cuts:
        cut_off(passages, data, tmp_path, stage, at)
    require_equal(finished(passages, data, tmp_path), whole)


def test_a_run_killed_comes_to_the_same(passages, data, tmp_path, whole, small_model, rows_file):
    arguments = [small_model, rows_file, tmp_path / "cache", tmp_path / "run", "7"]
    ended = subprocess.run(
        [sys.executable, HERE / "training_process.py", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert len(losses(tmp_path / "run")) == 7
    require_equal(finished(passages, data, tmp_path / "run"), whole)


def test_two_processes_learn_what_one_learns(tmp_path, whole, small_model, rows_file):
    arguments = [small_model, rows_file, tmp_path / "cache", tmp_path / "run", "0"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [sys.executable, *launch, HERE / "training_process.py", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    lines = journal(tmp_path / "run")
    assert len(lines) == len(whole[0])
    for line, expected in zip(lines, whole[0], strict=True):
        assert line.pop("kind") == expected["kind"]
        numbers = {name: value for name, value in expected.items() if name != "kind"}
        assert line == pytest.approx(numbers, rel=1e-3, abs=1e-4)


def test_a_finished_run_is_only_read_again(passages, data, tmp_path, whole):
    require_equal(finished(passages, data, tmp_path), whole)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    require_equal(finished(passages, data, tmp_path), whole)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert {path for path in before if "checkpoints" in str(path)} <= after.keys()
    assert all(after[p] == at for p, at in before.items() if "checkpoints" in str(p))


def test_a_checkpoint_is_written_by_its_step_and_the_end(passages, data, tmp_path):
    kept = []
    parts = Parts.of(passages, small_recipe(steps=5))
    without = replace(data, held_out=())

    def tell(stage, done, of):
        kept.append(sorted(path.name for path in (tmp_path / "checkpoints").glob("*")))

    learned = parts.run(tmp_path, without, Watch(checkpoint_every=2), tell)
    assert kept == [
        [],
        [],
        ["checkpoint-2"],
        ["checkpoint-2"],
        ["checkpoint-4"],
        ["checkpoint-5"],
    ]
    assert (learned.first, learned.best, learned.best_step) == (None, None, 5)


def scripted(monkeypatch, folder, scores):
    """Evaluations that say what a test wants, by the steps done."""

    def dev_sums(composer, rows, *, answer_tokens, tell):
        f1, loss = scores[len(losses(folder))]
        return Sums(loss, 1, f1, 0.0, 1)

    monkeypatch.setattr(looping, "dev_sums", dev_sums)


SCORES = {0: (1, 9.0), 2: (5, 3.0), 4: (5, 2.0), 6: (5, 2.0), 8: (4, 1.0), 10: (9, 0.1)}


@pytest.mark.parametrize(
    ("patience", "steps", "best", "early"),
    [(None, 10, 10, False), (3, 10, 10, False), (2, 8, 4, True)],
)
@pytest.mark.parametrize("cut", [None, 5])
def test_a_run_ends_when_it_has_got_no_better_for_long_enough(
    passages, data, tmp_path, monkeypatch, patience, steps, best, early, cut
):
    scripted(monkeypatch, tmp_path, SCORES)
    recipe = small_recipe(steps=10, micro_batch=1, raft=0)
    watch = Watch(checkpoint_every=3, evaluate_every=2, patience=patience)
    at_step = {}
    parts = Parts.of(passages, recipe)

    def tell(stage, done, of):
        at_step[done] = weights_of(parts)
        if cut is not None and done == cut < steps:
            raise CutOffError

    if cut and cut < steps:
        with pytest.raises(CutOffError):
            parts.run(tmp_path, data, watch, tell)
        parts, cut = Parts.of(passages, recipe), None
    learned = parts.run(tmp_path, data, watch, tell)
    assert (learned.steps, learned.best_step, learned.stopped_early) == (steps, best, early)
    assert (learned.best.f1, learned.best.loss) == SCORES[best]
    assert learned.first.f1 == 1
    assert same(weights_of(parts), at_step[best])
    again = Parts.of(passages, recipe)
    assert timeless(again.run(tmp_path, data, watch)) == timeless(learned)
    assert same(weights_of(again), at_step[best])


def test_the_best_weights_are_those_of_the_checkpoint_gone_on_from(
    passages, data, tmp_path, monkeypatch
):
    recipe, watch = (
        small_recipe(steps=6, micro_batch=1, raft=0),
        Watch(checkpoint_every=9, evaluate_every=2),
    )
    scripted(monkeypatch, tmp_path, {0: (1, 1.0), 2: (5, 1.0), 4: (3, 1.0), 6: (3, 1.0)})
    at_step = {}
    parts = Parts.of(passages, recipe)

    def tell(stage, done, of):
        at_step[done] = weights_of(parts)

    saved = looping.save

    def dies(folder, step, learner, optimizer, facts):
        if (folder.name, step) == ("best", 2):
            raise CutOffError
        saved(folder, step, learner, optimizer, facts)

    monkeypatch.setattr(looping, "save", dies)
    with pytest.raises(CutOffError):
        parts.run(tmp_path, data, watch, tell)
    monkeypatch.setattr(looping, "save", saved)
    parts = Parts.of(passages, recipe)
    learned = parts.run(tmp_path, data, watch, tell)
    assert learned.best_step == 2
    assert same(weights_of(parts), at_step[2])


def test_the_last_weights_come_out_where_they_are_wanted(passages, data, tmp_path, monkeypatch):
    scripted(monkeypatch, tmp_path, {0: (1, 1.0), 2: (5, 1.0), 4: (3, 1.0)})
    parts = Parts.of(passages, small_recipe(steps=4, micro_batch=1, raft=0))
    learned = parts.run(tmp_path, data, Watch(evaluate_every=2, keep="last"), lambda *_: None)
    assert (learned.best_step, learned.best.f1) == (4, 3)


def test_patience_does_not_go_with_the_last_weights():
    with pytest.raises(InputError, match="patience"):
        Watch(patience=1, keep="last")
    with pytest.raises(InputError, match="keep is 'first'"):
        Watch(keep="first")


def test_best_weights_that_are_gone_are_an_error(passages, data, tmp_path, monkeypatch):
    scripted(monkeypatch, tmp_path, {0: (5, 1.0), 2: (1, 1.0)})
    recipe = small_recipe(steps=2)
    Parts.of(passages, recipe).run(tmp_path, data)
    (tmp_path / "best" / "checkpoint-0").rename(tmp_path / "best" / "checkpoint-1.part")
    with pytest.raises(StorageError, match="best evaluation, at step 0"):
        Parts.of(passages, recipe).run(tmp_path, data)


def test_a_checkpoint_with_other_facts_is_an_error(passages, data, tmp_path):
    recipe = small_recipe(steps=1)
    Parts.of(passages, recipe).run(tmp_path, replace(data, held_out=()))
    state = tmp_path / "checkpoints" / "checkpoint-1" / "state.json"
    kept = unsealed(state.read_text(), state.parent)
    kept["facts"]["rows_gone"] = kept["facts"].pop("rows_seen")
    state.write_text(sealed(kept, state.parent, ()))
    with pytest.raises(StorageError, match="another version"):
        Parts.of(passages, recipe).run(tmp_path, data)


def test_a_run_that_diverges_ends_and_keeps_its_last_good_checkpoint(
    passages, data, tmp_path, monkeypatch
):
    def rate(step, steps, recipe):
        return 1e-3 if step < 4 else 1e30

    monkeypatch.setattr(looping, "learning_rate", rate)
    recipe = small_recipe(steps=8)
    parts = Parts.of(passages, recipe)
    with pytest.raises(TrainingError, match="loss of step 6 is nan") as refused:
        parts.run(tmp_path, replace(data, held_out=()), Watch(checkpoint_every=2))
    assert "\n" not in str(refused.value)
    assert len(losses(tmp_path)) == 5
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-4"]
    monkeypatch.undo()
    again = Parts.of(passages, recipe)
    again.run(tmp_path, replace(data, held_out=()))
    assert len(losses(tmp_path)) == 8


def test_a_full_disk_ends_a_run_that_goes_on_later(passages, data, tmp_path, monkeypatch, whole):
    def full(*_):
        raise OSError(28, "No space left on device")

    def tell(stage, done, of):
        if done == 5:
            monkeypatch.setattr("coinkv.train.checkpoint.save_file", full)

    with pytest.raises(StorageError, match="No space left"):
        Parts.of(passages, resumable_recipe()).run(tmp_path, data, resumable_watch(), tell)
    monkeypatch.undo()
    require_equal(finished(passages, data, tmp_path), whole)


def test_a_run_of_which_no_row_fits_is_an_error(passages, data, tmp_path):
    parts = Parts.of(passages, small_recipe(max_length=5, epochs=9))
    with pytest.raises(TrainingError, match="none of 64 rows fits into 5 tokens"):
        parts.run(tmp_path, replace(data, held_out=()))
    parts = Parts.of(passages, small_recipe(max_length=5, steps=1))
    with pytest.raises(TrainingError, match="none of 4 rows"):
        parts.run(tmp_path / "short", replace(data, held_out=()))


def test_development_rows_of_which_none_fits_are_an_error(passages, data, tmp_path):
    parts = Parts.of(passages, small_recipe(steps=1))
    with pytest.raises(TrainingError, match="none of 8 development rows fits into 500 tokens"):
        parts.run(tmp_path, data, Watch(answer_tokens=480))


def test_steps_count_what_was_learned_from(passages, data, tmp_path):
    parts = Parts.of(passages, small_recipe("block_attention", steps=2))
    learned = parts.run(tmp_path, replace(data, held_out=()))
    lines = [line for line in journal(tmp_path) if line["kind"] == "step"]
    assert [line["rows"] for line in lines] == [4, 4]
    assert sum(line["answer_tokens"] for line in lines) == learned.answer_tokens > 0
    assert [line["step"] for line in lines] == [1, 2]


@pytest.mark.parametrize(
    "name", ["checkpoint_every", "evaluate_every", "patience", "answer_tokens"]
)
def test_a_watch_of_nothing_is_refused(name):
    with pytest.raises(InputError, match=name):
        Watch(**{name: 0})
