"""`coinkv generate`: what a prompt may be made of, what is reused, and what is refused."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
import time

import pytest
import torch

from coinkv.boost.engine import KVBoost
from coinkv.cli.boost_options import byte_count
from coinkv.errors import InputError
from command_line import start
from fixtures.chat_model import *  # noqa: F403
from fixtures.chat_model import BRIDGE, CONTEXT, RIVER

TIMEOUT_SECONDS = 120


@pytest.fixture
def generate(coinkv, chat_folder):
    """Runs `coinkv generate` with the tiny chat model and short chunks and answers."""

    def run(*arguments):
        lengths = () if "--chunk-tokens" in arguments else ("--chunk-tokens", 8)
        lengths += () if "--max-new-tokens" in arguments else ("--max-new-tokens", 4)
        return coinkv("generate", *arguments, "--model", chat_folder, *lengths)

    return run


@pytest.fixture
def answer_of(chat_folder):
    """Token ids that Python generates, and the prompt's length."""

    def answer(prompt):
        with KVBoost.from_pretrained(chat_folder, budget_bytes=0, repair="none") as engine:
            result = engine.generate(prompt, 4, reuse="none")
        return list(result.token_ids), result.prompt_tokens

    return answer


@pytest.fixture
def piped(monkeypatch):
    """Puts a text on standard input."""

    def put(text):
        raw = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))

    return put


def facts_of(ran):
    assert (ran.code, ran.err) == (0, ""), ran
    return json.loads(ran.out)


def refused(ran, says):
    assert ran.code == 2, ran
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1, ran.err
    assert ran.err.startswith("error: ")
    assert says in ran.err


def test_the_text_goes_to_stdout_and_a_line_of_times_and_reuse_to_stderr(generate):
    ran = generate("Marta counted the sheep")
    facts = facts_of(generate("Marta counted the sheep", "--json"))
    assert ran.code == 0
    assert ran.out == facts["text"] + "\n"
    (line,) = ran.err.splitlines()
    assert re.match(r"first token after \d+ ms \(tokenize .* prefill \d+ ms\); \d+ tokens: ", line)
    assert line.endswith(f"0 exact, 0 moved, 0 repaired, {facts['prompt_tokens']} computed")


def test_a_prompt_is_continued_as_it_is_and_a_message_with_chat(generate, answer_of):
    user = {"role": "user", "content": "Marta"}
    system = {"role": "system", "content": "Be brief"}
    for expected, arguments in (
        (answer_of("Marta"), ()),
        (answer_of([user]), ("--chat",)),
        (answer_of([system, user]), ("--system", "Be brief")),
        (answer_of([system, user]), ("--system", "Be brief", "--chat")),
    ):
        facts = facts_of(generate("Marta", *arguments, "--json"))
        assert (facts["token_ids"], facts["prompt_tokens"]) == expected, arguments


def test_files_stand_before_the_prompt_in_their_order(generate, texts, chat_folder):
    river, bridge = texts
    joined = f"{RIVER.strip()}\n\n{BRIDGE.strip()}\n\nWho?"
    given = facts_of(generate("--file", river, "--file", bridge, "Who?", "--json"))
    assert given["prompt_tokens"] == facts_of(generate(joined, "--json"))["prompt_tokens"]
    assert given["token_ids"] == facts_of(generate(joined, "--json"))["token_ids"]
    alone = facts_of(generate("--file", river, "--json"))
    assert alone["token_ids"] == facts_of(generate(RIVER.strip(), "--json"))["token_ids"]


def test_standard_input_is_read_for_no_prompt_for_a_dash_and_as_a_file(generate, piped, texts):
    expected = facts_of(generate("The mill", "--json"))["token_ids"]
    for arguments in ((), ("-",), ("--file", "-")):
        piped("The mill\n")
        assert facts_of(generate(*arguments, "--json"))["token_ids"] == expected
    piped("The mill")
    both = facts_of(generate("--file", "-", "--file", texts[0], "Who?", "--json"))
    joined = f"The mill\n\n{RIVER.strip()}\n\nWho?"
    assert both["token_ids"] == facts_of(generate(joined, "--json"))["token_ids"]


def test_messages_of_a_file_go_on_with_the_prompt(generate, answer_of, tmp_path):
    said = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Marta."}]
    system, last = {"role": "system", "content": "Be brief"}, {"role": "user", "content": "Where?"}
    chat = tmp_path / "chat.json"
    command = ("--messages", chat, "--json")
    for written, more, expected in (
        (said, ("Where?",), [*said, last]),
        ([*said, last], (), [*said, last]),
        ([*said, last], ("--system", "Be brief"), [system, *said, last]),
        ([system, *said], ("Where?",), [system, *said, last]),
    ):
        chat.write_text(json.dumps(written))
        facts = facts_of(generate(*command, *more))
        assert (facts["token_ids"], facts["prompt_tokens"]) == answer_of(expected), more


