"""`coinkv boost`: what a folder holds, warming and forgetting, and which repair is safe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coinkv.boost import verify as verification
from coinkv.boost.engine import KVBoost
from coinkv.boost.folder import folder_stats
from coinkv.cli import bench_boost
from coinkv.cli.main import app
from fixtures.chat_model import *  # noqa: F403
from fixtures.chat_model import BRIDGE, RIVER
from fixtures.refusals import require_one_line

SHORT = ("--chunk-tokens", 8)


def facts_of(ran, code=0):
    assert (ran.code, ran.err) == (code, ""), ran
    return json.loads(ran.out)


@pytest.fixture
def boost(coinkv, chat_folder):
    """Runs a command of `coinkv boost` with the tiny chat model."""
    return lambda *arguments: coinkv("boost", *arguments, "--model", chat_folder)


@pytest.fixture
def warmed(boost, texts, tmp_path):
    """A folder that holds both texts."""
    folder = tmp_path / "kv"
    facts_of(boost("warm", *texts, "--folder", folder, *SHORT, "--json"))
    return folder


@pytest.fixture
def prompts(tmp_path):
    """A file of prompts: the second and third hold what the first holds, behind other words."""
    rows = [
        {"prompt": f"{RIVER}\nWho counted the sheep?"},
        {"prompt": f"Read this first, then answer.\n{RIVER}\nWhat did she take?"},
        {"messages": [{"role": "user", "content": f"{BRIDGE}\n{RIVER}\nWhen?"}]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("command", ["", "stats", "warm", "invalidate", "verify", "bench"])
def test_every_command_has_help(command):
    shown = CliRunner().invoke(app, ["boost", *command.split(), "--help"])
    assert shown.exit_code == 0
    assert "Usage: " in shown.output


def test_warm_keeps_texts_that_generate_then_finds(boost, coinkv, texts, warmed, chat_folder):
    again = facts_of(boost("warm", *texts, "--folder", warmed, *SHORT, "--json"))
    assert (again["files"], again["kept_tokens"]) == (2, 0)
    shown = boost("warm", texts[0], "--folder", warmed, *SHORT)
    assert shown.out.startswith("1 text, ")
    command = ("--file", texts[1], "--folder", warmed, "--model", chat_folder, *SHORT)
    planned = facts_of(coinkv("generate", "--chat", "Who?", *command, "--plan", "--json"))
    assert planned["moved"] > 60
    exact = facts_of(coinkv("generate", "Who?", *command, "--plan", "--json"))
    assert exact["exact"] > exact["moved"] == 0


def test_warm_keeps_texts_as_messages_with_chat(boost, coinkv, texts, tmp_path, chat_folder):
    kept = ("--folder", tmp_path / "kv", *SHORT)
    facts_of(boost("warm", texts[1], "--chat", *kept, "--json"))
    command = ("generate", "--file", texts[1], "Who?", "--model", chat_folder, *kept)
    planned = facts_of(coinkv(*command, "--chat", "--plan", "--json"))
    assert planned["exact"] > 90 > planned["moved"] == 0


def test_stats_counts_what_is_there_by_model_and_namespace(boost, coinkv, texts, warmed):
    facts_of(boost("warm", texts[0], "--folder", warmed, "--namespace", "me", *SHORT, "--json"))
    facts = facts_of(coinkv("boost", "stats", "--folder", warmed, "--json"))
    files = [path for path in (warmed / "blocks").rglob("*") if path.is_file()]
    assert facts["runs"] == len(files) == 3
    assert facts["bytes"] == sum(path.stat().st_size for path in files)
    mine, shared = facts["owners"]
    assert (mine["runs"], shared["runs"]) == (1, 2)
    assert mine["tokens"] + shared["tokens"] == facts["tokens"]
    assert mine["exact_runs"] == 1
    assert mine["last_used"] >= shared["last_used"] > 0
    shown = coinkv("boost", "stats", "--folder", warmed)
    assert f"3 runs, {facts['tokens']} tokens" in shown.out
    assert f"{mine['owner'][:12]}: 1 runs (1 exact, 0 pinned)" in shown.out
    assert shown.err == ""


def test_stats_tells_of_hits_and_pins(coinkv, texts, warmed, chat_folder):
    options = {"budget_bytes": 10**7, "folder": warmed, "chunk_tokens": 8, "repair": "none"}
    with KVBoost.from_pretrained(chat_folder, **options) as engine:
        engine.pin(RIVER.strip())
        engine.generate(RIVER.strip(), 1)
    (owner,) = folder_stats(warmed).owners
    assert owner.pinned == 1
    assert owner.hits >= 1


def test_stats_counts_blocks_of_which_nothing_is_known(coinkv, warmed):
    import sqlite3

    with sqlite3.connect(warmed / "usage.sqlite") as books:
        books.execute("UPDATE blocks SET note = x'00' WHERE serial = 1")
    books.close()
    assert facts_of(coinkv("boost", "stats", "--folder", warmed, "--json"))["nameless"] == 1
    assert "1 blocks of which nothing is known" in coinkv("boost", "stats", "--folder", warmed).out


def test_invalidate_forgets_a_text_or_all_of_a_namespace(boost, coinkv, texts, warmed, chat_folder):
    facts_of(boost("warm", texts[0], "--folder", warmed, "--namespace", "me", *SHORT, "--json"))
    runs = folder_stats(warmed).runs
    command = ("invalidate", "--folder", warmed)
    forgotten = facts_of(boost(*command, "--file", texts[0], "--json"))["forgotten"]
    assert folder_stats(warmed).runs == runs - forgotten < runs
    assert facts_of(boost(*command, "--file", texts[0], "--json")) == {"forgotten": 0}
    river = ("--file", texts[0], "--folder", warmed, "--model", chat_folder, *SHORT)
    plan = ("generate", "Who?", *river, "--plan", "--json")
    assert facts_of(coinkv(*plan))["computed"] > 100
    assert facts_of(coinkv(*plan, "--namespace", "me"))["exact"] > 100
    assert re.fullmatch(r"\d+ runs? (is|are) forgotten\n", boost(*command).out)
    assert [each.runs for each in folder_stats(warmed).owners] == [1]
    facts_of(boost(*command, "--namespace", "me", "--json"))
    assert folder_stats(warmed).runs == 0


def test_invalidate_forgets_in_the_codec_it_is_told(boost, texts, tmp_path):
    folder = tmp_path / "kv"
    facts_of(boost("warm", texts[0], "--folder", folder, "--codec", "kivi", *SHORT, "--json"))
    command = ("invalidate", "--folder", folder, "--json")
    assert facts_of(boost(*command)) == {"forgotten": 0}
    assert facts_of(boost(*command, "--codec", "kivi"))["forgotten"] > 0


def test_verify_prints_a_table_and_a_verdict_and_exits_by_it(boost, prompts):
    command = ("verify", prompts, *SHORT, "--answer-tokens", 2, "--strategies", "none, selective")
    lenient = boost(*command, "--least-top1", 0, "--least-answers", 0)
    assert lenient.code == 0
    assert lenient.err == ""
    assert lenient.out.startswith("3 prompts, ")
    assert "selective" in lenient.out
    assert "epic" not in lenient.out
    assert lenient.out.splitlines()[-1].endswith("is safe enough, and the fastest that is")
    facts = facts_of(boost(*command, "--least-top1", 0, "--least-answers", 0, "--json"))
    assert facts["safe"] in ("none", "selective")
    assert [each["moved"]["prompts"] for each in facts["strategies"]] == [2, 2]


def test_verify_exits_with_1_where_no_strategy_is_safe(boost, prompts):
    command = ("verify", prompts, *SHORT, "--strategies", "none", "--answer-tokens", 16)
    facts = facts_of(boost(*command, "--least-top1", 1, "--least-answers", 1, "--json"), code=1)
    assert (facts["tested"], facts["safe"]) == (True, None)
    ran = boost(*command, "--least-top1", 1, "--least-answers", 1)
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.splitlines()[-1] == "none is safe enough: use reuse='exact'"


def test_verify_says_when_nothing_was_tested_and_does_not_call_it_safe(boost, prompts):
    ran = boost("verify", prompts, *SHORT, "--limit", 1, "--strategies", "none")
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.splitlines()[-1].startswith("nothing was tested: ")


def test_verify_reads_prompts_from_lines_and_makes_them_messages_with_chat(boost, tmp_path):
    lines = tmp_path / "prompts.txt"
    lines.write_text("Who counted the sheep?\n\nWho took the lamp?\n")
    command = ("verify", lines, "--strategies", "none", "--answer-tokens", 1, "--json")
    plain, chat = facts_of(boost(*command), code=1), facts_of(boost(*command, "--chat"), code=1)
    assert plain["prompts"] == chat["prompts"] == 2
    assert chat["prompt_tokens"] > plain["prompt_tokens"]


def test_the_options_of_the_engine_arrive_at_verify(boost, prompts):
    command = ("verify", prompts, "--strategies", "none", "--answer-tokens", 1, "--json")
    lenient = ("--least-top1", 0, "--least-answers", 0)
    facts_of(boost(*command, *SHORT, *lenient))
    for more in (("--chunk-tokens", 400), (*SHORT, "--budget", "1KB")):
        assert not facts_of(boost(*command, *more, *lenient), code=1)["tested"], more
    exact = {}
    for codec in ("raw", "kivi"):
        ran = boost(*command, *SHORT, *lenient, "--codec", codec, "--boundaries", "fixed")
        exact[codec] = json.loads(ran.out)["strategies"][0]
    assert exact["raw"]["reuse"] != facts_of(boost(*command, *SHORT, *lenient))["strategies"][0]
    assert exact["raw"] != exact["kivi"]


BAD_ROWS = {
    "no prompt": ('{"prompt": "A"}\n{"question": "B"}', "line 2: this row holds no prompt"),
    "blank prompt": ('{"prompt": " "}', "line 1: this row holds no prompt"),
    "no text": ('{"prompt": 3}', "line 1: this row holds no prompt"),
    "broken": ('{"prompt": "A"}\n\n{"prompt": ', "line 3: this line is no JSON"),
    "no messages": ('{"messages": []}', "line 1: these are no messages"),
    "no content": ('{"messages": [{"role": "user"}]}', "line 1: message 1 lacks role or content"),
    "nothing": ("\n", "the file holds no prompt"),
    "too long": (json.dumps({"prompt": "The mill " * 600}), "prompt 1: it needs"),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_verify_refuses_rows_in_one_line_that_names_the_place(boost, tmp_path, kind):
    content, says = BAD_ROWS[kind]
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    require_one_line(boost("verify", path, "--strategies", "none"), says=says)


BAD = {
    "strategy": (("--strategies", "none,glue"), "there is no strategy 'glue'; use some of auto"),
    "no strategy": (("--strategies", ","), "there is no strategy ','"),
    "threshold": (("--least-top1", "2"), "least_top1 is 2.0"),
    "answers": (("--answer-tokens", "0"), "answer_tokens is 0"),
    "limit": (("--limit", "0"), "limit is 0"),
    "budget": (("--budget", "2XB"), "'2XB' is no size"),
    "codec": (("--codec", "zip"), "'zip' is not one of"),
}


@pytest.mark.parametrize("option", BAD)
def test_a_bad_option_of_verify_is_one_line(boost, prompts, option):
    more, says = BAD[option]
    require_one_line(boost("verify", prompts, *more), says=says)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("stats", "--folder", "none"), "none: no reuse cache in this folder"),
        (("invalidate", "--folder", "none"), "none: no reuse cache in this folder"),
        (("stats", "--folder", "file.txt"), "is a file"),
        (("warm", "file.txt", "none.txt", "--folder", "kv"), "none.txt: no such file"),
        (("warm", "file.txt", "--folder", "kv", "--chunk-tokens", "1"), "chunk_tokens is 1"),
        (("warm", "long.txt", "--folder", "kv"), "long.txt needs"),
    ],
)
def test_a_bad_folder_or_file_is_one_line_and_makes_nothing(
    coinkv, tmp_path, monkeypatch, chat_folder, command, says
):
    monkeypatch.chdir(tmp_path)
    Path("file.txt").write_text("The mill.")
    Path("long.txt").write_text("The mill " * 600)
    model = () if command[0] == "stats" else ("--model", chat_folder)
    require_one_line(coinkv("boost", *command, *model), says=says)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.txt", "long.txt"]


def test_an_interrupted_verify_ends_with_130(boost, prompts, monkeypatch):
    def interrupted(name, full, reused):
        raise KeyboardInterrupt

    monkeypatch.setattr(verification, "_report", interrupted)
    ran = boost("verify", prompts, *SHORT, "--answer-tokens", 1)
    assert (ran.code, ran.out, ran.err) == (130, "", "error: interrupted\n")


def test_bench_is_the_command_that_stands_under_bench_too():
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    named = {
        (group, command.name): command.callback
        for group in ("boost", "bench")
        for command in groups[group].registered_commands
    }
    assert named["boost", "bench"] is named["bench", "boost"] is bench_boost.boost_command
