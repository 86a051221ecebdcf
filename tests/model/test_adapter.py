"""Adapters: a view computes what merged weights would, and the backbone itself never changes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from coinkv.errors import InputError, ModelNotFoundError
from coinkv.model.adapter import AdapterCard, adapted, base_facts, read_card
from coinkv.model.backbone import Backbone
from coinkv.model.decode import Sampling, decode
from coinkv.model.fill import LiveCache, fill
from coinkv.model.load import load
from tiny_adapters import save_tiny_adapter
from tiny_models import VOCABULARY, save_tiny_model

IDS = torch.randint(2, VOCABULARY, (24,), generator=torch.Generator().manual_seed(3)).tolist()
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"


@pytest.fixture
def backbone(tiny_folder):
    """A copy of its own: other tests share the loaded ones."""
    return load(str(tiny_folder("llama")), device="cpu")


@pytest.fixture(scope="module")
def saved(tiny_folder, tmp_path_factory):
    return save_tiny_adapter(tiny_folder("llama"), tmp_path_factory.mktemp("adapter") / "first")


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of the adapter that a test may spoil."""
    return shutil.copytree(saved, tmp_path / "tuned")


def computed(backbone: Backbone, ids=IDS):
    """Logits and KV of one forward pass."""
    cache = LiveCache.for_backbone(backbone, len(ids))
    logits = fill(backbone, cache, ids, torch.arange(len(ids)), logits="all")
    return logits, cache.keys, cache.values


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def facts_of(model):
    """What a failed or a finished load must leave alone."""
    return (
        [(name, id(module)) for name, module in model.named_modules()],
        [(name, id(p), p.requires_grad, p._version) for name, p in model.named_parameters()],
        sorted(vars(model)),
        model.training,
    )


def rewrite(folder, **settings):
    path = folder / CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def rewrite_weights(folder, change):
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)


def merged(backbone, folder, scale, name="llama"):
    """A backbone whose weights were changed by hand to what the adapter says."""
    stored = load_file(folder / WEIGHTS)
    layers = {n.removeprefix("base_model.model.").partition(".lora_")[0] for n in stored}
    modules = dict(backbone.model.named_modules())
    for layer in layers:
        parts = {n.partition(f"{layer}.")[2]: t for n, t in stored.items() if f".{layer}." in n}
        low, high = (
            (parts["lora_embedding_A"].T, parts["lora_embedding_B"].T)
            if "lora_embedding_A" in parts
            else (parts["lora_B.weight"], parts["lora_A.weight"])
        )
        factor = scale(layer) if callable(scale) else scale
        weight = modules[layer].weight.data + factor * low @ high
        if "lora_magnitude_vector" in parts:
            weight *= (parts["lora_magnitude_vector"] / weight.norm(dim=1))[:, None]
        modules[layer].weight = torch.nn.Parameter(weight)
        if "lora_B.bias" in parts:
            modules[layer].bias.data += factor * parts["lora_B.bias"]
    return backbone


VARIANTS = {
    "lora": ("llama", {}, 6 / 4),
    "rank-stabilised": ("llama", {"use_rslora": True}, 6 / 4**0.5),
    "every-linear-layer": ("llama", {"target_modules": "all-linear"}, 6 / 4),
    "one-layer": ("llama", {"layers_to_transform": [1]}, 6 / 4),
    "regular-expression": ("llama", {"target_modules": r".*\.[02]\.mlp\.(up|down)_proj"}, 6 / 4),
    "patterns": (
        "llama",
        {"rank_pattern": {"v_proj": 8}, "alpha_pattern": {"q_proj": 2}},
        lambda layer: 6 / 8 if "v_proj" in layer else 2 / 4,
    ),
    "dora": ("llama", {"use_dora": True}, 6 / 4),
    "bias-in-b": ("qwen2", {"lora_bias": True}, 6 / 4),
    "embedding-and-head": ("llama", {"target_modules": ["embed_tokens", "lm_head"]}, 6 / 4),
    "fused-projections": ("phi3", {"target_modules": ["qkv_proj", "gate_up_proj"]}, 6 / 4),
    "gpt-neox": ("gpt-neox", {"target_modules": ["query_key_value", "dense"]}, 6 / 4),
    "gemma3": ("gemma3-two-thetas", {"target_modules": ["q_proj", "k_proj", "o_proj"]}, 6 / 4),
}


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_a_view_computes_what_merged_weights_compute(tiny_folder, tmp_path, variant):
    name, options, scale = VARIANTS[variant]
    folder = save_tiny_adapter(tiny_folder(name), tmp_path / variant, **options)
    backbone = load(str(tiny_folder(name)), device="cpu")
    view, before = adapted(backbone, folder), computed(backbone)
    through_view = computed(view)
    by_hand = computed(merged(load(str(tiny_folder(name)), device="cpu"), folder, scale))
    assert not torch.allclose(through_view[0], before[0], atol=1e-2)
    for measured, expected in zip(through_view, by_hand, strict=True):
        torch.testing.assert_close(measured, expected, rtol=2e-4, atol=2e-4)


