"""What a run leaves computes what was learned, tells what it is, and is there whole or not."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from coinkv.errors import InputError, StorageError
from coinkv.model.adapter import adapted, read_card
from coinkv.model.fill import LiveCache, fill
from coinkv.model.load import load
from coinkv.train.card import card, commands, readme
from coinkv.train.data import Source
from coinkv.train.evaluation import DevScores
from coinkv.train.learner import Learner
from coinkv.train.loop import Learned
from coinkv.train.objectives import objective_named
from coinkv.train.options import TrainingOptions
from coinkv.train.recipe import Recipe
from coinkv.train.results import write_adapter, write_model
from small_corpus import contents_of

LEARNED = Learned(
    steps=12,
    best_step=8,
    first=DevScores(2.0, 10.0, 0.0, 5, 1.0),
    best=DevScores(1.0, 25.5, 20.0, 5, 1.0),
    answer_tokens=1234,
    seconds=3.25,
    stopped_early=False,
)


@pytest.fixture
def made(rows_file, own_model):
    """Makes a learner whose every weight has moved, and the card of a run that left it so."""

    def make(name="an adapter", *, asking=None, **recipe):
        recipe = Recipe(rank=2, **recipe)
        asked = TrainingOptions([Source(str(rows_file))], recipe, rows=24, held_out=4)
        objective = objective_named(recipe.objective, recipe.options)
        facts = card(
            name, replace(asked, **(asking or {})), objective, asked.read(), own_model, LEARNED
        )
        learner = Learner.of(own_model, recipe, objective)
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in learner.parameters.values():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        return learner, facts

    return make


def logits_of(backbone):
    tokens = backbone.tokenize("Ada lives in Rome. Birds fly.").ids
    cache = LiveCache.for_backbone(backbone, len(tokens))
    return fill(backbone, cache, tokens, torch.arange(len(tokens)), logits="all")


def test_an_adapter_computes_what_the_learner_computed(made, own_model, tmp_path):
    learner, facts = made()
    files = write_adapter(learner, own_model, tmp_path / "adapter", facts)
    assert {path.name for path in files} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "coinkv_adapter.json",
    }
    found, plain = logits_of(adapted(own_model, tmp_path / "adapter")), logits_of(own_model)
    torch.testing.assert_close(found, logits_of(learner.view), atol=0.02, rtol=0.02)
    assert (found - plain).abs().max() > 0.1


def test_peft_itself_loads_an_adapter(made, own_model, small_model, tmp_path):
    learner, facts = made()
    write_adapter(learner, own_model, tmp_path / "adapter", facts)
    base = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    tokens = own_model.tokenize("Ada lives in Rome. Birds fly.").ids
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(
        logits, logits_of(learner.view).reshape(logits.shape), atol=0.02, rtol=0.02
    )


def test_whoever_may_read_the_card_may_read_the_weights(made, own_model, tmp_path):
    learner, facts = made(objective="kvlink")
    files = write_adapter(learner, own_model, tmp_path / "adapter", facts)
    (tmp_path / "plain").write_text("")
    assert {path.stat().st_mode for path in files} == {(tmp_path / "plain").stat().st_mode}


def test_weights_are_kept_in_16_bit_unless_one_is_too_large(made, own_model, tmp_path):
    learner, facts = made()
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    write_adapter(learner, own_model, path.parent, facts)
    assert {weight.dtype for weight in load_file(path).values()} == {torch.float16}
    name, weight = next(iter(learner.weights.items()))
    with torch.no_grad():
        weight[0, 0] = 1e6
    write_adapter(learner, own_model, path.parent, facts)
    assert load_file(path)[name][0, 0] == 1e6


@pytest.mark.parametrize(("through_cache", "scope"), [(False, "live"), (True, "all")])
def test_the_card_says_what_the_adapter_takes_part_in(
    made, own_model, tmp_path, through_cache, scope
):
    learner, facts = made(through_cache=through_cache)
    write_adapter(learner, own_model, tmp_path / "adapter", facts)
    read = read_card(tmp_path / "adapter")
    assert (read.scope, read.facts["method"], read.facts["steps"]) == (scope, "coinrag", 8)


def test_the_card_knows_its_base_in_other_dtypes_and_no_other_base(
    made, own_model, small_model, tiny_backbone, tmp_path
):
    learner, facts = made()
    write_adapter(learner, own_model, tmp_path / "adapter", facts)
    read = read_card(tmp_path / "adapter")
    for dtype in ("float32", "bfloat16", "float16"):
        assert read.fits(load(str(small_model), device="cpu", dtype=dtype)), dtype
    assert not read.fits(tiny_backbone())


def test_link_embeddings_lie_beside_the_adapter_and_the_command_names_them(
    made, own_model, tmp_path
):
    learner, facts = made(objective="kvlink", options={"links": 2}, k_chunks=3)
    write_adapter(learner, own_model, tmp_path / "adapter", facts)
    kept = load_file(tmp_path / "adapter" / "link_embeddings.safetensors")["link_embeddings"]
    assert torch.equal(kept, learner.links)
    _, ask = commands(facts, "DIR/adapter")
    assert "--option links=2" in ask
    assert "--option embeddings=DIR/adapter/link_embeddings.safetensors" in ask
    assert "--k-chunks 3 " in ask


def test_a_whole_model_loads_passes_the_gate_and_computes_the_same(made, tmp_path, capfd):
    learner, facts = made(weights="all")
    write_model(learner, tmp_path / "model", facts)
    assert capfd.readouterr().err == ""
    model = load(str(tmp_path / "model"), device="cpu")
    assert torch.equal(logits_of(model), logits_of(learner.view))
    assert AutoTokenizer.from_pretrained(tmp_path / "model").vocab_size > 0
    told = json.loads((tmp_path / "model" / "training.json").read_text())
    assert told == facts
    assert "scope" not in told
    assert "base_weights" not in told


def test_a_whole_model_is_no_adapter(made, own_model, tmp_path):
    learner, facts = made(weights="all")
    with pytest.raises(InputError, match="no adapter"):
        write_adapter(learner, own_model, tmp_path / "adapter", facts)
    assert not (tmp_path / "adapter").exists()


class Cut(BaseException):
    """What stops a writer where it stands."""


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Cut()])
@pytest.mark.parametrize("where", ["README.md", "rename"])
def test_an_interrupted_result_leaves_the_older_one(
    made, own_model, tmp_path, monkeypatch, error, where
):
    learner, facts = made()
    write_adapter(learner, own_model, tmp_path / "adapter", facts)
    before = contents_of(tmp_path)
    write, rename = Path.write_text, Path.rename

    def failing_write(self, *arguments, **options):
        if self.name == where:
            raise error
        return write(self, *arguments, **options)

    def failing_rename(self, target):
        if where == "rename" and self.suffix == ".part":
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "write_text", failing_write)
    monkeypatch.setattr(Path, "rename", failing_rename)
    expected = StorageError if isinstance(error, OSError) else Cut
    with pytest.raises(expected):
        write_adapter(learner, own_model, tmp_path / "adapter", {**facts, "name": "newer"})
    assert contents_of(tmp_path) == before


def test_what_a_killed_writer_left_goes_and_nothing_else(made, own_model, tmp_path):
    for name in ("adapter.1f.part", "adapter.1f.old", "adapter.mine", "model.1f.part"):
        (tmp_path / name).mkdir()
    learner, facts = made()
    write_adapter(learner, own_model, tmp_path / "adapter", facts)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"adapter", "adapter.mine", "model.1f.part"}


def test_the_readme_has_front_matter_and_says_what_was_learned_from(made):
    options = {"licence": "apache-2.0", "attribution": ("Towns: by nobody, CC0",)}
    _, facts = made("two: words", asking=options, answer_lead="It is:")
    _, front, text = readme(facts).split("---\n", 2)
    told = yaml.safe_load(front)
    assert (told["license"], told["library_name"]) == ("apache-2.0", "peft")
    assert "lora" in told["tags"]
    for line in (
        "# two: words",
        "Learned from 24 rows of towns; at most 16 rows a step, 12 steps, of which the weights "
        "behind step 8 were kept.",
        "towns (held out), 5 questions asked of their own passages: F1 10.0 before, 25.5 after.",
        "(scope `live`)",
        "- Towns: by nobody, CC0",
    ):
        assert line in text, line
    assert "--answer-lead 'It is:'" in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_the_commands_name_what_is_not_the_default_and_nothing_else(made):
    _, facts = made(asking={"chunk_tokens": 512})
    facts["base"] = "smollm2-135m-instruct"
    assert commands(facts, "A B") == [
        "coinkv build DOCS --index DIR",
        "coinkv ask QUESTION --index DIR --method coinrag --adapter 'A B'",
    ]
    _, facts = made(asking={"chunk_tokens": 64}, k_nuggets=7)
    facts |= {"base": "org/other", "method_options": {"align": False, "order": "rank"}}
    build, ask = commands(facts, "A")
    assert shlex.split(build)[5:] == ["--model", "org/other", "--chunk-tokens", "64"]
    assert "--option align=false --option order=rank --k-nuggets 7" in ask


def test_the_names_of_layers_are_in_order_so_that_equal_runs_leave_equal_bytes(
    made, own_model, tmp_path
):
    learner, facts = made()
    write_adapter(learner, own_model, tmp_path / "adapter", facts)
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert len(settings["target_modules"]) > 3
    assert settings["target_modules"] == sorted(settings["target_modules"])
