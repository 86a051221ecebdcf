"""Commands print what was asked for: text for people, or one JSON object and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from coinkv import __version__
from coinkv.cli.main import app
from command_line import PROGRAM
from small_corpus import CHUNK_TOKENS, DOCUMENTS, QUESTIONS, block_files
from tiny_models import REFUSED, save_tiny_model

COMMANDS = [
    ("build",),
    ("ask",),
    ("demo",),
    ("check",),
    ("index",),
    ("index", "stats"),
    ("index", "verify"),
    ("index", "remove"),
    ("bench",),
    ("bench", "ttft"),
]


def one_object(ran, code=0):
    assert ran.code == code, ran
    facts = json.loads(ran.out)
    assert isinstance(facts, dict)
    assert "NaN" not in ran.out
    assert "Infinity" not in ran.out
    return facts


@pytest.mark.parametrize("command", [(), *COMMANDS])
def test_every_command_has_help(command):
    shown = CliRunner().invoke(app, [*command, "--help"])
    assert shown.exit_code == 0
    assert "Usage: " in shown.output


def test_help_and_version_do_without_torch():
    program = (
        "import sys\nfrom coinkv.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as left:\n    code = left.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'sqlalchemy'} & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)\n"
    )
    for arguments in (["--help"], ["build", "--help"], ["--version"]):
        ran = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, "")


def test_the_version_is_printed(coinkv):
    assert coinkv("--version").out == f"coinkv {__version__}\n"


def test_a_bare_coinkv_prints_its_help(coinkv):
    ran = coinkv()
    assert "Usage: coinkv" in ran.out + ran.err
    assert "error" not in ran.out + ran.err


def test_build_prints_one_json_object(coinkv, village, model_folder, tmp_path):
    command = ("build", village, "--index", tmp_path / "index", "--model", model_folder)
    facts = one_object(coinkv(*command, "--chunk-tokens", CHUNK_TOKENS, "--json"))
    assert facts["documents"] == len(DOCUMENTS)
    assert set(facts["nuggets"]) == {"exact", "fuzzy", "abandoned", "coverage"}
    assert facts["ratios"]["build_over_prefill"] > 0
    assert {"chunks", "tokens", "kv_bytes", "seconds"} <= set(facts)
    again = one_object(coinkv(*command, "--json"))
    assert (again["encoded"], again["chunks"]) == (0, facts["chunks"])
    assert again["ratios"]["build_over_prefill"] is None


def test_build_prints_its_facts_for_people_and_what_it_skipped(coinkv, model_folder, tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "well.txt").write_text("The well is 9 meters deep.")
    (docs / "[red]photo[bold].jpg").write_bytes(b"...")
    ran = coinkv("build", docs, "--index", tmp_path / "index", "--model", model_folder)
    assert ran.code == 0
    assert "1 document, 1 distinct chunk (1 encoded now, 0 kept)" in ran.out
    assert "nuggets: 1 exact, 0 fuzzy, 0 abandoned" in ran.out
    assert ran.err.strip().endswith("[red]photo[bold].jpg")


def test_build_reads_an_evaluation_file_as_it_is(coinkv, model_folder, tmp_path):
    passages = [
        {"title": "Mill", "text": "It grinds rye."},
        {"title": "Weir", "text": "It is old."},
    ]
    rows = [{"question": "Q?", "passages": passages}, {"question": "R?", "passages": passages[:1]}]
    (tmp_path / "eval.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = ("build", tmp_path / "eval.jsonl", "--index", tmp_path / "index")
    facts = one_object(coinkv(*command, "--model", model_folder, "--json"))
    assert facts["documents"] == 2


def test_ask_prints_the_answer_on_stdout_and_its_timing_on_stderr(coinkv, built):
    command = ("ask", QUESTIONS[0], "--index", built[0], "--max-tokens", 6)
    ran = coinkv(*command)
    answer = one_object(coinkv(*command, "--json"))
    assert ran.code == 0
    assert ran.out == answer["answer"] + "\n"
    assert "first token after" in ran.err
    assert "embed" in ran.err


def test_ask_prints_one_json_object(coinkv, built):
    ran = coinkv("ask", QUESTIONS[0], "--index", built[0], "--json", "--max-tokens", 6)
    facts = one_object(ran)
    assert ran.err == ""
    assert set(facts["stages_ms"]) == {"embed", "retrieve", "read", "compose", "prefill"}
    assert facts["ttft_ms"] == pytest.approx(sum(facts["stages_ms"].values()))
    assert facts["method"] == "coinrag"
    assert facts["len_tokens"] > 0
    best = facts["evidence"][0]
    assert (best["document"], best["title"]) == ("bridge.txt", "bridge")
    assert DOCUMENTS["bridge.txt"][best["start"] : best["end"]] == best["text"]


def test_the_options_of_ask_arrive(coinkv, built):
    base = ("ask", QUESTIONS[0], "--index", built[0], "--json")
    more = ("--method", "standard_cag", "--k-chunks", 2, "--max-tokens", 3)
    facts = one_object(coinkv(*base, *more))
    assert facts["method"] == "standard_cag"
    assert len(facts["evidence"]) == 2
    assert facts["answer_tokens"] <= 3
    few = one_object(coinkv(*base, "--k-nuggets", 3, "--max-tokens", 20))
    assert len(few["evidence"]) == 3
    random = ("--temperature", 2, "--top-p", 0.9, "--max-tokens", 20, "--k-nuggets", 3)
    seeds = [one_object(coinkv(*base, *random, "--seed", seed))["answer"] for seed in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2]
    stop = few["answer"][2]
    stopped = one_object(coinkv(*base, "--k-nuggets", 3, "--max-tokens", 20, "--stop", stop))
    assert stopped["answer"] == few["answer"][: few["answer"].index(stop)].strip()


def test_ask_shows_nuggets_in_brackets_where_there_is_no_colour(coinkv, built):
    ran = coinkv("ask", QUESTIONS[0], "--index", built[0], "--show-evidence", "--k-nuggets", 2)
    assert "[[The stone bridge was built in 1843 by Anna Holm.]]" in ran.out
    assert "bridge.txt, chunk 0, characters 0 to" in ran.out
    assert "\x1b[" not in ran.out
    assert ran.out.count("[[") == 2


def test_ask_says_when_blocks_had_to_be_recomputed(coinkv, index_folder):
    for path in block_files(index_folder):
        os.truncate(path, 100)
    ran = coinkv("ask", QUESTIONS[0], "--index", index_folder, "--max-tokens", 2)
    assert ran.code == 0
    assert "damaged and 0 missing KV blocks were recomputed" in " ".join(ran.err.split())


def test_index_stats_prints_facts_and_names(coinkv, built):
    facts = one_object(coinkv("index", "stats", "--index", built[0], "--json"))
    assert facts["document_keys"] == sorted(DOCUMENTS)
    assert facts["settings"]["chunk_tokens"] == CHUNK_TOKENS
    assert facts["kv_bytes"] == built[1].kv_bytes
    ran = coinkv("index", "stats", "--index", built[0])
    assert f"{len(DOCUMENTS)} documents, {facts['chunks']} distinct chunks" in ran.out
    assert all(f"  {name}\n" in ran.out for name in DOCUMENTS)


def test_index_verify_prints_one_json_object_clean_or_damaged(coinkv, index_folder):
    facts = one_object(coinkv("index", "verify", "--index", index_folder, "--json"))
    assert facts == {
        "clean": True,
        "problems": [],
        "blocks": len(block_files(index_folder)),
        "missing": 0,
        "damaged": 0,
        "removed": 0,
        "unneeded": 0,
    }
    os.truncate(block_files(index_folder)[0], 50)
    ran = coinkv("index", "verify", "--index", index_folder, "--json")
    assert one_object(ran, code=1)["damaged"] == 1
    assert ran.err == ""
    assert "1 problems" in coinkv("index", "verify", "--index", index_folder).out
    (index_folder / "catalogue.sqlite").write_bytes(b"garbage" * 1000)
    broken = one_object(coinkv("index", "verify", "--index", index_folder, "--json"), code=1)
    assert len(broken["problems"]) == 1


def test_index_remove_takes_documents_out(coinkv, index_folder):
    command = ("index", "remove", "fish.txt", "mill.md", "--index", index_folder)
    facts = one_object(coinkv(*command, "--json"))
    assert facts == {"removed": ["fish.txt", "mill.md"], "documents": len(DOCUMENTS) - 2}
    ran = coinkv("index", "remove", "words.txt", "--index", index_folder)
    assert "documents left: 2" in ran.out


def test_check_prints_what_was_measured_and_the_verdict(coinkv, model_folder, tmp_path):
    facts = one_object(coinkv("check", model_folder, "--json"))
    assert (facts["passed"], facts["reason"]) == (True, "")
    assert all(rung["relative_difference"] <= rung["tolerance"] for rung in facts["rungs"])
    shown = coinkv("check", model_folder)
    assert "its KV can be moved, up to 2048 tokens of context" in shown.out
    refused = save_tiny_model(tmp_path / "ntk", REFUSED["llama-dynamic-ntk"][0])
    ran = coinkv("check", refused, "--json")
    facts = one_object(ran, code=2)
    assert (facts["passed"], bool(facts["reason"])) == (False, True)
    assert len(ran.err.splitlines()) == 1
    gpt2 = save_tiny_model(tmp_path / "gpt2", REFUSED["gpt2-learned"][0])
    facts = one_object(coinkv("check", gpt2, "--json"), code=2)
    assert "learned" in facts["reason"]


def test_bench_prints_one_json_object_or_a_table(coinkv, built, tmp_path):
    questions = tmp_path / "q.jsonl"
    questions.write_text("\n".join(json.dumps({"question": q}) for q in QUESTIONS[:2]))
    command = ("bench", "ttft", "--index", built[0], "--questions", questions)
    ran = coinkv(*command, "--json", "--limit", 1, "--k-nuggets", 3)
    facts = one_object(ran)
    assert ran.err == ""
    assert facts["questions"] == 1
    assert facts["command"].startswith("coinkv bench ttft --index")
    assert facts["command"].endswith("--json --limit 1 --k-nuggets 3")
    shown = coinkv(*command, "--methods", "standard_cag, coinrag")
    assert "coinrag_over_floor" in shown.out
    assert "standard_rag" not in shown.out


@pytest.mark.parametrize(
    "terminal",
    [
        {"COLUMNS": "20", "NO_COLOR": "1"},
        {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "TERM": "dumb"},
    ],
)
def test_narrow_colourless_and_old_terminals_are_no_error(built, terminal):
    ran = subprocess.run(
        [*PROGRAM, "index", "stats", "--index", str(built[0])],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **terminal},
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "words.txt" in ran.stdout