def test_the_backbone_computes_the_same_bits_before_between_and_after(backbone, saved):
    first, facts = computed(backbone), facts_of(backbone.model)
    view = adapted(backbone, saved)
    assert facts_of(backbone.model) == facts
    assert same(computed(backbone), first)
    through_view = computed(view)
    for _ in range(3):
        assert same(computed(backbone), first)
        assert same(computed(view), through_view)
    assert facts_of(backbone.model) == facts


def test_threads_that_use_the_backbone_and_two_views_at_once_each_get_their_own(
    backbone, saved, tiny_folder, tmp_path
):
    second = save_tiny_adapter(
        tiny_folder("llama"), tmp_path / "second", seed=1, r=2, target_modules=["q_proj", "up_proj"]
    )
    views = [backbone, adapted(backbone, saved), adapted(backbone, second)]
    alone = [computed(view) for view in views]
    assert not any(torch.equal(alone[a][0], alone[b][0]) for a, b in ((0, 1), (0, 2), (1, 2)))
    with ThreadPoolExecutor(6) as pool:
        jobs = [(i, pool.submit(computed, views[i])) for _ in range(25) for i in range(3)]
        assert all(same(job.result(), alone[i]) for i, job in jobs)


def test_adapters_can_be_loaded_while_the_backbone_computes(backbone, tiny_folder, tmp_path):
    folders = [
        save_tiny_adapter(tiny_folder("llama"), tmp_path / str(seed), seed=seed)
        for seed in range(3)
    ]
    alone = computed(backbone)
    with ThreadPoolExecutor(3) as pool:
        loads = [pool.submit(adapted, backbone, folder) for folder in folders * 2]
        passes = [pool.submit(computed, backbone) for _ in range(20)]
        assert all(same(done.result(), alone) for done in passes)
        views = [load.result() for load in loads]
    assert len(backbone.adapters) == 3
    assert [view.fingerprint for view in views[:3]] == [view.fingerprint for view in views[3:]]


def test_caches_of_the_backbone_go_on_under_a_view(backbone, saved):
    """What `adapter_scope="live"` is: base KV before, adapted question behind it."""
    view = adapted(backbone, saved)
    cache = LiveCache.for_backbone(backbone, 40)
    fill(backbone, cache, IDS[:16], torch.arange(16), logits="none")
    kept = cache.block()
    logits = fill(view, cache, IDS[16:], torch.arange(16, 24))
    assert same((cache.block(0, 16).keys, cache.block(0, 16).values), (kept.keys, kept.values))
    assert not torch.equal(logits, computed(backbone)[0][-1:])
    assert not torch.equal(logits, computed(view)[0][-1:])
    pieces = list(decode(view, cache, logits, Sampling(max_tokens=4)))
    assert pieces[-1].finish_reason in ("stop", "length")


def test_a_forward_pass_that_fails_under_a_view_leaves_the_backbone_as_it_was(backbone, saved):
    first, view = computed(backbone), adapted(backbone, saved)
    facts, through_view = facts_of(backbone.model), computed(view)
    with pytest.raises(IndexError):
        computed(view, [VOCABULARY + 7])
    assert facts_of(backbone.model) == facts
    assert same(computed(backbone), first)
    assert same(computed(view), through_view)


