"""`coinkv train`: what it is told is what it does, and what it leaves answers questions."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from dataclasses import fields

import pytest
import torch

from coinkv.train.journal import Journal, read
from coinkv.train.recipe import Recipe
from fixtures.refusals import require_one_line
from fixtures.village_questions import write_rows
from small_corpus import CHUNK_TOKENS, QUESTIONS, contents_of
from tiny_models import REFUSED as REFUSED_MODELS
from tiny_models import save_tiny_model

TIMEOUT_SECONDS = 120


@pytest.fixture(scope="session")
def passages(tmp_path_factory):
    """The training cache that all these runs share."""
    return tmp_path_factory.mktemp("training")


@pytest.fixture
def command(model_folder, passages, tmp_path):
    """A run of 3 steps on the village's questions; more may follow."""
    rows = write_rows(tmp_path / "village.jsonl")
    sizes = ("--rank", 2, "--micro-batch", 1, "--accumulation", 2, "--chunk-tokens", CHUNK_TOKENS)
    places = ("--cache", passages, "--model", model_folder, "--device", "cpu")
    return ("train", tmp_path / "run", "--data", rows, *sizes, *places)


@pytest.fixture
def answered(coinkv, asked_folder, village, tmp_path):
    """Types the commands a run prints, with a question and an index of the village."""

    def answer(printed):
        index = asked_folder
        for line in printed.splitlines():
            said, _, typed = line.partition(": coinkv ")
            words = shlex.split(typed)
            if said == "Build with it":
                index = tmp_path / "index"
                words[words.index("DOCS")] = str(village)
            elif said == "Answer with it":
                words[words.index("QUESTION")] = QUESTIONS[0]
                words += ["--max-tokens", "4", "--json"]
            else:
                continue
            words[words.index("DIR")] = str(index)
            ran = coinkv(*words)
            assert ran.code == 0, ran
        return json.loads(ran.out)

    return answer


OBJECTIVES = {
    "coinrag": ("--k-nuggets", 4),
    "turborag": ("--option", "positions=composite", "--answer-lead", "It is:"),
    "kvlink": ("--option", "links=2", "--k-chunks", 3, "--through-cache"),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_command_that_a_run_prints_answers_with_its_adapter(
    coinkv, command, answered, objective
):
    ran = coinkv(*command, "--objective", objective, *OBJECTIVES[objective])
    assert ran.code == 0, ran
    answer = answered(ran.out)
    assert answer["method"] == objective
    assert "untrained" not in json.dumps(answer)
    assert answer["adapter"]["name"] == "run"


def test_a_model_of_which_all_weights_were_trained_is_built_with_and_answers(
    coinkv, command, answered
):
    whole = [part for part in command if part not in ("--rank", 2)]
    whole.insert(whole.index("--accumulation") + 1, 2)
    ran = coinkv(*whole, "--weights", "all", "--learning-rate", 1e-3)
    assert ran.code == 0, ran
    assert answered(ran.out)["method"] == "coinrag"


def test_every_field_of_a_recipe_has_an_option_that_sets_it(coinkv, command, tmp_path):
    chosen = {
        "objective": ("kvlink", "--objective", "kvlink"),
        "options": ({"links": 1}, "--option", "links=1"),
        "through_cache": (True, "--through-cache"),
        "weights": ("lora", "--weights", "lora"),
        "rank": (3, "--rank", 3),
        "alpha": (5.0, "--alpha", 5),
        "dropout": (0.1, "--dropout", 0.1),
        "targets": (["q_proj"], "--target", "q_proj"),
        "learning_rate": (0.01, "--learning-rate", 0.01),
        "warmup": (0.5, "--warmup", 0.5),
        "weight_decay": (0.01, "--weight-decay", 0.01),
        "clip": (2.0, "--clip", 2),
        "micro_batch": (2, "--micro-batch", 2),
        "accumulation": (1, "--accumulation", 1),
        "epochs": (2, "--epochs", 2),
        "steps": (1, "--steps", 1),
        "optimizer": ("adamw", "--optimizer", "adamw"),
        "checkpointing": (False, "--no-checkpointing"),
        "max_length": (900, "--max-length", 900),
        "k_chunks": (2, "--k-chunks", 2),
        "k_nuggets": (3, "--k-nuggets", 3),
        "raft": (0.5, "--raft", 0.5),
        "answer_lead": ("So:", "--answer-lead", "So:"),
        "seed": (7, "--seed", 7),
    }
    assert set(chosen) == {each.name for each in fields(Recipe)}
    typed = [word for _, *words in chosen.values() for word in words]
    ran = coinkv(*command, *typed, "--json")
    assert ran.code == 0, ran
    recipe = json.loads(ran.out)["card"]["recipe"]
    assert recipe == {name: value for name, (value, *_) in chosen.items()}
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps({**recipe, "rank": 9}))
    again = coinkv(*command, "--recipe", file, "--accumulation", 1, "--micro-batch", 2)
    assert "rank was 3 and is 2" in again.err, "what is typed goes before the file's 9"
    assert "and is" not in again.err.replace("rank was 3 and is 2", "")


