"""Adapters by name: what ships, what lies in the user's folder, and which one is the default."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coinkv.errors import InputError, ModelNotFoundError, StorageError
from coinkv.model.adapter import CARD, adapted, base_facts, default_adapter, read_card
from coinkv.model.adapter_entry import Gain, adapter_entries, adapter_entry
from coinkv.model.load import load
from coinkv.model.shipped import adapter_folder, adapters_in, named_adapters, printable
from tiny_adapters import save_tiny_adapter, write_card
from tiny_models import SUPPORTED, save_tiny_model


@pytest.fixture(scope="module")
def saved(tiny_folder, tmp_path_factory):
    return save_tiny_adapter(tiny_folder("llama"), tmp_path_factory.mktemp("adapter") / "saved")


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """The folder of shipped adapters, empty."""
    monkeypatch.setattr("coinkv.model.shipped.SHIPPED", tmp_path / "shipped")
    return tmp_path / "shipped"


@pytest.fixture
def users(shipped, tmp_path, monkeypatch):
    """The user's folder of adapters, empty."""
    monkeypatch.setenv("COINKV_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "adapters"


def test_without_any_folder_of_adapters_there_is_no_name_and_no_default(users, tiny_backbone):
    assert named_adapters() == {}
    assert default_adapter(tiny_backbone()) is None
    assert adapter_entries() == []


def test_an_adapter_is_found_by_name_in_either_place(users, shipped, saved):
    shutil.copytree(saved, users / "mine")
    shutil.copytree(saved, shipped / "ours")
    assert adapter_folder("mine") == users / "mine"
    assert adapter_folder("ours") == shipped / "ours"
    assert list(named_adapters()) == ["mine", "ours"]


def test_a_shipped_adapter_goes_before_the_users_of_that_name(users, shipped, saved):
    shutil.copytree(saved, users / "same")
    shutil.copytree(saved, shipped / "same")
    assert adapter_folder("same") == shipped / "same"


def test_a_folder_that_exists_goes_before_a_name(users, saved, tmp_path, monkeypatch):
    shutil.copytree(saved, users / "tuned")
    shutil.copytree(saved, tmp_path / "work" / "tuned")
    monkeypatch.chdir(tmp_path / "work")
    assert adapter_folder("tuned").resolve() == tmp_path / "work" / "tuned"


@pytest.mark.parametrize("name", ["../mine", "mine/", "min", "adapters/mine"])
def test_only_a_whole_name_is_a_name(users, saved, name):
    shutil.copytree(saved, users / "mine")
    with pytest.raises(ModelNotFoundError, match="one of mine"):
        adapter_folder(name)


def test_an_unknown_name_is_refused_with_the_names_there_are(users, shipped, saved):
    for number in range(10):
        shutil.copytree(saved, users / f"a{number}")
    with pytest.raises(ModelNotFoundError, match=r"or one of a0, a1, .*a7, \.\.\.$"):
        adapter_folder("other")


def test_what_holds_no_file_of_an_adapter_is_no_adapter(users, saved):
    shutil.copytree(saved, users / "mine")
    (users / "notes").mkdir()
    (users / "file").write_text("hello")
    assert list(adapters_in(users)) == ["mine"]


def test_a_folder_of_adapters_that_cannot_be_read_is_an_error_of_one_line(tmp_path, monkeypatch):
    def refused(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.iterdir", refused)
    with pytest.raises(StorageError, match="cannot be read \\(Permission denied\\)"):
        adapters_in(tmp_path)


def test_looking_names_up_needs_no_torch():
    code = (
        "import sys, coinkv.model.shipped as s; s.named_adapters(); print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_an_adapter_and_its_card_are_loaded_by_name(users, saved, tiny_backbone):
    backbone = tiny_backbone()
    write_card(shutil.copytree(saved, users / "mine"), backbone, steps=3)
    assert read_card("mine").facts == {"steps": 3}
    assert adapted(backbone, "mine").adapter == adapted(backbone, saved).adapter


def test_the_default_is_the_shipped_one_that_says_so_and_was_trained_on_this_backbone(
    shipped, saved, tiny_backbone, tiny_folder
):
    backbone = tiny_backbone()
    write_card(shutil.copytree(saved, shipped / "a"), backbone)
    write_card(shutil.copytree(saved, shipped / "b"), tiny_backbone("qwen2"), default=True)
    shutil.copytree(saved, shipped / "c")
    assert default_adapter(backbone) is None
    write_card(shutil.copytree(saved, shipped / "d"), backbone, default=True)
    assert default_adapter(backbone) == shipped / "d"
    assert default_adapter(tiny_backbone("qwen2")) == shipped / "b"


@pytest.mark.parametrize("facts", [{"scope": "all"}, {"default": "yes"}, {"default": False}])
def test_no_other_card_makes_a_default(shipped, saved, tiny_backbone, facts):
    backbone = tiny_backbone()
    write_card(shutil.copytree(saved, shipped / "a"), backbone, **{"default": True, **facts})
    assert default_adapter(backbone) is None


def test_an_adapter_of_the_user_is_never_the_default(users, saved, tiny_backbone):
    write_card(shutil.copytree(saved, users / "mine"), tiny_backbone(), default=True)
    assert default_adapter(tiny_backbone()) is None


def test_a_damaged_card_that_ships_is_said_not_passed_over(shipped, saved, tiny_backbone):
    (shutil.copytree(saved, shipped / "a") / CARD).write_text("{")
    with pytest.raises(InputError, match="cannot be read as JSON"):
        default_adapter(tiny_backbone())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_adapter_fits_the_backbone_it_was_trained_on_in_another_dtype(
    shipped, saved, tiny_backbone, tiny_folder, dtype
):
    folder = write_card(shutil.copytree(saved, shipped / "a"), tiny_backbone(), default=True)
    other = load(str(tiny_folder("llama")), device="cpu", dtype=dtype)
    assert other.fingerprint != tiny_backbone().fingerprint
    assert default_adapter(other) == folder
    assert adapted(other, folder).adapter is not None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_weights_of_the_same_shape_are_another_base_in_any_dtype(
    saved, tiny_backbone, tmp_path, dtype
):
    folder = write_card(shutil.copytree(saved, tmp_path / "a"), tiny_backbone())
    other = load(
        str(save_tiny_model(tmp_path / "other", SUPPORTED["llama"], seed=1)),
        device="cpu",
        dtype=dtype,
    )
    assert not read_card(folder).fits(other)
    with pytest.raises(InputError, match="was trained on the backbone"):
        adapted(other, folder)


def test_the_same_weights_with_another_rotation_are_another_base(
    saved, tiny_backbone, tiny_folder, tmp_path
):
    folder = write_card(shutil.copytree(saved, tmp_path / "a"), tiny_backbone())
    backbone = load(str(tiny_folder("llama")), device="cpu", dtype="bfloat16")
    rope = replace(backbone.rope, inv_freq=backbone.rope.inv_freq * 1.1)
    card = read_card(folder)
    assert card.fits(backbone)
    assert not card.fits(replace(backbone, rope=rope))


def test_one_changed_weight_is_another_base(saved, tiny_backbone, tiny_folder, tmp_path):
    folder = write_card(shutil.copytree(saved, tmp_path / "a"), tiny_backbone())
    backbone = load(str(tiny_folder("llama")), device="cpu", dtype="bfloat16")
    with torch.no_grad():
        backbone.model.model.layers[1].mlp.up_proj.weight[0, 0] += 0.5
    assert not read_card(folder).fits(backbone)


def test_a_card_without_digests_of_the_weights_fits_in_its_dtype_only(
    saved, tiny_backbone, tiny_folder, tmp_path
):
    folder = shutil.copytree(saved, tmp_path / "a")
    card = {"base_fingerprint": tiny_backbone().fingerprint, "scope": "live"}
    (folder / CARD).write_text(json.dumps(card))
    assert read_card(folder).fits(tiny_backbone())
    other = load(str(tiny_folder("llama")), device="cpu", dtype="bfloat16")
    with pytest.raises(InputError, match="in the same dtype"):
        adapted(other, folder)


def test_what_a_card_says_of_its_base_is_the_same_while_an_adapter_computes(saved, tiny_folder):
    backbone = load(str(tiny_folder("llama")), device="cpu")
    alone = base_facts(backbone)
    with ThreadPoolExecutor() as others:
        with adapted(backbone, saved).computing():
            asked = others.submit(base_facts, backbone)
            wait([asked], timeout=0.3)  # it may not look at the model before the pass has ended
        assert asked.result() == alone


def gained(name, questions, method, without, with_it, **facts):
    scores = {"f1_without": without, "f1_with": with_it}
    return {"set": name, "questions": questions, "method": method, **scores, **facts}


def test_what_chose_the_weights_is_told_where_nothing_else_was_measured(
    saved, tiny_backbone, tmp_path
):
    gain = [gained("a", 10, "coinrag", 10.0, 22.0, asked_of="own passages")]
    folder = shutil.copytree(saved, tmp_path / "a")
    write_card(folder, tiny_backbone(), base="tiny", method="coinrag", gain=gain)
    assert adapter_entry(folder).gain == Gain(12.0, 10)


def test_an_entry_tells_what_the_card_and_the_settings_say(saved, tiny_backbone, tmp_path):
    gain = [
        gained("a", 10, "coinrag", 10.0, 22.0),
        gained("b", 20, "coinrag", 20.0, 26.0),
        gained("b", 20, "standard_rag", 20.0, 100.0),
        gained("c", 40, "coinrag", 20.0, 90.0, asked_of="own passages"),
    ]
    folder = shutil.copytree(saved, tmp_path / "a")
    write_card(folder, tiny_backbone(), base="tiny", method="coinrag", gain=gain, default=True)
    told = adapter_entry(folder).to_dict()
    assert told == {
        "name": "a",
        "folder": str(folder),
        "base": "tiny",
        "method": "coinrag",
        "scope": "live",
        "rank": 4,
        "bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "f1_gain": 9.0,
        "f1_gain_questions": 30,
        "shipped": False,
        "default": False,
        "damage": None,
    }


@pytest.mark.parametrize(
    "gain",
    [
        *(None, [], "much", [{"set": "a"}], [3], [{"f1_with": 2, "f1_without": 1}]),
        *([gained("a", 1, "", 1, with_it)] for with_it in ("x", 10**400, 1e308, -200)),
        *([gained("a", count, "", 1, 2)] for count in (0, -1, 10**400, "many", None)),
    ],
)
def test_a_gain_that_makes_no_sense_is_no_gain(saved, tiny_backbone, tmp_path, gain):
    folder = write_card(shutil.copytree(saved, tmp_path / "a"), tiny_backbone(), gain=gain, base=7)
    entry = adapter_entry(folder)
    assert entry.gain is None
    assert entry.to_dict()["base"] is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("adapter_model.safetensors", "cannot be read as safetensors"),
        ("adapter_config.json", "cannot be read as JSON"),
        (CARD, "cannot be read as JSON"),
    ],
)
def test_a_damaged_adapter_is_listed_with_the_reason(users, saved, tiny_backbone, name, words):
    whole = write_card(shutil.copytree(saved, users / "whole"), tiny_backbone())
    damaged = shutil.copytree(whole, users / "damaged")
    content = (damaged / name).read_bytes()
    (damaged / name).write_bytes(content[: len(content) // 2])
    entries = {entry.name: entry for entry in adapter_entries()}
    assert entries["whole"].damage is None
    assert words in entries["damaged"].damage
    assert str(damaged) in entries["damaged"].damage


def test_a_list_has_other_folders_of_adapters_and_single_adapters_too(users, saved, tmp_path):
    shutil.copytree(saved, users / "mine")
    shutil.copytree(saved, tmp_path / "more" / "x")
    shutil.copytree(saved, tmp_path / "one")
    names = [entry.name for entry in adapter_entries(tmp_path / "more", tmp_path / "one")]
    assert names == ["mine", "x", "one"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Rye [red]and[/red] \u00e9\u4e2d\U0001f33e", "Rye [red]and[/red] \u00e9\u4e2d\U0001f33e"),
        ("a\x1b[31m\nb\r\tc\x9b", "a\\x1b[31m\\nb\\r\\tc\\x9b"),
        ("a\u202eb\u2028c\ud800", "a\\u202eb\\u2028c\\ud800"),
        ("a" * 41, "a" * 37 + "..."),
        ("", ""),
    ],
)
def test_what_a_terminal_may_have_is_one_line_without_control_characters(text, shown):
    assert printable(text, 40) == shown


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.name)])
def test_a_card_that_is_no_file_is_damage_and_not_waited_for(saved, tmp_path, make):
    folder = shutil.copytree(saved, tmp_path / "a")
    make(folder / CARD)
    assert "it is no file" in adapter_entry(folder).damage
    with pytest.raises(InputError, match="it is no file"):
        read_card(folder)


def test_numbers_that_json_has_not_are_damage(saved, tiny_backbone, tmp_path):
    folder = write_card(shutil.copytree(saved, tmp_path / "a"), tiny_backbone(), more=float("nan"))
    assert "cannot be read as JSON" in adapter_entry(folder).damage


def test_all_that_a_card_says_comes_back(saved, tiny_backbone, tmp_path):
    folder = write_card(shutil.copytree(saved, tmp_path / "a"), tiny_backbone(), name="a", gain=[])
    assert read_card(folder).to_dict() == json.loads((folder / CARD).read_text())