def test_loading_the_same_adapter_again_loads_nothing(backbone, saved, folder):
    first = adapted(backbone, saved)
    layers = backbone.adapters[first.adapter]
    views = [first, adapted(backbone, folder), adapted(backbone, str(saved))]
    assert [backbone.adapters[view.adapter] is layers for view in views] == [True] * 3
    assert len({view.fingerprint for view in views}) == 1
    assert all(view.model is backbone.model and view.turns is backbone.turns for view in views)


def test_the_name_says_both_and_the_fingerprint_follows_the_content(backbone, folder):
    view = adapted(backbone, folder)
    assert view.name == f"{backbone.name} + tuned"
    fingerprints = {backbone.fingerprint, view.fingerprint}
    rewrite(folder, lora_alpha=7)
    fingerprints.add(adapted(backbone, folder).fingerprint)
    rewrite_weights(folder, lambda stored: {n: t * 2 for n, t in stored.items()})
    fingerprints.add(adapted(backbone, folder).fingerprint)
    fingerprints.add(adapted(replace(backbone, fingerprint="other"), folder).fingerprint)
    assert len(fingerprints) == 5


def test_the_fingerprint_ignores_what_changes_nothing(backbone, folder):
    rewrite(folder, target_modules=["v_proj", "q_proj"])
    fingerprint = adapted(backbone, folder).fingerprint
    rewrite(
        folder,
        target_modules=["q_proj", "v_proj"],
        base_model_name_or_path="elsewhere",
        lora_dropout=0.1,
        peft_version="0.1",
        inference_mode=False,
    )
    assert adapted(backbone, folder).fingerprint == fingerprint


def test_an_adapter_changed_in_its_folder_is_loaded_anew(backbone, folder):
    before = computed(adapted(backbone, folder))
    rewrite_weights(folder, lambda stored: {n: t * 2 for n, t in stored.items()})
    after = computed(adapted(backbone, folder))
    assert not torch.equal(before[0], after[0])