def test_a_run_says_what_it_learned_from_and_came_to(coinkv, command, tmp_path):
    dev = write_rows(tmp_path / "dev.jsonl", json_rows(tmp_path)[:2])
    scored = ("--dev", dev, "--dev-half", "all", "--dev-limit", 1, "--evaluate-every", 1)
    told = ("--name", "mine", "--licence", "mit", "--attribution", "Village, CC0", "--raft", 0)
    ran = coinkv(*command, *scored, "--patience", 5, "--answer-tokens", 3, *told)
    assert (ran.code, ran.err) == (0, "")
    for said in (
        "village: 3 of 6 rows stand in evaluation sets",
        "1 development question of dev",
        "2 steps, ",
        "Development (1 question): loss ",
        f"Written: {tmp_path / 'run' / 'adapter'}",
        f"Curves: {tmp_path / 'run' / 'loss.svg'}, {tmp_path / 'run' / 'f1.svg'}",
    ):
        assert said in ran.out, said
    shown = json.loads(coinkv("adapters", "show", tmp_path / "run" / "adapter", "--json").out)
    card = shown["card"]
    assert (card["name"], card["licence"], card["attribution"]) == ("mine", "mit", ["Village, CC0"])
    assert (shown["base"], shown["method"], shown["scope"]) == ("tiny-llama", "coinrag", "live")
    again = coinkv(*command, *scored, "--patience", 5, "--answer-tokens", 3, *told)
    assert (again.code, again.err) == (0, "")
    assert "Finished before: 2 steps, " in again.out


def json_rows(folder):
    return [json.loads(line) for line in (folder / "village.jsonl").read_text().splitlines()]


def test_data_can_be_looked_at_before_anything_is_done(coinkv, command, tmp_path):
    looked = (*command, "--data", f"{tmp_path / 'more.jsonl'}=2", "--held-out", 1, "--check-data")
    write_rows(tmp_path / "more.jsonl", json_rows(tmp_path)[:3])
    before = contents_of(tmp_path)
    ran = coinkv(*looked)
    assert (ran.code, ran.err) == (0, "")
    assert "Training rows" in ran.out
    facts = json.loads(coinkv(*looked, "--json").out)
    assert [(each["set"], each["weight"]) for each in facts["data"]["sets"]] == [
        ("more", 2.0),
        ("village", 1.0),
    ]
    assert sum(facts["development"].values()) == 1
    assert contents_of(tmp_path) == before


def test_rows_of_which_nothing_can_be_withheld_are_told(coinkv, command, tmp_path):
    rows = [
        {**row, "passages": [{**each, "is_supporting": None} for each in row["passages"]]}
        for row in json_rows(tmp_path)
    ]
    write_rows(tmp_path / "plain.jsonl", rows)
    ran = coinkv(*command, "--data", tmp_path / "plain.jsonl", "--check-data")
    assert f"plain: {len(rows)} usable rows mark no passage as holding the answer" in ran.out
    assert "village: " not in ran.out


