"""The learner begins as the base, changes its own weights only, and names them as PEFT does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from coinkv.errors import InputError
from coinkv.model.adapter import adapted
from coinkv.model.fill import LiveCache, fill
from coinkv.model.load import load
from coinkv.train.learner import LINKS, Learner, lora_settings
from coinkv.train.objectives import objective_named
from coinkv.train.showing import loss_sum
from tiny_models import SUPPORTED
from training_rows import Parts, small_recipe

IDS = list(range(40, 60))


def learner_of(backbone, objective="coinrag", **options):
    recipe = small_recipe(objective, **options)
    return Learner.of(backbone, recipe, objective_named(objective, recipe.options))


def logits_of(backbone):
    cache = LiveCache.for_backbone(backbone, len(IDS))
    return fill(backbone, cache, IDS, torch.arange(len(IDS)), logits="all")


def loud(learner, scale=0.2):
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in learner.weights.values():
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale)


def saved(learner, folder):
    """The adapter as a PEFT folder."""
    LoraConfig(**learner.adapter, inference_mode=True).save_pretrained(folder)
    weights = {name: weight.detach().clone() for name, weight in learner.weights.items()}
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_a_learner_begins_as_its_base_bit_for_bit(tiny_backbone, name):
    backbone = tiny_backbone(name)
    before = logits_of(backbone)
    learner = learner_of(backbone)
    assert torch.equal(logits_of(learner.view), before)
    loud(learner)
    assert not torch.equal(logits_of(learner.view), before)
    assert torch.equal(logits_of(backbone), before)


@pytest.mark.parametrize("name", ["llama", "gemma2-sliding", "gpt-neox", "phi-partial", "phi3"])
def test_what_is_saved_is_read_back_as_an_adapter_that_computes_the_same(
    tiny_backbone, tmp_path, name
):
    learner = learner_of(tiny_backbone(name))
    loud(learner)
    view = adapted(tiny_backbone(name), saved(learner, tmp_path))
    assert torch.equal(logits_of(view), logits_of(learner.view))


@pytest.mark.parametrize(
    ("targets", "rank"),
    [(("self_attn.q_proj", "down_proj"), 3), (("lm_head", "v_proj"), 2)],
)
def test_chosen_layers_only_are_adapted_and_read_back(tiny_backbone, tmp_path, targets, rank):
    backbone = tiny_backbone("llama")
    learner = learner_of(backbone, targets=targets, rank=rank)
    ends = {name.rpartition(".lora_")[0].rpartition(".")[2] for name in learner.weights}
    assert ends == {target.rpartition(".")[2] for target in targets}
    assert {min(weight.shape) for weight in learner.weights.values()} == {rank}
    loud(learner)
    view = adapted(backbone, saved(learner, tmp_path))
    assert torch.equal(logits_of(view), logits_of(learner.view))


@pytest.mark.parametrize("name", ["llama", "gemma2-sliding"])
def test_names_and_shapes_are_those_that_peft_saves(tiny_backbone, tiny_folder, name):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder(name))
    assert bool(model.config.tie_word_embeddings) is (name == "gemma2-sliding")
    settings = lora_settings(small_recipe())
    peft = get_peft_model_state_dict(get_peft_model(model, LoraConfig(**settings)))
    learner = learner_of(tiny_backbone(name))
    ours = {key: weight.shape for key, weight in learner.weights.items()}
    assert ours == {key: weight.shape for key, weight in peft.items()}


def shape_of(model):
    """All there is to see of a model."""
    return (
        [(name, id(module), module.training) for name, module in model.named_modules()],
        sorted(vars(model)),
        [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        [sorted(vars(module)) for module in model.modules()],
    )


@pytest.mark.parametrize("through_cache", [False, True])
def test_training_an_adapter_leaves_the_base_as_it_was(
    passages, own_model, data, tmp_path, through_cache
):
    before, form = logits_of(own_model), shape_of(own_model.model)
    weights = {name: w.clone() for name, w in own_model.model.state_dict().items()}
    recipe = small_recipe(through_cache=through_cache, dropout=0.1, steps=3)
    parts = Parts.of(passages, recipe, own_model)
    parts.run(tmp_path, data)
    assert shape_of(own_model.model) == form
    assert torch.equal(logits_of(own_model), before)
    assert not torch.equal(logits_of(parts.learner.view), before)
    after = own_model.model.state_dict()
    assert all(torch.equal(weights[name], after[name]) for name in weights)
    assert all(parameter.grad is None for parameter in own_model.model.parameters())


def test_random_numbers_of_others_are_left_alone(passages, data):
    parts = Parts.of(passages, small_recipe(dropout=0.5))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    with parts.composer.learning(data.rows[:1], 0, 0, 0) as shown:
        loss_sum(parts.learner.view, shown, checkpointing=False)
    assert torch.equal(torch.rand(1), expected)


def test_equal_seeds_begin_and_drop_out_alike(passages, data):
    def loss(seed, part):
        parts = Parts.of(passages, small_recipe(dropout=0.5, seed=seed, raft=0))
        with torch.no_grad():
            for name, weight in parts.learner.weights.items():
                weight.fill_(0.1) if "lora_B" in name else None
        with parts.composer.learning(data.rows[:1], 0, 0, part) as shown:
            return float(loss_sum(parts.learner.view, shown, checkpointing=False))

    assert loss(0, 0) == loss(0, 0)
    assert len({loss(0, 0), loss(0, 1), loss(1, 0)}) == 3


def test_all_weights_are_the_models_own_and_change_it(passages, own_model, data, tmp_path):
    before = logits_of(own_model)
    recipe = small_recipe(weights="all", steps=2, learning_rate=1e-3)
    parts = Parts.of(passages, recipe, own_model)
    assert parts.learner.adapter is None
    assert parts.learner.view is own_model
    assert parts.learner.weights.keys() == dict(own_model.model.named_parameters()).keys()
    parts.run(tmp_path, data)
    assert not torch.equal(logits_of(own_model), before)


def test_an_adapter_of_a_bfloat16_model_learns_in_float32(small_model, tmp_path):
    backbone = load(str(small_model), device="cpu", dtype="bfloat16")
    before = logits_of(backbone)
    learner = learner_of(backbone)
    assert {weight.dtype for weight in learner.weights.values()} == {torch.float32}
    assert torch.equal(logits_of(learner.view), before)
    loud(learner)
    read = logits_of(adapted(backbone, saved(learner, tmp_path)))
    assert torch.nn.functional.cosine_similarity(read, logits_of(learner.view)).min() > 0.99


def test_all_weights_of_a_bfloat16_model_are_refused(small_model):
    backbone = load(str(small_model), device="cpu", dtype="bfloat16")
    with pytest.raises(InputError, match="float32"):
        learner_of(backbone, weights="all")


@pytest.mark.parametrize(
    "targets", [("nothing",), ("q_proj", "nothing"), ("_proj",), ("embed_tokens",), ("norm",)]
)
def test_what_is_no_linear_layer_is_no_target_and_the_model_stays(own_model, targets):
    form, before = shape_of(own_model.model), logits_of(own_model)
    with pytest.raises(InputError) as refused:
        learner_of(own_model, targets=targets)
    assert "\n" not in str(refused.value)
    assert shape_of(own_model.model) == form
    assert torch.equal(logits_of(own_model), before)


@pytest.mark.parametrize("name", ["llama", "gemma2-sliding", "gemma3-two-thetas"])
def test_link_embeddings_begin_near_a_line_break(tiny_backbone, name):
    backbone = tiny_backbone(name)
    links = learner_of(backbone, "kvlink").links
    assert links.shape == (2, 5, 64)
    token = torch.tensor(backbone.tokenize("\n").ids[-1:])
    line_break = backbone.model.get_input_embeddings()(token)[0].detach()
    apart = (links.detach() - line_break).norm(dim=-1) / line_break.norm()
    assert 0.01 < float(apart.min()) < float(apart.max()) < 0.3
    assert len({tuple(link.tolist()) for link in links.detach().flatten(0, 1)}) == 10


def test_kept_weights_come_back_and_others_are_refused(tiny_backbone):
    mine, other = (learner_of(tiny_backbone("llama"), "kvlink", seed=seed) for seed in (0, 1))
    assert LINKS in mine.parameters
    loud(other)
    mine.load({name: weight.detach() for name, weight in other.parameters.items()})
    assert torch.equal(logits_of(mine.view), logits_of(other.view))
    larger = learner_of(tiny_backbone("llama"), "kvlink", rank=5)
    without = learner_of(tiny_backbone("llama"))
    for wrong in (larger, without):
        with pytest.raises(InputError, match="do not belong"):
            mine.load(wrong.parameters)
    assert torch.equal(logits_of(mine.view), logits_of(other.view))


def test_settings_are_json_and_say_twice_the_rank_unless_told(tiny_backbone):
    learner = learner_of(tiny_backbone("llama"), rank=3, dropout=0.25)
    assert json.loads(json.dumps(learner.adapter)) == {
        "task_type": "CAUSAL_LM",
        "r": 3,
        "lora_alpha": 6,
        "lora_dropout": 0.25,
        "target_modules": sorted(
            f"{part}_proj" for part in ("q", "k", "v", "o", "up", "down", "gate")
        ),
    }
    assert lora_settings(replace(small_recipe(), alpha=5.0))["lora_alpha"] == 5.0


def test_a_rank_that_no_matrix_has_is_refused_before_memory_is_taken(passages):
    with pytest.raises(InputError, match=r"rank is 100000000, .* has more than 32; use at most 32"):
        Parts.of(passages, small_recipe(rank=10**8))