@pytest.mark.parametrize("variant", ["lora", "dora", "embedding-and-head"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_adapter_computes_in_the_dtype_of_the_model(tiny_folder, tmp_path, dtype, variant):
    folder = save_tiny_adapter(tiny_folder("llama"), tmp_path / variant, **VARIANTS[variant][1])
    backbone = load(str(tiny_folder("llama")), device="cpu", dtype=dtype)
    first = computed(backbone)
    view = adapted(backbone, folder)
    layers = backbone.adapters[view.adapter]
    dtypes = {p.dtype for layer in layers for p in layer.adapted.parameters()}
    assert dtypes == {backbone.dtype}
    assert not torch.equal(computed(view)[0], first[0])
    assert same(computed(backbone), first)


def test_adapted_layers_are_frozen_in_evaluation_mode_and_without_dropout(backbone, saved):
    layers = backbone.adapters[adapted(backbone, saved).adapter]
    modules = [module for layer in layers for module in layer.adapted.modules()]
    assert len(layers) == 2 * backbone.shape.layers
    assert not any(module.training for module in modules)
    assert not any(isinstance(module, torch.nn.Dropout) for module in modules)
    added = [
        parameter
        for layer in layers
        for name, parameter in layer.adapted.named_parameters()
        if not name.startswith("base_layer")
    ]
    assert len(added) == 2 * len(layers)
    assert not any(parameter.requires_grad for parameter in added)


def test_loading_draws_no_random_numbers_and_warns_of_nothing(backbone, folder, recwarn):
    rewrite(folder, rank_pattern={"a_layer_that_is_not_there": 8})  # PEFT warns of it
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    adapted(backbone, folder)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not [str(warning.message) for warning in recwarn]


def _no_folder(folder):
    shutil.rmtree(folder)


def _folder_is_a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("")


def _no_config(folder):
    (folder / CONFIG).unlink()


def _no_weights(folder):
    (folder / WEIGHTS).unlink()


def _pickled(folder):
    torch.save(load_file(folder / WEIGHTS), folder / "adapter_model.bin")
    (folder / WEIGHTS).unlink()


def _half_of_the_weights_file(folder):
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


def _lacks_a_layer(folder):
    rewrite_weights(folder, lambda stored: dict(sorted(stored.items())[2:]))


def _other_shape(folder):
    rewrite_weights(
        folder,
        lambda stored: {n: t[:, :-8].clone() if "lora_A" in n else t for n, t in stored.items()},
    )


def _deeper_model(folder):
    rewrite_weights(
        folder,
        lambda stored: (
            stored
            | {
                n.replace("layers.1", "layers.9"): t.clone()
                for n, t in stored.items()
                if ".1." in n
            }
        ),
    )


def _not_a_number(folder):
    rewrite_weights(folder, lambda stored: {n: t / 0 for n, t in stored.items()})


def _whole_numbers(folder):
    rewrite_weights(folder, lambda stored: {n: t.to(torch.int8) for n, t in stored.items()})


def _set(**settings):
    return lambda folder: rewrite(folder, **settings)


def _config_text(text):
    return lambda folder: (folder / CONFIG).write_text(text)


REFUSALS = {
    "no folder": (_no_folder, ModelNotFoundError, "no such adapter folder"),
    "a file": (_folder_is_a_file, ModelNotFoundError, "no such adapter folder"),
    "no config": (_no_config, ModelNotFoundError, "holds no adapter (adapter_config.json)"),
    "no weights": (_no_weights, ModelNotFoundError, "holds no weights of an adapter"),
    "pickled": (_pickled, InputError, "pickled"),
    "empty weights": (lambda folder: (folder / WEIGHTS).write_bytes(b""), InputError, "damaged"),
    "truncated weights": (_half_of_the_weights_file, InputError, "damaged"),
    "weights of a layer missing": (_lacks_a_layer, InputError, "are missing"),
    "weights of another width": (_other_shape, InputError, "another shape"),
    "weights of a deeper model": (_deeper_model, InputError, "belong to no layer"),
    "not a number": (_not_a_number, InputError, "is not finite in float32"),
    "whole numbers": (_whole_numbers, InputError, "no floating-point numbers"),
    "config no JSON": (_config_text("{"), InputError, "cannot be read as JSON"),
    "config a list": (_config_text("[]"), InputError, "no JSON object"),
    "config not UTF-8": (
        lambda folder: (folder / CONFIG).write_bytes(b"\xff\xfe{}"),
        InputError,
        "cannot be read as JSON",
    ),
    "another kind": (_set(peft_type="PREFIX_TUNING"), InputError, "not a LoRA adapter"),
    "no kind": (_config_text("{}"), InputError, "not a LoRA adapter"),
    "bias": (_set(bias="all"), InputError, "more than LoRA (bias)"),
    "whole modules": (_set(modules_to_save=["lm_head"]), InputError, "modules_to_save"),
    "replicated layers": (_set(layer_replication=[[0, 2]]), InputError, "layer_replication"),
    "PiSSA": (_set(init_lora_weights="pissa"), InputError, "init_lora_weights=pissa"),
    "unknown setting": (_set(use_tomorrow={"a": 1}), InputError, "use_tomorrow"),
    "other layers": (_set(target_modules=["c_attn"]), InputError, "does not fit"),
    "not a linear layer": (_set(target_modules=["self_attn"]), InputError, "does not fit"),
    "more layers": (_set(target_modules=["q_proj", "v_proj", "o_proj"]), InputError, "are missing"),
    "fewer layers": (_set(target_modules=["q_proj"]), InputError, "belong to no layer"),
    "another rank": (_set(r=5), InputError, "another shape"),
    "no rank": (_set(r=0), InputError, "settings are damaged: r is 0"),
    "a rank in words": (_set(r="four"), InputError, "settings are damaged: r is 'four'"),
    "a rank beyond all": (_set(r=10**400), InputError, "settings are damaged: r is 1000000"),
    "a rank of a layer in words": (_set(rank_pattern={"q": "x"}), InputError, "rank_pattern is"),
    "a scale in words": (_set(lora_alpha="x"), InputError, "settings are damaged: lora_alpha is"),
    "a scale without end": (_set(lora_alpha=float("inf")), InputError, "cannot be read as JSON"),
    "layers by number": (_set(target_modules=[1]), InputError, "target_modules is [1]"),
    "broken pattern": (_set(target_modules="(q_proj"), InputError, "target_modules is '(q_proj'"),
}


@pytest.mark.parametrize("case", sorted(REFUSALS))
def test_a_refused_adapter_is_named_in_one_line_and_leaves_no_trace(backbone, folder, case):
    spoil, kind, words = REFUSALS[case]
    spoil(folder)
    first, facts = computed(backbone), facts_of(backbone.model)
    with pytest.raises(InputError) as refusal:
        adapted(backbone, folder)
    assert type(refusal.value) is kind
    line = str(refusal.value)
    assert words in line
    assert str(folder) in line
    assert refusal.value.hint
    assert "\n" not in line
    assert facts_of(backbone.model) == facts
    assert not backbone.adapters
    assert same(computed(backbone), first)


def test_a_good_adapter_loads_after_a_refused_one(backbone, saved, folder):
    expected = computed(adapted(backbone, saved))
    backbone.adapters.clear()
    rewrite(folder, target_modules=["q_proj", "v_proj", "o_proj"])
    with suppress(InputError):
        adapted(backbone, folder)
    assert same(computed(adapted(backbone, saved)), expected)


def test_an_adapter_of_another_model_is_refused(backbone, tiny_folder, tmp_path):
    wide = save_tiny_model(tmp_path / "wide", {"model_type": "llama", "hidden_size": 128})
    folder = save_tiny_adapter(wide, tmp_path / "adapter")
    with pytest.raises(InputError, match="another shape"):
        adapted(backbone, folder)


def test_weights_too_large_for_the_dtype_of_the_model_are_refused(tiny_folder, folder):
    backbone = load(str(tiny_folder("llama")), device="cpu", dtype="float16")
    rewrite_weights(folder, lambda stored: {n: t * 1e6 for n, t in stored.items()})
    with pytest.raises(InputError, match="not finite in float16"):
        adapted(backbone, folder)


def test_a_view_takes_no_second_adapter(backbone, saved):
    with pytest.raises(InputError, match="already runs with an adapter"):
        adapted(adapted(backbone, saved), saved)


def test_a_view_is_no_base_to_train_on(backbone, saved):
    with pytest.raises(InputError, match="already runs with an adapter"):
        base_facts(adapted(backbone, saved))


def test_without_peft_the_hint_says_what_to_install(backbone, saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InputError, match=r"pip install peft"):
        adapted(backbone, saved)


def test_peft_is_imported_only_when_an_adapter_is_wanted():
    code = "import sys, coinkv.model.adapter; print('peft' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def write_card(folder, text):
    (folder / "coinkv_adapter.json").write_text(text)


def test_a_card_says_what_the_adapter_was_trained_on(backbone, folder):
    assert read_card(folder) is None
    write_card(
        folder,
        json.dumps({"base_fingerprint": backbone.fingerprint, "scope": "live", "steps": 300}),
    )
    assert read_card(folder) == AdapterCard(backbone.fingerprint, "live", {"steps": 300})
    assert adapted(backbone, str(folder)).adapter in backbone.adapters


def test_an_adapter_whose_card_names_another_backbone_is_refused(backbone, folder):
    write_card(folder, json.dumps({"base_fingerprint": "f" * 64, "scope": "all"}))
    with pytest.raises(InputError) as refusal:
        adapted(backbone, folder)
    assert "f" * 16 in str(refusal.value)
    assert backbone.fingerprint[:16] in str(refusal.value)
    assert not backbone.adapters


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"base_fingerprint": "a"}',
        '{"base_fingerprint": "a", "scope": "some"}',
        '{"base_fingerprint": 3, "scope": "all"}',
        '{"base_fingerprint": "a", "scope": ["all"]}',
    ],
)
def test_a_damaged_card_is_refused(backbone, folder, text):
    write_card(folder, text)
    for call in (lambda: read_card(folder), lambda: adapted(backbone, folder)):
        with pytest.raises(InputError, match=r"coinkv_adapter\.json"):
            call()


@pytest.mark.parametrize("name", ["nowhere", "a" * 5000, "~no-such-user/adapter"])
def test_a_name_that_is_no_folder_is_refused(backbone, name):
    for call in (lambda: read_card(name), lambda: adapted(backbone, name)):
        with pytest.raises(ModelNotFoundError, match="folder"):
            call()
