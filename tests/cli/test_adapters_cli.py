"""`coinkv adapters`, and the adapter that `ask` and `demo` use where nothing else is said."""

from __future__ import annotations

import json
import shutil

import pytest

from coinkv.cli.output import size as shown
from small_corpus import QUESTIONS, write_documents
from tiny_adapters import save_tiny_adapter, write_card

NAME = "tiny-nuggets"
GAIN = [{"set": "a", "questions": 3, "method": "coinrag", "f1_without": 8.5, "f1_with": 21.0}]


@pytest.fixture(scope="module")
def saved(model_folder, tmp_path_factory):
    return save_tiny_adapter(model_folder, tmp_path_factory.mktemp("adapter") / "saved")


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Folders of shipped adapters and of the user's, empty."""
    monkeypatch.setattr("coinkv.model.shipped.SHIPPED", tmp_path / "shipped")
    monkeypatch.setenv("COINKV_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def shipped(places, saved, backbone):
    """The adapter that ships for the backbone."""
    facts = {"default": True, "base": "tiny-llama", "method": "coinrag", "gain": GAIN}
    return write_card(shutil.copytree(saved, places / "shipped" / NAME), backbone, **facts)


def facts_of(ran):
    assert ran.code == 0, ran
    return json.loads(ran.out)


def refused(ran, says):
    assert ran.code == 2, ran
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1
    assert says in ran.err


def test_a_list_without_adapters_says_so(coinkv, places):
    assert coinkv("adapters", "list").out == "no adapters\n"
    assert facts_of(coinkv("adapters", "list", "--json")) == {"adapters": []}


def test_a_list_tells_what_ships_what_the_user_has_and_what_lies_elsewhere(
    coinkv, places, shipped, saved
):
    shutil.copytree(saved, places / "home" / "adapters" / "mine")
    shutil.copytree(saved, places / "more" / "third")
    listed = facts_of(coinkv("adapters", "list", "--folder", places / "more", "--json"))
    told = {each["name"]: each for each in listed["adapters"]}
    assert list(told) == [NAME, "mine", "third"]
    size = sum(path.stat().st_size for path in shipped.iterdir())
    assert told[NAME] == {
        "name": NAME,
        "folder": str(shipped),
        "base": "tiny-llama",
        "method": "coinrag",
        "scope": "live",
        "rank": 4,
        "bytes": size,
        "f1_gain": 12.5,
        "f1_gain_questions": 3,
        "shipped": True,
        "default": True,
        "damage": None,
    }
    assert (told["mine"]["scope"], told["mine"]["rank"]) == (None, 4)
    lines = coinkv("adapters", "list").out.splitlines()
    sizes = {name: shown(facts["bytes"]) for name, facts in told.items()}
    facts = f"for tiny-llama, trained as coinrag, scope live, rank 4, {sizes[NAME]}"
    facts += ", F1 +12.5 over 3 questions"
    assert lines == [f"{NAME}: {facts}, default", f"mine: rank 4, {sizes['mine']}"]


def test_a_damaged_adapter_is_listed_as_damaged_with_the_reason(coinkv, places, shipped):
    whole = shutil.copytree(shipped, places / "home" / "adapters" / "[b]whole[b")
    damaged = shutil.copytree(shipped, places / "home" / "adapters" / "damaged")
    (damaged / "adapter_model.safetensors").write_bytes(b"{")
    ran = coinkv("adapters", "list")
    assert ran.code == 0
    first, *_, last = ran.out.splitlines()
    assert first.startswith(f"{NAME}: for")
    assert f"{whole.name}: for" in ran.out
    assert last.startswith(f"damaged: damaged: {damaged}")
    assert "cannot be read as safetensors" in last


def test_a_folder_that_is_not_there_is_refused(coinkv, places):
    refused(coinkv("adapters", "list", "--folder", places / "nowhere"), "no such folder")


def test_show_tells_all_of_an_adapter_by_name_or_folder(coinkv, shipped, model_folder, backbone):
    shown = facts_of(coinkv("adapters", "show", NAME, "--json", "--model", model_folder))
    assert shown == facts_of(coinkv("adapters", "show", shipped, "--json", "--model", model_folder))
    assert shown["card"] == json.loads((shipped / "coinkv_adapter.json").read_text())
    assert set(shown["files"]) == {path.name for path in shipped.iterdir()}
    assert len(shown["digest"]) == 64
    assert shown["settings"]["target_modules"] == ["q_proj", "v_proj"]
    assert shown["fit"] == {
        "model": str(model_folder),
        "fingerprint": backbone.fingerprint,
        "fits": True,
        "reason": None,
    }
    text = coinkv("adapters", "show", NAME)
    assert shown["digest"] in text.out
    assert '"f1_with": 21.0' in text.out


def test_show_tells_why_an_adapter_does_not_fit(coinkv, shipped, tiny_folder):
    ran = coinkv("adapters", "show", NAME, "--model", tiny_folder("qwen2"))
    assert ran.code == 0
    assert "it does not fit: " in ran.out
    assert "was trained on the backbone" in ran.out


@pytest.mark.parametrize(
    "file", ["adapter_model.safetensors", "adapter_config.json", "coinkv_adapter.json"]
)
def test_show_refuses_a_damaged_adapter_in_one_line(coinkv, shipped, file):
    (shipped / file).write_bytes(b"{")
    refused(coinkv("adapters", "show", NAME), file)


def test_show_refuses_a_name_that_is_not_known(coinkv, shipped):
    refused(coinkv("adapters", "show", "other"), f"or one of {NAME}")


def ask(coinkv, folder, *more):
    ran = coinkv("ask", QUESTIONS[0], "--index", folder, "--max-tokens", 6, *more)
    assert ran.code == 0, ran
    return ran


def test_ask_uses_the_adapter_that_ships_unless_told_otherwise(coinkv, built, shipped):
    used = facts_of(ask(coinkv, built[0], "--json"))
    assert used["adapter"]["name"] == NAME
    assert facts_of(ask(coinkv, built[0], "--json", "--no-adapter"))["adapter"] is None
    digest = used["adapter"]["digest"][:8]
    assert f"coinrag with the adapter {NAME} ({digest}): first token" in ask(coinkv, built[0]).err
    assert "adapter" not in ask(coinkv, built[0], "--no-adapter").err


def test_ask_takes_another_adapter_by_name_or_folder(coinkv, built, shipped, places, saved):
    mine = shutil.copytree(saved, places / "home" / "adapters" / "mine")
    for adapter in ("mine", mine):
        answer = facts_of(ask(coinkv, built[0], "--json", "--adapter", adapter))
        assert answer["adapter"]["name"] == "mine"


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("--adapter", NAME, "--no-adapter"), "both given"),
        (("--adapter", "other"), f"or one of {NAME}"),
        (("--adapter-scope", "all"), "live only"),
        (("--no-adapter", "--adapter-scope", "live"), "without an adapter"),
    ],
)
def test_ask_refuses_what_contradicts_itself(coinkv, built, shipped, typed, says):
    refused(coinkv("ask", "Why?", "--index", built[0], *typed), says)


