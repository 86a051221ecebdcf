"""`coinkv eval` scores one configuration, of a method of ours or of another package."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path

import pytest

from coinkv.evaluate.dataset import read_set
from coinkv.evaluate.run import Asking, run
from coinkv.rag.index import Index
from command_line import start
from fixtures.near_chunks import NearChunks
from fixtures.refusals import require_one_line
from fixtures.village_questions import ROWS, write_rows
from small_corpus import contents_of

TIMEOUT_SECONDS = 120
NEAR_CHUNKS = Path(__file__).parents[1] / "fixtures" / "near_chunks.py"
PROMISED = {
    "f1",
    "exact_match",
    "ttft_ms",
    "len_tokens",
    "evidence_recall",
    "answer_recall",
    "questions",
    "method",
    "options",
    "fingerprint",
}


@pytest.fixture
def questions(tmp_path):
    return write_rows(tmp_path / "sets" / "village.jsonl")


@pytest.fixture
def evaluated(coinkv, built, questions):
    """Runs `coinkv eval --json` on the village; returns its object."""

    def run_it(*more):
        command = ("eval", "--index", built[0], "--questions", questions)
        ran = coinkv(*command, "--answer-tokens", 4, "--json", *more)
        assert (ran.code, ran.err) == (0, ""), ran
        return json.loads(ran.out)

    return run_it


def test_eval_prints_one_object_with_all_that_was_promised(evaluated, built, backbone):
    facts = evaluated()
    assert set(facts) >= PROMISED
    assert set(facts["ttft_ms"]) == {"mean", "p50", "p99"}
    assert (facts["method"], facts["options"], facts["questions"]) == ("coinrag", {}, len(ROWS))
    assert (facts["k_chunks"], facts["k_nuggets"]) == (5, 10)
    assert facts["index"] == built[0].name
    assert facts["fingerprint"] == backbone.fingerprint
    assert "per_question" not in facts
    assert facts["command"].startswith("coinkv eval --index")


def test_the_scores_are_the_means_of_the_rows_that_per_question_writes(
    evaluated, built, backbone, questions, tmp_path
):
    before = contents_of(built[0])
    path = tmp_path / "answers.jsonl"
    path.write_text("of an earlier run\n")
    facts = evaluated("--per-question", path, "--method", "standard_cag", "--k-chunks", 2)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [row["id"] for row in rows] == [row["id"] for row in ROWS]
    for name in ("f1", "exact_match", "len_tokens"):
        assert facts[name] == pytest.approx(statistics.mean(row[name] for row in rows))
    index = Index.open(built[0], model=backbone)
    from coinkv.evaluate.configuration import Configuration

    asked = read_set(questions).rows
    same = run(index, asked, Configuration("standard_cag", 2, None), Asking(answer_tokens=4))
    assert [row["answer"] for row in rows] == [row["answer"] for row in same["per_question"]]
    after = contents_of(built[0])
    assert {n: c for n, c in after.items() if ".sqlite" not in n} == {
        n: c for n, c in before.items() if ".sqlite" not in n
    }


def test_options_that_are_the_defaults_do_not_appear(evaluated):
    same = ("--option", "stages=2", "--option", "order=retrieval", "--option", "encode_after=none")
    assert evaluated("--limit", 1, *same)["options"] == {}
    other = ("--option", "stages=1", "--option", "align=off", "--option", "title=encoded")
    assert evaluated("--limit", 1, *other)["options"] == {"stages": 1, "align": False}


def test_a_half_and_a_limit_choose_the_questions(evaluated, tmp_path):
    ids = {}
    for half in ("dev", "test", "all"):
        path = tmp_path / half
        evaluated("--half", half, "--per-question", path)
        ids[half] = [json.loads(line)["id"] for line in path.read_text().splitlines()]
    assert sorted(ids["dev"] + ids["test"]) == sorted(ids["all"])
    assert min(len(ids["dev"]), len(ids["test"])) == 3
    assert evaluated("--half", "test", "--limit", 2)["questions"] == 2


def test_timed_queries_are_timed_apart_in_whole_rounds(evaluated):
    facts = evaluated("--limit", 2, "--timed-queries", 3)
    assert facts["timed_queries"] == 4
    assert facts["questions"] == 2
    assert sum(facts["stages_ms"].values()) == pytest.approx(facts["ttft_ms"]["mean"], abs=0.001)


def test_without_json_a_table_is_for_people(coinkv, built, questions):
    command = ("eval", "--index", built[0], "--questions", questions, "--limit", 2)
    ran = coinkv(*command, "--method", "kvlink", "--answer-tokens", 2)
    assert ran.code == 0
    for measure in ("f1", "evidence_recall", "TTFT p99", "Len", "layer-tokens computed", "GFLOP"):
        assert measure in ran.out
    assert "note: untrained link tokens" in ran.out


REFUSED = {
    "a file that is not there": (("--questions", "none.jsonl"), "none.jsonl: no such file"),
    "an index that is not there": (("--index", "none"), "no index in this folder"),
    "an unknown method": (("--method", "magic"), "no method is called 'magic'"),
    "an unknown option": (("--option", "speed=9"), "coinrag has no option 'speed'"),
    "half an option": (("--option", "order"), "is not NAME=VALUE"),
    "a wrong value": (("--option", "order=best"), "order is 'best'"),
    "an unknown half": (("--half", "dusk"), "there is no half 'dusk'"),
    "limit 0": (("--limit", 0), "limit is 0"),
    "fewer than no timed queries": (("--timed-queries", -1), "timed_queries is -1"),
    "too many chunks": (("--k-chunks", 999), "k_chunks is 999, the index holds"),
    "too many nuggets": (("--k-nuggets", 9999), "k_nuggets is 9999, the index holds"),
    "no chunk": (("--k-chunks", 0), "k_chunks is 0"),
    "batch 0": (("--batch", 0), "batch is 0"),
    "no answer tokens": (("--answer-tokens", 0), "answer_tokens is 0"),
    "answers that do not fit": (("--answer-tokens", 9999), "the context window"),
    "an adapter that is not there": (("--adapter", "none"), "none: no such adapter folder"),
    "an unknown scope": (("--adapter-scope", "some"), "there is no adapter scope 'some'"),
    "no thread": (("--threads", 0), "threads is 0"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_used_is_one_line_and_nothing_is_written(
    coinkv, built, questions, tmp_path, monkeypatch, what
):
    monkeypatch.chdir(tmp_path)
    before = contents_of(tmp_path)
    more, says = REFUSED[what]
    command = ("eval", "--index", built[0], "--questions", questions, "--per-question", "rows")
    require_one_line(coinkv(*command, "--json", *more), says)
    assert contents_of(tmp_path) == before


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("", "holds no question"),
        ("nonsense\n", "line 1: this line is no JSON"),
        (json.dumps({"question": "Why?"}) + "\n", "line 1: this question has no answers"),
    ],
)
def test_questions_that_cannot_be_scored_are_one_line(coinkv, built, questions, rows, says):
    questions.write_text(rows)
    command = ("eval", "--index", built[0], "--questions", questions)
    require_one_line(coinkv(*command, "--json"), says)


def test_rows_that_could_not_be_written_are_found_before_any_work(
    coinkv, built, questions, tmp_path, monkeypatch
):
    opened = []
    monkeypatch.setattr(Index, "open", lambda *_, **__: opened.append(1))
    command = ("eval", "--index", built[0], "--questions", questions, "--per-question")
    for path in (tmp_path, tmp_path / "none" / "rows", questions / "rows", "x" * 300):
        require_one_line(coinkv(*command, path), "cannot be written")
    assert opened == []


def install(site: Path, name: str, code: str, entry: str) -> Path:
    """A package as pip leaves it, with one entry point."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{name}.py").write_text(code, encoding="utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[coinkv.methods]\n{name} = {entry}\n")
    return site