def test_a_folder_keeps_kv_between_calls_and_nothing_is_kept_without(generate, tmp_path, texts):
    command = ("--file", texts[0], "Who?", "--json")
    for _ in range(2):
        assert facts_of(generate(*command))["reuse"]["exact"] == 0
    kept = ("--folder", tmp_path / "kv", "--repair", "selective")
    first = facts_of(generate(*command, *kept))
    again = facts_of(generate(*command, *kept))
    assert first["reuse"]["exact"] == 0
    assert again["reuse"] == {
        "exact": first["prompt_tokens"] - 1,
        "moved": 0,
        "repaired": 0,
        "computed": 1,
    }
    assert again["token_ids"] == first["token_ids"]
    moved = facts_of(generate("--file", texts[1], *command, *kept))
    assert moved["reuse"]["exact"] <= 3
    assert moved["reuse"]["repaired"] > 0
    assert moved["repair"] == "selective"
    assert sum(moved["reuse"].values()) == moved["prompt_tokens"]


def test_reuse_exact_and_none_and_another_namespace_move_nothing(generate, tmp_path, texts):
    kept = ("--folder", tmp_path / "kv", "--json", "--repair", "none")
    facts_of(generate("--file", texts[0], "Who?", *kept))
    command = ("--file", texts[1], "--file", texts[0], "Who?", *kept)
    assert facts_of(generate(*command, "--plan"))["moved"] > 30
    for more in (("--reuse", "exact"), ("--reuse", "none"), ("--namespace", "other")):
        assert facts_of(generate(*command, *more, "--plan"))["moved"] == 0, more
    none = facts_of(generate("--file", texts[0], "Who?", *kept, "--reuse", "none"))
    assert none["reuse"]["exact"] == none["kept_tokens"] == 0


def test_plan_says_what_would_be_reused_and_generates_and_keeps_nothing(generate, tmp_path, texts):
    kept = ("--folder", tmp_path / "kv", "--repair", "selective")
    generate("--file", texts[0], *kept)
    command = ("--file", texts[1], "--file", texts[0], "Who?", *kept, "--plan")
    planned = facts_of(generate(*command, "--json"))
    assert facts_of(generate(*command, "--json")) == planned
    assert [kind for _, _, kind in planned["spans"]].count("moved") == 1
    assert 0 < planned["repaired"] < planned["moved"]
    shown = generate(*command)
    assert (shown.code, shown.err) == (0, "")
    assert "moved" in shown.out
    assert "The river had risen in the night" in shown.out
    line = " ".join(shown.out.split("\n")[-2].split())
    assert line.startswith(f"{planned['prompt_tokens']} tokens: {planned['exact']} exact, ")
    assert line.endswith(f"{planned['computed']} computed")


def test_a_plan_makes_no_folder(generate, tmp_path):
    kept = ("--folder", tmp_path / "kv", "--disk-budget", "1MB")
    facts = facts_of(generate("The mill", *kept, "--plan", "--json"))
    assert facts["computed"] == facts["prompt_tokens"]
    assert not (tmp_path / "kv").exists()


def test_the_options_of_sampling_arrive(generate):
    def token_ids(*more):
        return facts_of(generate("The mill", "--json", "--max-new-tokens", 12, *more))["token_ids"]

    greedy = token_ids()
    assert len(greedy) <= 12
    warm = ("--temperature", 3, "--seed")
    assert token_ids(*warm, 1) == token_ids(*warm, 1) != token_ids(*warm, 2)
    assert token_ids(*warm, 1, "--top-p", 1e-6) == greedy
    text = facts_of(generate("The mill", "--json", "--max-new-tokens", 12))["text"]
    stopped = facts_of(
        generate("The mill", "--json", "--max-new-tokens", 12, "--stop", text[3], "--stop", "~~~")
    )
    assert stopped["text"] == text[: text.index(text[3])]
    assert facts_of(generate("The mill", "--json", "--max-new-tokens", 0))["text"] == ""


def test_codec_boundaries_and_budgets_arrive(generate, tmp_path, texts):
    sizes = {}
    for codec in ("raw", "kivi"):
        folder = tmp_path / codec
        generate("--file", texts[0], "--folder", folder, "--codec", codec, "--boundaries", "fixed")
        sizes[codec] = sum(path.stat().st_size for path in (folder / "blocks").rglob("*.*"))
    assert sizes["kivi"] < sizes["raw"] / 2
    small = ("--folder", tmp_path / "small", "--disk-budget", "1KB", "--budget", "1KB", "--json")
    for _ in range(2):
        assert facts_of(generate("--file", texts[0], *small))["reuse"]["exact"] == 0