def test_eval_uses_no_adapter_unless_one_is_named(coinkv, built, shipped, tmp_path):
    row = {"question": QUESTIONS[0], "answers": ["Anna Holm"]}
    (tmp_path / "set.jsonl").write_text(json.dumps(row))
    command = ("eval", "--index", built[0], "--questions", tmp_path / "set.jsonl")
    command = (*command, "--answer-tokens", 4, "--json")
    assert facts_of(coinkv(*command))["adapter"] is None
    assert facts_of(coinkv(*command, "--adapter", NAME))["adapter"] == NAME


@pytest.fixture
def small_demo(monkeypatch, tmp_path):
    """The demo over the village, as the demo's own documents are too much for a test."""
    data = tmp_path / "package" / "demo_data"
    write_documents(data / "docs")
    rows = [{"question": question, "answers": ["x"]} for question in QUESTIONS[:1]]
    (data / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setattr("coinkv.cli.demo.files", lambda _: tmp_path / "package")


def test_demo_uses_the_adapter_that_ships_for_both_methods_unless_told_otherwise(
    coinkv, small_demo, shipped, model_folder, tmp_path
):
    command = ("demo", "--index", tmp_path / "index", "--model", model_folder)
    with_it, without = (
        [answer["adapter"] for answer in facts_of(ran)["questions"][0]["answers"]]
        for ran in (coinkv(*command, "--json"), coinkv(*command, "--json", "--no-adapter"))
    )
    assert [each["name"] for each in with_it] == [NAME, NAME]
    assert without == [None, None]
    assert f"Answered with the adapter {NAME}; --no-adapter does without." in coinkv(*command).out
    assert f"Answered with the adapter {NAME}.\n" in coinkv(*command, "--adapter", NAME).out


def test_demo_refuses_an_unknown_adapter_before_it_builds(coinkv, shipped, tmp_path):
    refused(coinkv("demo", "--index", tmp_path / "index", "--adapter", "other"), NAME)
    assert not (tmp_path / "index").exists()


HOSTILE = "[red]x[/red]\x1b]0;y\x07\n\u202e"


def is_plain(text):
    return all(line.isprintable() for line in text.splitlines())


def test_what_names_and_cards_say_does_nothing_to_the_terminal(
    coinkv, built, places, saved, backbone
):
    folder = shutil.copytree(saved, places / "home" / "adapters" / HOSTILE.replace("/", "-"))
    write_card(folder, backbone, name=HOSTILE, base=HOSTILE, method="y" * 10**6, gain=HOSTILE)
    listed = coinkv("adapters", "list")
    assert (listed.code, len(listed.out.splitlines())) == (0, 1)
    assert "[red]x[-red]\\x1b]0;y\\x07\\n\\u202e: for [red]x[/red]\\x1b]0;y" in listed.out
    shown = coinkv("adapters", "show", folder)
    assert shown.code == 0
    asked = ask(coinkv, built[0], "--adapter", folder)
    assert "with the adapter [red]x[-red]\\x1b]0;y\\x07\\n\\u202e (" in asked.err
    for text in (listed.out, shown.out, asked.err):
        assert is_plain(text)
        assert len(text) < 50_000


def test_a_card_that_says_nonsense_leaves_the_list_as_it_is(coinkv, places, saved, backbone):
    gain = [{**GAIN[0], "f1_with": 10**400}]
    write_card(shutil.copytree(saved, places / "home" / "adapters" / "a"), backbone, gain=gain)
    shutil.copytree(saved, places / "home" / "adapters" / "b")
    assert [line[:2] for line in coinkv("adapters", "list").out.splitlines()] == ["a:", "b:"]
    facts = facts_of(coinkv("adapters", "list", "--json"))
    assert [each["f1_gain"] for each in facts["adapters"]] == [None, None]


def test_the_default_can_be_named_and_is_then_wanted(
    coinkv, built, shipped, places, tiny_folder, monkeypatch
):
    monkeypatch.chdir(places)
    used = facts_of(ask(coinkv, built[0], "--json", "--adapter", "default"))
    assert used["adapter"]["name"] == NAME
    other = ("--model", tiny_folder("qwen2"), "--index", places / "other", "--chunk-tokens", 64)
    assert coinkv("build", write_documents(places / "docs"), *other).code == 0
    assert facts_of(ask(coinkv, places / "other", "--json"))["adapter"] is None
    refused(
        coinkv("ask", "Why?", "--index", places / "other", "--adapter", "default"),
        "was trained on the backbone",
    )
    shutil.rmtree(shipped)
    refused(coinkv("ask", "Why?", "--index", built[0], "--adapter", "default"), "no adapter ships")


def test_a_folder_called_default_goes_before_the_default(
    coinkv, built, shipped, places, saved, monkeypatch
):
    monkeypatch.chdir(places)
    shutil.copytree(saved, places / "default")
    used = facts_of(ask(coinkv, built[0], "--json", "--adapter", "default"))
    assert used["adapter"]["name"] == "default"
