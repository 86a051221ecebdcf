"""The journal: lines come back, those of a run that was cut off go, TensorBoard has the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coinkv.errors import InputError, StorageError
from coinkv.train.journal import JOURNAL, TENSORBOARD, Journal, read, tensorboard_writer

STEP = {"epoch": 0, "loss": 2.5, "learning_rate": 3e-4, "rows": 8}
DEV = {"loss": 2.0, "f1": 10.0, "exact_match": 4.0}


def written(folder, done, *, to, writer=None, loss=2.5):
    """A journal that goes on behind `done` steps, evaluated before the first and every second."""
    journal = Journal(folder, done, writer)
    if not done:
        journal.write("dev", {"step": 0, **DEV})
    for step in range(done + 1, to + 1):
        journal.write("step", {"step": step, **STEP, "loss": loss})
        if step % 2 == 0:
            journal.write("dev", {"step": step, **DEV})


def kinds(folder):
    return [(line["kind"], line["step"]) for line in read(folder)]


def test_lines_come_back_as_they_were_written_in_their_order(tmp_path):
    written(tmp_path, 0, to=2)
    assert kinds(tmp_path) == [("dev", 0), ("step", 1), ("step", 2), ("dev", 2)]
    assert list(read(tmp_path))[1] == {"kind": "step", "step": 1, **STEP}


def test_a_run_that_goes_on_drops_what_it_does_again(tmp_path):
    written(tmp_path, 0, to=5)
    written(tmp_path, 2, to=3, loss=1.5)
    assert kinds(tmp_path) == [("dev", 0), ("step", 1), ("step", 2), ("dev", 2), ("step", 3)]
    assert [line["loss"] for line in read(tmp_path) if line["kind"] == "step"] == [2.5, 2.5, 1.5]


def test_a_run_that_begins_again_has_one_evaluation_before_its_first_step(tmp_path):
    written(tmp_path, 0, to=1)
    written(tmp_path, 0, to=1)
    assert kinds(tmp_path) == [("dev", 0), ("step", 1)]


def test_lines_that_were_cut_off_or_damaged_are_left_out(tmp_path):
    written(tmp_path, 0, to=2)
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'\xff\xfe\n3\n{"step": "3"}\n' + b"[" * 100_000 + b'\n{"kind": "step", "st')
    assert kinds(tmp_path) == [("dev", 0), ("step", 1), ("step", 2), ("dev", 2)]


def test_where_there_is_no_journal_there_are_no_lines(tmp_path):
    assert list(read(tmp_path / "nowhere")) == []


def test_a_journal_that_cannot_be_read_or_written_is_a_storage_error(tmp_path):
    (tmp_path / "run" / JOURNAL).mkdir(parents=True)
    with pytest.raises(StorageError, match=r"journal\.jsonl: cannot be read"):
        list(read(tmp_path / "run"))
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/journal\.jsonl: cannot be written"):
        Journal(tmp_path / "file", 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_a_storage_error(tmp_path):
    journal = Journal(tmp_path, 0)
    (tmp_path / JOURNAL).unlink()
    (tmp_path / JOURNAL).symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left"):
        journal.write("step", {"step": 1, **STEP})


def events(folder):
    """Steps and values by tag, as TensorBoard's own reader finds them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / TENSORBOARD), {"scalars": 0})
    reader.Reload()
    tags = reader.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in tags}


def test_tensorboard_has_the_numbers_of_each_line_as_soon_as_it_is_written(tmp_path):
    pytest.importorskip("tensorboard")
    written(tmp_path, 0, to=2, writer=tensorboard_writer(tmp_path))  # and is never closed
    found = events(tmp_path)
    assert set(found) == {f"step/{name}" for name in STEP} | {f"dev/{name}" for name in DEV}
    assert found["step/loss"] == [(1, 2.5), (2, 2.5)]
    assert found["dev/f1"] == [(0, 10.0), (2, 10.0)]


@pytest.mark.parametrize("done", [0, 2])
def test_tensorboard_shows_no_step_twice_after_a_run_was_cut_off(tmp_path, done):
    pytest.importorskip("tensorboard")
    written(tmp_path, 0, to=5, writer=tensorboard_writer(tmp_path))
    written(tmp_path, done, to=3, writer=tensorboard_writer(tmp_path), loss=1.5)
    found = events(tmp_path)
    kept = [(step, 2.5 if step <= done else 1.5) for step in (1, 2, 3)]
    assert found["step/loss"] == kept
    assert [step for step, _ in found["dev/f1"]] == [0, 2]


def test_without_tensorboard_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install 'coinkv\[tensorboard\]'"):
        tensorboard_writer(tmp_path)


def test_a_file_in_the_place_of_tensorboards_folder_is_a_storage_error(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / TENSORBOARD).touch()
    with pytest.raises(StorageError, match="tensorboard: cannot be written"):
        tensorboard_writer(tmp_path)