def test_threads_and_dtype_and_context_arrive(generate):
    threads = torch.get_num_threads()
    try:
        facts_of(generate("The mill", "--threads", 2, "--json", "--dtype", "float32"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    refused(generate("The mill " * 90, "--max-context", 128), "holds 128")


BAD = {
    "budget": (("--budget", "2XB"), "'2XB' is no size; use a size such as 2GB"),
    "disk budget": (("--folder", "kv", "--disk-budget", "-1"), "'-1' is no size"),
    "disk budget alone": (("--disk-budget", "1GB"), "give --folder"),
    "repair": (("--repair", "glue"), "'glue' is not one of 'auto', 'selective'"),
    "reuse": (("--reuse", "some"), "'some' is not one of"),
    "boundaries": (("--boundaries", "some"), "'some' is not one of"),
    "codec": (("--codec", "zip"), "'zip' is not one of"),
    "chunk tokens": (("--folder", "kv", "--chunk-tokens", "2"), "chunk_tokens is 2; use 8 to"),
    "temperature": (("--temperature", "-1"), "temperature is -1"),
    "top p": (("--top-p", "0"), "top_p is 0"),
    "new tokens": (("--max-new-tokens", "-1"), "max_tokens is -1"),
    "threads": (("--threads", "0"), "threads is 0"),
}


@pytest.mark.parametrize("option", BAD)
def test_a_bad_option_is_one_line_and_nothing_is_written(generate, tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    more, says = BAD[option]
    refused(generate("The mill", *more), says)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file_is_refused(generate, texts):
    refused(generate("The mill", "--folder", texts[0]), "is a file")
    assert texts[0].read_text() == RIVER


BAD_PROMPTS = {
    "empty": (("",), "the prompt is empty"),
    "blank": (("  \n",), "the prompt is empty"),
    "no such file": (("--file", "none.txt"), "none.txt: no such file"),
    "a folder": (("--file", "."), "cannot be read"),
    "an empty file": (("--file", "empty.txt"), "empty.txt: is empty"),
    "latin-1": (("--file", "latin.txt"), "latin.txt: is not UTF-8 (byte 2)"),
    "stdin twice": (("-", "--file", "-"), "asked for twice"),
    "broken json": (("--messages", "broken.json"), "broken.json, line 3: is no JSON"),
    "no list": (("--messages", "object.json"), "object.json: these are no messages"),
    "no role": (("--messages", "roleless.json"), "roleless.json: message 2 lacks role or content"),
    "two systems": (("--messages", "system.json", "--system", "B"), "leave out --system"),
    "too long": (("The mill " * 600,), f"holds {CONTEXT}"),
}


@pytest.mark.parametrize("kind", BAD_PROMPTS)
def test_a_bad_prompt_is_one_line_and_no_folder_is_made(generate, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    user = {"role": "user", "content": "A"}
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "latin.txt").write_bytes("Größe".encode("latin-1"))
    (tmp_path / "broken.json").write_text('[\n{"role": "user",\n "content" "A"}]')
    (tmp_path / "object.json").write_text(json.dumps({"messages": [user]}))
    (tmp_path / "roleless.json").write_text(json.dumps([user, {"content": "B"}]))
    (tmp_path / "system.json").write_text(json.dumps([{**user, "role": "system"}, user]))
    arguments, says = BAD_PROMPTS[kind]
    refused(generate(*arguments, "--folder", "kv"), says)
    assert not (tmp_path / "kv").exists()


def test_no_prompt_at_a_terminal_and_nothing_on_standard_input(generate, piped, monkeypatch):
    piped("")
    refused(generate(), "standard input: is empty")
    piped("")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    refused(generate(), "there is no prompt; give PROMPT, --file or --messages")


def test_chat_with_a_model_that_has_no_template_is_refused(coinkv, tiny_folder):
    ran = coinkv("generate", "The mill", "--chat", "--model", tiny_folder("llama"))
    refused(ran, "this model has no chat template")


def test_an_interruption_ends_with_130_and_keeps_what_was_computed(chat_folder, tmp_path, texts):
    folder = tmp_path / "kv"
    command = ("generate", "--file", texts[0], "--model", chat_folder, "--folder", folder)
    running = start(*command, "--max-new-tokens", CONTEXT, "--temperature", 5, "--seed", 3)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    assert running.stdout.read(1)
    assert time.monotonic() < deadline
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=TIMEOUT_SECONDS)
    assert running.returncode == 130
    assert said.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in said
    assert any((folder / "blocks").rglob("*.*"))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2GB", 2 * 10**9),
        ("1.5 mb", 1_500_000),
        ("512MiB", 2**29),
        ("1000000", 10**6),
        ("7B", 7),
        ("3K", 3000),
        ("0", 0),
    ],
)
def test_a_size_is_read_as_people_write_it(text, count):
    assert byte_count(text) == count


@pytest.mark.parametrize("text", ["", "GB", "2XB", "-1", "1e9", "2 G B", "2GBB", "½GB", "2iB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InputError, match="is no size"):
        byte_count(text)
