"""The gate: what moves exactly passes, all else is refused with its reason, and both are kept."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import coinkv.model.load as loading
from coinkv.errors import InputError, UnsupportedModelError
from coinkv.kv.rope import Rope
from coinkv.model.fill import LiveCache, fill
from coinkv.model.gate import GateReport, Rung, check_backbone
from coinkv.model.load import load, measured
from coinkv.model.rotation import relative_difference
from tiny_models import REFUSED, SUPPORTED, VOCABULARY, make_tokenizer, save_tiny_model


@pytest.fixture
def own_home(tmp_path, monkeypatch):
    """A home folder of this test alone, so that no verdict is kept yet."""
    monkeypatch.setenv("COINKV_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path):
    return save_tiny_model(tmp_path / "llama", SUPPORTED["llama"])


def change_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def no_measuring(*_args, **_kwargs):
    raise AssertionError("the gate measured again")


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_every_supported_model_passes(tiny_folder, name):
    _, report = measured(str(tiny_folder(name)), device="cpu", again=True)
    assert report.passed, report.reason
    assert report.reason == ""
    assert {rung.name[:6] for rung in report.rungs} == {"rung 1", "rung 2", "rung 3", "rung 5"}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_model_whose_kv_cannot_be_moved_is_refused_with_the_reason(tmp_path, name):
    options, reason = REFUSED[name]
    folder = save_tiny_model(tmp_path / name, options)
    for _ in range(2):  # the second time from the kept verdict, where there is one
        with pytest.raises(UnsupportedModelError) as refusal:
            load(str(folder), device="cpu")
        assert reason in str(refusal.value)
        assert str(folder) in str(refusal.value)
        assert refusal.value.hint
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["qwen3_next", "falcon_h1"])
def test_a_hybrid_whose_forward_pass_fails_under_the_gate_is_refused_not_crashed(tmp_path, name):
    options = {"model_type": name, "num_hidden_layers": 1, "mamba_d_ssm": 64, "mamba_n_heads": 4}
    folder = save_tiny_model(tmp_path / name, options)
    with pytest.raises(UnsupportedModelError, match="cannot be moved"):
        load(str(folder), device="cpu")


@pytest.mark.parametrize("name", ["llama-dynamic-ntk", "phi3-longrope"])
def test_a_model_with_length_dependent_frequencies_is_right_within_a_promised_context(
    tmp_path, name
):
    folder = save_tiny_model(tmp_path / name, REFUSED[name][0])
    with pytest.raises(UnsupportedModelError, match="max_context"):
        load(str(folder), device="cpu")
    backbone = load(str(folder), device="cpu", max_context=128)
    assert backbone.context_length == 128
    ids = torch.randint(2, VOCABULARY, (128,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.no_grad():
        reference = backbone.model(torch.tensor([ids])).logits[0]
    encoded = LiveCache.for_backbone(backbone, 100)
    fill(backbone, encoded, ids[:40], torch.arange(40), logits="none")
    fill(backbone, encoded, ids[40:100], torch.arange(40, 100), logits="none")
    cache = LiveCache.for_backbone(backbone, 128)
    cache.append(encoded.block(0, 40))
    elsewhere = encoded.block(40, 100).moved_to(torch.arange(7, 67), backbone.rope)
    cache.append(elsewhere.moved_to(torch.arange(40, 100), backbone.rope))
    logits = fill(backbone, cache, ids[100:], torch.arange(100, 128), logits="all")
    assert relative_difference(logits, reference[100:]) < 1e-4


def test_a_promised_context_beyond_the_models_own_is_an_input_error(folder):
    with pytest.raises(InputError, match="use 128 to 512"):
        load(str(folder), device="cpu", max_context=513)
    with pytest.raises(InputError, match="use 128 to 512"):
        load(str(folder), device="cpu", max_context=0)


def test_a_kept_verdict_is_used_instead_of_measuring(own_home, folder, monkeypatch):
    first, report = measured(str(folder), device="cpu")
    monkeypatch.setattr(loading, "check_backbone", no_measuring)
    monkeypatch.setattr(loading, "measure_rotation", no_measuring)
    second, kept = measured(str(folder), device="cpu")
    assert kept == report
    assert second.fingerprint == first.fingerprint
    assert torch.equal(second.rope.inv_freq, first.rope.inv_freq)
    assert second.rope.layout == first.rope.layout
    with pytest.raises(AssertionError, match="measured again"):
        measured(str(folder), device="cpu", again=True)


def test_a_kept_refusal_is_used_too(own_home, tmp_path, monkeypatch):
    folder = save_tiny_model(tmp_path / "ntk", REFUSED["llama-dynamic-ntk"][0])
    assert not measured(str(folder), device="cpu")[1].passed
    monkeypatch.setattr(loading, "check_backbone", no_measuring)
    with pytest.raises(UnsupportedModelError, match="past the declared context"):
        load(str(folder), device="cpu")


def emptied(_text):
    return ""


def cut_short(text):
    return text[: len(text) // 2]


def not_text(_text):
    return "\x00\x01"


def made_to_pass(text):
    return re.sub(r'"relative_difference": [^,]+', '"relative_difference": 0.5e-9', text)


def turned_around(text):
    return text.replace('"half"', '"interleaved"')


@pytest.mark.parametrize("damaged", [emptied, cut_short, not_text, made_to_pass, turned_around])
def test_a_damaged_verdict_is_measured_again_and_replaced(own_home, folder, monkeypatch, damaged):
    backbone, report = measured(str(folder), device="cpu")
    (kept,) = (own_home / "gate").iterdir()
    whole = kept.read_text()
    kept.write_text(damaged(whole))
    assert kept.read_text() != whole
    again, measured_report = measured(str(folder), device="cpu")
    assert measured_report == report
    assert again.fingerprint == backbone.fingerprint
    assert kept.read_text() == whole
    kept.write_bytes(b"\xff\xfe")
    monkeypatch.setattr(loading, "check_backbone", no_measuring)
    with pytest.raises(AssertionError, match="measured again"):
        load(str(folder), device="cpu")


def test_a_model_loads_where_its_verdict_cannot_be_kept(tmp_path, folder, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COINKV_HOME", str(tmp_path / "file"))
    assert load(str(folder), device="cpu").context_length == 512


def fingerprint(folder, **options):
    return measured(str(folder), device="cpu", **options)[0].fingerprint


def test_the_same_model_copied_elsewhere_has_the_same_fingerprint(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "deeper" / "copy")
    assert fingerprint(copy) == fingerprint(folder)


def test_one_changed_weight_gives_another_fingerprint(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    weights["model.layers.2.mlp.up_proj.weight"][0, 0] += 1e-3
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    assert fingerprint(copy) != fingerprint(folder)


def test_another_dtype_gives_another_fingerprint(folder):
    prints = {fingerprint(folder, dtype=d) for d in ("float32", "float16", "bfloat16")}
    assert len(prints) == 3


def test_another_tokenizer_gives_another_fingerprint(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["lamp"])
    tokenizer.save_pretrained(copy)
    assert fingerprint(copy) != fingerprint(folder)


@pytest.mark.parametrize("change", [{"rope_theta": 20000.0}, {"rope_type": "linear", "factor": 2}])
def test_another_rotation_gives_another_fingerprint(folder, tmp_path, change):
    copy = shutil.copytree(folder, tmp_path / "copy")
    rope = json.loads((copy / "config.json").read_text())["rope_parameters"]
    change_json(copy / "config.json", rope_parameters={**rope, **change})
    assert fingerprint(copy) != fingerprint(folder)


def test_file_names_and_library_versions_do_not_enter_the_fingerprint(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    change_json(
        copy / "config.json",
        _name_or_path="elsewhere",
        transformers_version="5.0.0",
        use_cache=False,
    )
    assert fingerprint(copy) == fingerprint(folder)


def test_another_context_promise_keeps_the_fingerprint_but_not_the_verdict(own_home, folder):
    assert fingerprint(folder, max_context=128) == fingerprint(folder)
    assert len(list((own_home / "gate").iterdir())) == 2


def test_the_hash_seed_of_python_does_not_matter(folder, tmp_path):
    code = (
        "import sys; from coinkv.model.load import measured; "
        "print(measured(sys.argv[1], device='cpu')[0].fingerprint)"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "COINKV_HOME": str(tmp_path / seed),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    assert {process.communicate()[0].strip() for process in running} == {fingerprint(folder)}


def test_the_default_model_moves_within_float_error():
    _, report = measured(device="cpu", again=True)
    assert report.passed, report.reason
    layer_0 = [rung for rung in report.rungs if rung.name.endswith("layer 0")]
    assert len(layer_0) == 3
    assert max(rung.relative_difference for rung in layer_0) < 1e-5


@pytest.mark.parametrize(
    "wrong",
    [
        lambda rope: Rope(rope.inv_freq * 1.01, rope.layout),
        lambda rope: Rope(rope.inv_freq.flip(-1), rope.layout),
        lambda rope: Rope(rope.inv_freq, "interleaved"),
        lambda rope: Rope(torch.zeros_like(rope.inv_freq), rope.layout),
        lambda rope: Rope(-rope.inv_freq, rope.layout),
    ],
)
def test_a_wrong_rotation_fails_the_gate(tiny_backbone, wrong):
    backbone = tiny_backbone("llama")
    report = check_backbone(replace(backbone, rope=wrong(backbone.rope)))
    assert not report.passed
    assert report.reason.startswith("rung 2")


def test_weights_that_are_no_numbers_never_pass(tmp_path):
    folder = save_tiny_model(tmp_path / "nan", SUPPORTED["llama"])
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.model.layers[1].self_attn.k_proj.weight.data[0, 0] = float("nan")
    model.save_pretrained(folder)
    with pytest.raises(UnsupportedModelError):
        load(str(folder), device="cpu")


def test_a_difference_that_is_no_number_counts_as_infinite():
    good, bad = torch.ones(3), torch.tensor([1.0, float("nan"), 1.0])
    assert relative_difference(good, bad) == relative_difference(bad, good) == float("inf")
    assert relative_difference(good, good) == 0
    assert relative_difference(torch.zeros(3), torch.zeros(3)) == 0
    assert relative_difference(good * 3, good * 2) == 0.5


def test_the_reason_names_the_first_rung_that_failed():
    rungs = tuple(Rung(f"rung {n}", 0.1, d, 0.01) for n, d in ((1, 0.0), (2, 0.5), (3, 0.7)))
    report = GateReport("m", "f", 512, rungs)
    assert not report.passed
    assert report.reason == "rung 2: differs by 0.5 of the largest value (allowed 0.01)"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "llama-yarn", "qwen3", "gemma3-two-thetas", "phi3"])
def test_sixteen_bit_models_pass_on_a_cpu(tiny_folder, name, dtype):
    backbone, report = measured(str(tiny_folder(name)), device="cpu", dtype=dtype, again=True)
    assert report.passed, report.reason
    assert backbone.dtype == getattr(torch, dtype)
    wrong = check_backbone(replace(backbone, rope=Rope(backbone.rope.inv_freq * 1.5, "half")))
    assert not wrong.passed


def test_a_tokenizer_of_another_model_is_an_input_error(tmp_path):
    folder = save_tiny_model(tmp_path / "small", {"model_type": "llama", "vocab_size": 300})
    with pytest.raises(InputError, match="its embeddings end at 299"):
        load(str(folder), device="cpu")


def test_every_end_token_of_the_generation_config_is_known(folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "ends"))
    change_json(copy / "generation_config.json", eos_token_id=[1, 7, 9])
    assert load(str(copy), device="cpu").end_token_ids == {1, 7, 9}
