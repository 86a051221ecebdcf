"""A run comes to the same end however often it is cut off, and keeps to its own folder."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
from filelock import FileLock

from coinkv.errors import InputError, StorageError, TrainingError
from coinkv.train import results
from coinkv.train.data import Source
from coinkv.train.folder import RunFolder
from coinkv.train.journal import read
from coinkv.train.loop import Loop, Watch
from coinkv.train.options import DevSet, TrainingOptions
from coinkv.train.recipe import Recipe
from coinkv.train.run import train
from coinkv.train.sealed import unsealed
from small_corpus import contents_of
from training_rows import made_up_rows, write_rows

RECIPE = Recipe(rank=2, micro_batch=4, accumulation=2, max_length=400, k_chunks=2, k_nuggets=3)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def options(rows_file, small_model, cache):
    """A run of 3 steps on 24 rows and 4 development rows."""
    return TrainingOptions(
        [Source(str(rows_file))],
        RECIPE,
        Watch(checkpoint_every=1, answer_tokens=3),
        rows=24,
        held_out=4,
        cache=cache,
        chunk_tokens=64,
        model=str(small_model),
        device="cpu",
    )


def silent(stage, done, of):
    """Progress nobody looks at."""


@pytest.fixture(scope="module")
def finished(options, tmp_path_factory):
    return train(tmp_path_factory.mktemp("finished") / "run", options, silent)


@pytest.fixture
def done(finished, tmp_path):
    """The report of a finished run in `run`, which a test may change."""
    shutil.copytree(finished.result.parent, tmp_path / "run")
    return replace(finished, result=tmp_path / "run" / "adapter")


def with_recipe(options, **fields):
    return replace(options, recipe=replace(options.recipe, **fields))


def test_a_run_leaves_an_adapter_its_card_and_a_report(options, tmp_path):
    folder = tmp_path / "run"
    done = train(folder, options, silent)
    assert done.result == folder / "adapter"
    assert (done.learned.steps, done.was_finished) == (3, False)
    card = json.loads((done.result / "coinkv_adapter.json").read_text())
    assert card == done.card
    assert (card["rows"], card["steps_run"], card["recipe"]["learning_rate"]) == (24, 3, 3e-4)
    (gain,) = card["gain"]
    assert (gain["set"], gain["questions"]) == ("towns (held out)", 4)
    assert unsealed((folder / "report.json").read_text(), folder) == done.to_dict()


def test_a_finished_run_is_told_of_again_and_nothing_is_done(done, options, tmp_path, monkeypatch):
    before = contents_of(tmp_path / "run")
    monkeypatch.setattr(Loop, "run", lambda *_: pytest.fail("it trained"))
    again = train(tmp_path / "run", options, silent)
    assert again == replace(done, was_finished=True)
    assert contents_of(tmp_path / "run") == before


def test_a_finished_run_that_was_moved_says_where_its_result_is_now(done, options, tmp_path):
    (tmp_path / "run").rename(tmp_path / "moved")
    assert train(tmp_path / "moved", options, silent).result == tmp_path / "moved" / "adapter"


def test_a_finished_run_gets_another_card_without_a_step(done, options, tmp_path, monkeypatch):
    monkeypatch.setattr(Loop, "_step", lambda *_: pytest.fail("it trained"))
    weights = (done.result / "adapter_model.safetensors").read_bytes()
    named = replace(options, name="mine", licence="mit", attribution=["Towns, CC0"])
    report = train(tmp_path / "run", named, silent)
    assert report.card == {
        **done.card,
        "name": "mine",
        "licence": "mit",
        "attribution": ["Towns, CC0"],
    }
    assert (done.result / "adapter_model.safetensors").read_bytes() == weights
    assert "# mine" in (done.result / "README.md").read_text()
    assert train(tmp_path / "run", options, silent).card == report.card
    assert train(tmp_path / "run", named, silent).was_finished


@pytest.mark.parametrize("at", [0, 2])
def test_a_run_that_was_cut_off_comes_to_the_same_weights(done, options, tmp_path, at):
    def cut(stage, step, of):
        if stage == "training" and step == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", options, cut)
    report = train(tmp_path / "cut", options, silent)
    weights = "adapter/adapter_model.safetensors"
    assert (tmp_path / "cut" / weights).read_bytes() == (tmp_path / "run" / weights).read_bytes()
    assert report.learned.best == replace(done.learned.best, seconds=report.learned.best.seconds)
    assert [row["step"] for row in read(tmp_path / "cut")] == [0, 1, 2, 3, 3]


def test_another_run_is_refused_with_what_differs_and_nothing_changes(done, options, tmp_path):
    before = contents_of(tmp_path / "run")
    other = with_recipe(options, rank=4, objective="standard_cag", raft=0.5)
    with pytest.raises(TrainingError, match=r"rank was 2 and is 4, .*raft was 0\.15 and is 0\.5"):
        train(tmp_path / "run", other, silent)
    assert contents_of(tmp_path / "run") == before


def test_a_row_that_changed_in_its_file_makes_another_run(done, options, tmp_path):
    rows = made_up_rows(40)
    for row in rows:
        row["answers"] = ["Paris"]
    file = write_rows(tmp_path / "towns.jsonl", rows)
    with pytest.raises(TrainingError, match="training rows differs, development rows differs"):
        train(tmp_path / "run", replace(options, sources=[Source(str(file))]), silent)


def test_the_same_model_by_another_path_and_more_checkpoints_are_the_same_run(
    done, options, tmp_path, monkeypatch
):
    (tmp_path / "link").symlink_to(options.model, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    same = replace(options, model="./link", watch=replace(options.watch, checkpoint_every=2))
    assert train(tmp_path / "run", same, silent).was_finished


def test_a_run_that_failed_before_it_kept_anything_gives_way_to_another(options, tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        train(tmp_path / "run", with_recipe(options, targets=("nowhere",)), silent)
    assert train(tmp_path / "run", options, silent).learned.steps == 3


def test_a_folder_in_use_is_refused_and_left_free_behind_an_error(options, tmp_path):
    (tmp_path / "run").mkdir()
    with (
        FileLock(tmp_path / "run" / "run.lock"),
        pytest.raises(TrainingError, match="another process trains here"),
    ):
        train(tmp_path / "run", options, silent)
    with pytest.raises(InputError, match="nobody"):
        train(tmp_path / "run", replace(options, model=str(tmp_path / "nobody")), silent)
    with FileLock(tmp_path / "run" / "run.lock", timeout=0):
        pass


@pytest.mark.parametrize("name", ["adapter", "model", "checkpoints", "journal.jsonl"])
def test_a_folder_that_holds_what_is_of_no_run_is_left_alone(options, tmp_path, name):
    (tmp_path / "mine" / name).mkdir(parents=True)
    (tmp_path / "mine" / name / "precious").write_text("!")
    before = contents_of(tmp_path / "mine")
    with pytest.raises(TrainingError, match=rf"holds {name}, but no run\.json"):
        train(tmp_path / "mine", options, silent)
    assert contents_of(tmp_path / "mine") == before | {"run.lock": b""}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"recipe": 3}'])
def test_a_damaged_beginning_is_refused_once_something_was_kept(done, options, tmp_path, text):
    (tmp_path / "run" / "run.json").write_text(text)
    with pytest.raises(TrainingError, match=r"run\.json"):
        train(tmp_path / "run", options, silent)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"first": {"x": 1}, "best": null}'])
def test_a_damaged_report_is_written_again_without_a_step(done, options, tmp_path, text):
    (tmp_path / "run" / "report.json").write_text(text)
    steps = []
    again = train(tmp_path / "run", options, lambda stage, at, of: steps.append(at))
    assert set(steps) == {3}
    assert (again.learned, again.was_finished) == (done.learned, False)
    kept = (tmp_path / "run" / "report.json").read_text()
    assert unsealed(kept, tmp_path / "run") == again.to_dict()


@pytest.mark.parametrize("name", ["steps", "seconds", "answer_tokens", "best_step", "card"])
def test_a_report_that_was_changed_is_written_again(done, options, tmp_path, name):
    path = tmp_path / "run" / "report.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: "x"}))
    assert train(tmp_path / "run", options, silent).learned == done.learned
    assert train(tmp_path / "run", options, silent).was_finished


def emptied(adapter):
    for path in adapter.iterdir():
        path.unlink()


def cut(adapter):
    path = adapter / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def replaced_by_a_file(adapter):
    shutil.rmtree(adapter)
    adapter.write_text("")


def linked_to_nowhere(adapter):
    shutil.rmtree(adapter)
    adapter.symlink_to("nowhere")


@pytest.mark.parametrize(
    "damage", [emptied, cut, shutil.rmtree, replaced_by_a_file, linked_to_nowhere]
)
def test_a_result_that_is_gone_or_damaged_is_written_again_without_a_step(
    done, options, tmp_path, monkeypatch, damage
):
    monkeypatch.setattr(Loop, "_step", lambda *_: pytest.fail("it trained"))
    before = contents_of(done.result)
    damage(done.result)
    assert not train(tmp_path / "run", options, silent).was_finished
    assert contents_of(done.result) == before
    assert not list((tmp_path / "run").glob("adapter.*"))
    assert train(tmp_path / "run", options, silent).was_finished


def test_a_folder_in_the_place_of_the_report_is_said(done, options, tmp_path):
    (tmp_path / "run" / "report.json").unlink()
    (tmp_path / "run" / "report.json").mkdir()
    with pytest.raises(StorageError, match="something else has its name"):
        train(tmp_path / "run", options, silent)


def test_the_cache_is_no_folder_for_a_run(options, cache):
    with pytest.raises(InputError, match="cache of encoded passages"):
        train(cache / ".." / cache.name, options, silent)
    assert not (cache / "run.json").exists()


def test_a_link_in_a_circle_is_no_folder(options, tmp_path):
    (tmp_path / "run").symlink_to("run")
    with pytest.raises(StorageError, match="cannot write here"):
        train(tmp_path / "run", options, silent)


def test_names_that_no_card_can_tell_are_refused_before_anything_is_done(options, tmp_path):
    with pytest.raises(InputError, match="no Unicode text in the folder's name"):
        train(tmp_path / "\udcff", options, silent)
    for field, value in (("name", "\udcff"), ("licence", "\udcff"), ("attribution", ["\udcff"])):
        with pytest.raises(InputError, match=f"no Unicode text in the option {field}"):
            replace(options, **{field: value})
    assert not list(tmp_path.iterdir())


def test_a_development_set_that_is_named_twice_is_refused(tmp_path):
    file = write_rows(tmp_path / "dev.jsonl", made_up_rows(4))
    twice = [DevSet(str(file), "all"), DevSet(f"{tmp_path}/./dev.jsonl", "all")]
    with pytest.raises(InputError, match="dev: 2 development sets have this name"):
        TrainingOptions([Source("none.jsonl")], dev=twice).read()


def test_a_result_that_finds_no_room_is_written_by_the_same_command_later(
    options, tmp_path, monkeypatch
):
    with monkeypatch.context() as full:
        full.setattr(results, "save_file", no_space)
        with pytest.raises(StorageError, match="the result cannot be written"):
            train(tmp_path / "run", options, silent)
    assert not (tmp_path / "run" / "adapter").exists()
    monkeypatch.setattr(Loop, "_step", lambda *_: pytest.fail("it trained"))
    assert train(tmp_path / "run", options, silent).learned.steps == 3


def no_space(*_, **__):
    raise OSError(28, "No space left on device")


def test_development_questions_are_not_learned(options, tmp_path):
    rows = made_up_rows(40)
    for number, row in enumerate(rows):
        row["question"] += f" {'abcdefghij'[number // 10] * 9} {'klmnopqrst'[number % 10] * 9}"
        for passage in row["passages"]:
            passage["text"] = f"{passage['text']} {number}. " + "More of it is said. " * number
    train_set = write_rows(tmp_path / "train.jsonl", rows)
    dev = write_rows(tmp_path / "dev.jsonl", rows[:6])
    named = replace(
        options,
        sources=[Source(str(train_set))],
        rows=None,
        held_out=0,
        dev=[DevSet(str(dev), "all", 5)],
    )
    read_rows = named.read()
    asked = {row["question"] for row in rows[:6]}
    assert len(read_rows.dev) == 5
    assert not asked & {each.row.question for each in read_rows.data.rows}
    assert read_rows.data.rows


REFUSED = {
    "two kinds of development rows": ({"dev": [DevSet("a")], "held_out": 1}, "give one of them"),
    "evaluations of nothing": (
        {"held_out": 0, "watch": Watch(evaluate_every=1)},
        "nothing to evaluate on",
    ),
    "patience with one evaluation": ({"watch": Watch(patience=2)}, "only one, at the end"),
    "no device": ({"device": "quantum"}, "there is no such device"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_options_that_do_not_go_together_are_refused_at_once(options, what):
    changed, says = REFUSED[what]
    with pytest.raises(InputError, match=says):
        replace(options, **changed)


def test_a_development_question_without_passages_is_named_by_its_line(tmp_path):
    rows = made_up_rows(2)
    del rows[1]["passages"]
    file = write_rows(tmp_path / "dev.jsonl", rows)
    with pytest.raises(InputError, match=r"dev\.jsonl, line 2: this development question has no"):
        DevSet(str(file), "all").rows()


def test_a_package_that_is_missing_is_named(options, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InputError, match="needs the package peft"):
        train(tmp_path / "run", options, silent)
    assert not (tmp_path / "run").exists()


class Second:
    """The second of two processes, which hears from the first."""

    main = False

    def __init__(self, said):
        self.said = said

    def gathered(self, mine):
        return [self.said, mine]


def test_what_the_main_process_finds_wrong_is_raised_in_all(tmp_path):
    @contextmanager
    def acts():
        acted = []
        yield acted
        assert acted == []

    with acts() as acted, pytest.raises(TrainingError, match="of another"):
        RunFolder(tmp_path, Second(TrainingError("of another"))).by_main(lambda: acted.append(1))
    with acts() as acted:
        RunFolder(tmp_path, Second(None)).by_main(lambda: acted.append(1))
    assert RunFolder(tmp_path, Second({"result": "x"})).report() == {"result": "x"}