def test_a_run_without_matplotlib_is_whole_but_for_its_curves(coinkv, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = coinkv(*command, "--steps", 1)
    assert ran.code == 0, ran
    assert ran.err.startswith("no curves were drawn: ")
    assert "pip install" in ran.err
    assert "Curves" not in ran.out
    assert "Written: " in ran.out


def test_an_interrupted_run_is_one_line_and_the_same_command_goes_on(
    coinkv, command, tmp_path, monkeypatch
):
    longer = (*command, "--epochs", 3, "--checkpoint-every", 2)
    with monkeypatch.context() as typed:
        typed.setattr(Journal, "write", interrupting(Journal.write, at=4))
        ran = coinkv(*longer, "--json")
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.startswith("error: interrupted")
    assert len(ran.err.splitlines()) == 1
    facts = json.loads(coinkv(*longer, "--json").out)
    assert (facts["steps"], facts["was_finished"]) == (9, False)
    assert [row["step"] for row in read(tmp_path / "run")] == list(range(1, 10))


def interrupting(write, *, at):
    """A journal's `write` behind which somebody types Ctrl-C at a step."""

    def written(self, kind, facts):
        write(self, kind, facts)
        if facts["step"] == at:
            signal.raise_signal(signal.SIGINT)

    return written


def test_several_processes_share_a_run_and_one_of_them_talks(command, tmp_path):
    launch = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    words = [*launch, "-m", "coinkv", *map(str, command), "--steps", "2"]
    shared = [word for word in words if word not in ("--device", "cpu")]  # as if nobody knew
    ran = subprocess.run(shared, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Written: ") == 1
    assert [row["rows"] for row in read(tmp_path / "run")] == [2, 2]


def test_the_package_runs_as_a_module():
    ran = subprocess.run(
        [sys.executable, "-m", "coinkv", "--version"], capture_output=True, text=True
    )
    assert ran.stdout.startswith("coinkv ")


REFUSED = {
    "no set": (("--data", "none.jsonl"), "none.jsonl: no such file"),
    "an empty set": (("--data", "empty.jsonl"), "empty.jsonl: holds no question"),
    "a set without answers": (("--data", "bare.jsonl"), "bare: no row of it can be trained on"),
    "one set twice": (("--data", "copy/village.jsonl"), "village: 2 sets to train on have this"),
    "a weight of 0": (("--data", "bare.jsonl=0"), "bare.jsonl: its weight 0 is not above 0"),
    "development rows without answers": (
        ("--dev", "bare.jsonl", "--dev-half", "all"),
        "bare.jsonl, line 1: this question has no answers",
    ),
    "an unknown half": (("--dev", "bare.jsonl", "--dev-half", "dusk"), "there is no half 'dusk'"),
    "a limit of no set": (("--dev-limit", 3), "add --dev SET"),
    "a limit of 0": (("--dev", "bare.jsonl", "--dev-limit", 0), "dev_limit is 0"),
    "patience alone": (("--patience", 2), "nothing to evaluate on"),
    "no recipe": (("--recipe", "none.json"), "none.json: cannot be read (No such file"),
    "a folder as recipe": (("--recipe", "copy"), "copy: cannot be read (Is a directory"),
    "a broken recipe": (("--recipe", "empty.jsonl"), "empty.jsonl: is no JSON"),
    "a wrong field": (("--recipe", "wrong.json"), "wrong.json: a recipe has no rnk"),
    "a wrong value": (("--recipe", "text.json"), "text.json: rank is '4'"),
    "an objective that repairs": (("--objective", "cacheblend"), "can answer with its adapter"),
    "no objective": (("--objective", "magic"), "no method is called 'magic'"),
    "no option": (("--option", "a=b"), "coinrag has no option 'a'"),
    "embeddings": (("--objective", "kvlink", "--option", "embeddings=x"), "training makes them"),
    "a rank and all weights": (("--weights", "all"), "rank is of an adapter"),
    "steps between nothing": (("--checkpoint-every", 0), "checkpoint_every is 0"),
    "no number": (("--learning-rate", "nan"), "learning_rate is nan"),
    "no device": (("--device", "quantum"), "quantum: there is no such device"),
    "0 threads": (("--threads", 0), "threads is 0"),
    "threads no machine has": (("--threads", 100_000), "threads is 100000; use 1 to 1024"),
    "half a surrogate pair": (("--data", "half.jsonl", "--check-data"), "half.jsonl, line 1: no"),
    "options in options": (("--recipe", "deep.json"), "deep.json: options is {'a': [[["),
    "a rate beyond all": (("--learning-rate", 1e300), "learning_rate is 1e+300"),
    "a name in no Unicode": (("--name", "\udcff"), "no Unicode text in the option name"),
    "a lead in no Unicode": (("--answer-lead", "\udcff"), "no Unicode text in answer_lead"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_used_is_one_line_and_nothing_is_written(
    coinkv, command, tmp_path, monkeypatch, what
):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "copy" / "village.jsonl")
    write_rows(tmp_path / "bare.jsonl", [{"id": "q0", "question": "Why?"}])
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "wrong.json").write_text('{"rnk": 4}')
    (tmp_path / "text.json").write_text('{"rank": "4"}', encoding="utf-8-sig")
    (tmp_path / "half.jsonl").write_text('{"question": "Why\\ud800?", "answers": ["a"]}')
    (tmp_path / "deep.json").write_text('{"options": {"a": %s}}' % ("[" * 900 + "]" * 900))
    before = contents_of(tmp_path)
    more, says = REFUSED[what]
    require_one_line(coinkv(*command, *more), says)
    assert contents_of(tmp_path) == before


def test_what_shows_later_is_one_line_as_well(coinkv, command, tmp_path):
    missing = "mps" if torch.cuda.is_available() else "cuda"
    gpt2 = save_tiny_model(tmp_path / "gpt2", REFUSED_MODELS["gpt2-learned"][0])
    (tmp_path / "file").write_text("")
    for more, says, code in (
        (("--model", gpt2), "learned or ALiBi", 2),
        (("--dtype", "int4"), "int4: not a dtype", 2),
        (("--device", missing), f"{missing}: this device is not available here", 2),
        (("--target", "nowhere"), "nowhere", 2),
        (("--optimizer", "adamw8bit"), "8-bit optimizer", 2),
        (("--cache", tmp_path / "file"), "cannot write here", 1),
        (("--max-length", 5), "fits into 5 tokens", 1),
    ):
        ran = coinkv(*command, *more, "--json")
        require_one_line(ran, says, code)
    ran = coinkv(*command[:1], tmp_path / "file", *command[2:], "--json")
    require_one_line(ran, "file: cannot write here", 1)


def test_a_run_whose_curves_are_interrupted_is_a_whole_run(coinkv, command, monkeypatch):
    def interrupted(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr("coinkv.train.curves.draw", interrupted)
    ran = coinkv(*command, "--steps", 1)
    assert (ran.code, ran.err) == (0, "no curves were drawn: interrupted\n")
    assert "Written: " in ran.out


def test_a_run_has_a_folder_with_a_name(coinkv, command):
    require_one_line(coinkv("train", "", *command[2:]), "the name of the run's folder is empty")