def in_a_process(site, *arguments):
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    process = start(*arguments, PYTHONPATH=path)
    out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    return process.returncode, out, err


def test_a_method_of_another_package_is_evaluated_like_ours(evaluated, built, questions, tmp_path):
    code = NEAR_CHUNKS.read_text(encoding="utf-8")
    assert len(code.splitlines()) <= 30
    site = install(tmp_path / "site", "near_chunks", code, "near_chunks:NearChunks")
    command = ("eval", "--index", built[0], "--questions", questions, "--method", "near_chunks")
    more = ("--option", "similarity=-1", "--k-chunks", 2, "--answer-tokens", 4, "--json")
    rows = tmp_path / "rows.jsonl"
    exit_code, out, err = in_a_process(site, *command, *more, "--per-question", rows)
    assert (exit_code, err) == (0, "")
    facts = json.loads(out)
    assert (facts["method"], facts["options"]) == ("near_chunks", {"similarity": -1.0})
    ours = tmp_path / "ours.jsonl"
    cag = evaluated("--method", "standard_cag", "--k-chunks", 2, "--per-question", ours)
    answers = [
        [json.loads(line)["answer"] for line in path.read_text().splitlines()]
        for path in (rows, ours)
    ]
    assert answers[0] == answers[1]
    for name in ("f1", "len_tokens", "evidence_recall", "fingerprint"):
        assert facts[name] == cag[name]
    assert NearChunks().similarity == 0.3


def test_a_broken_package_is_one_line(built, questions, tmp_path):
    site = install(tmp_path / "site", "broken", "import nothing_of_this_name\n", "broken:Broken")
    command = ("eval", "--index", built[0], "--questions", questions, "--method", "broken")
    exit_code, out, err = in_a_process(site, *command, "--json")
    assert (exit_code, out) == (2, "")
    assert err == (
        "error: the method 'broken' cannot be loaded (No module named 'nothing_of_this_name')\n"
    )


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("this is no Python", "cannot be loaded"),
        ("Other = 1\n", "cannot be loaded"),
        ("raise RuntimeError('not today')\n", "cannot be loaded (not today)"),
        ("Wrong = 1\n", "wrong:Wrong is no method"),
        ("class Wrong: pass\n", "wrong:Wrong is no method"),
        ("def Wrong(): pass\n", "wrong:Wrong is no method"),
        (
            "from coinkv.methods.base import Method\nclass Wrong(Method): pass\n",
            "wrong:Wrong is no method",
        ),
    ],
)
def test_what_a_package_registers_must_be_a_method(
    coinkv, built, questions, tmp_path, monkeypatch, code, says
):
    monkeypatch.syspath_prepend(install(tmp_path / "site", "wrong", code, "wrong:Wrong"))
    monkeypatch.delitem(__import__("sys").modules, "wrong", raising=False)
    command = ("eval", "--index", built[0], "--questions", questions, "--method")
    require_one_line(coinkv(*command, "wrong"), says)
    require_one_line(coinkv(*command, "magic"), ", wrong")


def test_the_example_of_the_docs_is_the_method_that_was_tested():
    page = Path(__file__).parents[2] / "docs" / "methods.md"
    assert NEAR_CHUNKS.read_text("utf-8") in page.read_text("utf-8")
