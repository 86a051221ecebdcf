"""Bad input is one line on stderr and exit code 2, and nothing half-written is left."""

from __future__ import annotations

import dataclasses
import json
import signal
import time

import pytest

from coinkv.errors import StorageError
from coinkv.rag import remove as removal
from coinkv.rag.index import Index
from coinkv.rag.settings import keep_settings
from command_line import start
from small_corpus import block_files, contents_of, write_documents
from tiny_models import REFUSED, save_tiny_model

TIMEOUT_SECONDS = 120


def require_one_line(ran, code=2, says=""):
    assert ran.code == code, ran
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1, ran.err
    assert ran.err.startswith("error: ")
    assert says in ran.err


BAD_FILES = {
    "empty file": ("a.txt", b"", "is empty"),
    "only spaces": ("a.txt", b"  \n\n ", "no text"),
    "binary file": ("a.txt", bytes(range(256)) * 8, "is binary data"),
    "wrong encoding": ("a.txt", "Größe und Übermut".encode("latin-1"), "is not UTF-8"),
    "corrupt pdf": ("a.pdf", b"%PDF-1.7\nnothing follows", "is a damaged PDF"),
    "corrupt docx": ("a.docx", b"PK\x03\x04 nothing follows", "is not a readable Word file"),
    "broken row": ("a.jsonl", b'{"title": "A", "text": "B"}\n{"title": "C"', "line 2 is not JSON"),
    "unknown kind": ("a.xyz", b"...", "holds no readable document"),
    "markup in its name": ("[bold].txt", b"", "[bold].txt: is empty"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_documents_that_cannot_be_read(coinkv, tmp_path, model_folder, kind):
    name, content, says = BAD_FILES[kind]
    others = {} if kind == "unknown kind" else {"good.txt": "A good one."}
    docs = write_documents(tmp_path / "docs", others)
    (docs / name).write_bytes(content)
    ran = coinkv("build", docs, "--index", tmp_path / "index", "--model", model_folder)
    require_one_line(ran, says=says)
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_a_folder_without_documents(coinkv, tmp_path, what):
    if what == "empty":
        (tmp_path / "docs").mkdir()
    ran = coinkv("build", tmp_path / "docs", "--index", tmp_path / "index")
    require_one_line(ran)
    assert not (tmp_path / "index").exists()


def test_a_file_of_one_huge_line_is_no_error(coinkv, tmp_path, model_folder):
    line = "the mill grinds rye and the river drives its wheel, " * 60
    docs = write_documents(tmp_path / "docs", {"line.txt": line})
    command = ("--index", tmp_path / "index", "--model", model_folder, "--chunk-tokens", 256)
    ran = coinkv("build", docs, *command, "--json")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out)["chunks"] > 3


def test_a_model_that_is_refused_or_does_not_exist(coinkv, village, tmp_path):
    gpt2 = save_tiny_model(tmp_path / "gpt2", REFUSED["gpt2-learned"][0])
    empty = tmp_path / "empty"
    empty.mkdir()
    for model, says in (
        (gpt2, "learned or ALiBi"),
        (tmp_path / "none", "no such model folder"),
        (empty, "holds no config.json"),
    ):
        for command in (
            ("build", village, "--index", tmp_path / "index", "--model", model),
            ("check", model),
        ):
            require_one_line(coinkv(*command), says=says)
    assert not (tmp_path / "index").exists()


def test_a_model_that_is_on_no_hub(coinkv, village, tmp_path, monkeypatch):
    from coinkv.model import pretrained

    monkeypatch.setattr(pretrained, "_hub_answers", lambda name: False)
    ran = coinkv("build", village, "--index", tmp_path / "index", "--model", "nobody/nothing-1b")
    require_one_line(ran, says="no such model")
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    "more",
    [
        ("--chunk-tokens", 3),
        ("--chunk-tokens", 100_000),
        ("--chunk-tokens", "many"),
        ("--encode-after", "lunch"),
        ("--extractor", "magic"),
        ("--extractor", "llm"),
        ("--extractor", "llm", "--llm-url", "nowhere", "--llm-model", "m"),
        ("--language", "klingon"),
        ("--dtype", "int4"),
        ("--device", "quantum"),
        ("--max-context", 5),
        ("--threads", 0),
        ("--embedder", "/no/such/embedder"),
        ("--nonsense",),
    ],
)
def test_options_of_build_that_cannot_be_used(coinkv, village, tmp_path, model_folder, more):
    ran = coinkv("build", village, "--index", tmp_path / "index", "--model", model_folder, *more)
    require_one_line(ran)
    assert not (tmp_path / "index").exists()


def test_an_index_folder_that_is_a_file_or_holds_other_files(coinkv, village, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"...")
    before = contents_of(tmp_path)
    for folder in (tmp_path, tmp_path / "photo.jpg"):
        require_one_line(coinkv("build", village, "--index", folder))
        require_one_line(coinkv("ask", "Why?", "--index", folder), says="no index in this folder")
    for command in (("stats",), ("verify",), ("remove", "a.txt")):
        require_one_line(coinkv("index", *command, "--index", tmp_path), says="no index")
    assert contents_of(tmp_path) == before


def test_an_index_folder_that_cannot_be_made(coinkv, village, tmp_path, model_folder):
    (tmp_path / "file").write_bytes(b"...")
    command = ("build", village, "--model", model_folder, "--index")
    require_one_line(coinkv(*command, tmp_path / "file" / "index"), code=1)
    require_one_line(coinkv(*command, tmp_path / ("x" * 300)), code=1)


def test_an_index_of_another_model_or_format_version(
    coinkv, village, index_folder, tiny_folder, backbone
):
    other = ("--model", tiny_folder("qwen2"))
    for command in (("build", village), ("ask", "Why?")):
        ran = coinkv(*command, "--index", index_folder, *other)
        require_one_line(ran, says="was built with")
    index = Index.open(index_folder, model=backbone)
    later = dataclasses.replace(index.settings, format_version=99)
    keep_settings(index.catalogue, index.catalogue.generation, later)
    for command in (("build", village), ("ask", "Why?"), ("index", "stats"), ("index", "verify")):
        ran = coinkv(*command, "--index", index_folder)
        require_one_line(ran, says="format version 99")


@pytest.mark.parametrize(
    ("question", "more", "says"),
    [
        ("", (), "the question is empty"),
        ("  \n ", (), "the question is empty"),
        ("why " * 3000, (), "the context window"),
        ("Why?", ("--k-chunks", 0), "k_chunks is 0"),
        ("Why?", ("--k-chunks", 999), "use 1 to"),
        ("Why?", ("--k-nuggets", -1), "k_nuggets is -1"),
        ("Why?", ("--k-nuggets", 9999), "use 1 to"),
        ("Why?", ("--k-nuggets", "few"), "--k-nuggets"),
        ("Why?", ("--method", "magic"), "use one of"),
        ("Why?", ("--max-tokens", -1), "max_tokens is -1"),
        ("Why?", ("--max-tokens", 99999), "the context window"),
        ("Why?", ("--temperature", -0.5), "temperature"),
        ("Why?", ("--top-p", 0), "top_p"),
        ("Why?", ("--stop", ""), "stop string is empty"),
        ("Why?", ("--seed", -1), "seed"),
        ("Why?", ("--dtype", "bfloat16"), "was built with"),
    ],
)
def test_questions_and_numbers_that_cannot_be_used(coinkv, built, question, more, says):
    require_one_line(coinkv("ask", question, "--index", built[0], *more, "--json"), says=says)


@pytest.mark.parametrize(
    ("rows", "more", "says"),
    [
        ('{"question": "Why?"}', ("--methods", "coinrag,magic"), "no method is called 'magic'"),
        ('{"question": "Why?"}', ("--methods", ""), "no method is called ''"),
        ('{"question": "Why?"}', ("--limit", 0), "limit is 0"),
        ('{"question": "Why?"}', ("--limit", -3), "limit is -3"),
        ('{"question": "Why?"}', ("--repeat", 0), "repeat is 0"),
        ('{"question": "Why?"}', ("--repeat", -1), "repeat is -1"),
        ('{"question": "Why?"}', ("--k-chunks", 0), "k_chunks is 0"),
        ('{"question": "Why?"}\n{"answer": "B"}', (), "line 2"),
        ("not json", (), "line 1"),
        ("", (), "holds no question"),
    ],
)
def test_measurements_that_cannot_be_made(coinkv, built, tmp_path, rows, more, says):
    (tmp_path / "q.jsonl").write_text(rows)
    command = ("bench", "ttft", "--index", built[0], "--questions", tmp_path / "q.jsonl")
    require_one_line(coinkv(*command, *more), says=says)


def test_a_file_of_questions_that_is_not_there(coinkv, built, tmp_path):
    command = ("bench", "ttft", "--index", built[0], "--questions")
    require_one_line(coinkv(*command, tmp_path / "none"), says="no such file")
    require_one_line(coinkv(*command, tmp_path), says="cannot be read")


@pytest.mark.parametrize(
    "command", [("ask",), ("ask", "Why?"), ("build",), ("nonsense",), ("index", "nonsense")]
)
def test_commands_that_are_incomplete_or_unknown_name_their_help(coinkv, command):
    require_one_line(coinkv(*command), says="--help")


def test_documents_that_an_index_does_not_have(coinkv, index_folder):
    before = len(block_files(index_folder))
    ran = coinkv("index", "remove", "none.txt", "--index", index_folder)
    require_one_line(ran, says="no document 'none.txt'")
    assert len(block_files(index_folder)) == before


def test_what_fails_through_no_fault_of_the_caller_is_exit_code_1(
    coinkv, index_folder, monkeypatch
):
    def refuse(*_):
        raise StorageError("no\nspace left", where="/a/b", hint="free some")

    monkeypatch.setattr(removal, "publish", refuse)
    ran = coinkv("index", "remove", "fish.txt", "--index", index_folder)
    require_one_line(ran, code=1, says="/a/b: no space left; free some")


def test_a_refusal_as_a_process_of_its_own_prints_no_traceback(tmp_path):
    process = start("build", tmp_path / "none", "--index", tmp_path / "index")
    out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert (process.returncode, out) == (2, "")
    assert err == f"error: {tmp_path / 'none'}: no such file or folder; check the path\n"


def test_control_c_during_a_build_is_one_line_and_the_build_goes_on_later(
    coinkv, tmp_path, model_folder
):
    text = " ".join(f"House {n} in the lane has {n + 2} windows." for n in range(120))
    docs, folder = write_documents(tmp_path / "docs", {"lane.txt": text}), tmp_path / "index"
    command = ("build", docs, "--index", folder, "--model", model_folder, "--chunk-tokens", 64)
    process = start(*command)
    until = time.monotonic() + TIMEOUT_SECONDS
    while len(block_files(folder)) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert (process.returncode, out) == (130, "")
    assert err.startswith("error: interrupted")
    assert len(err.splitlines()) == 1
    kept = len(block_files(folder))
    facts = json.loads(coinkv(*command, "--json").out)
    assert kept >= 3
    assert facts["encoded"] == facts["chunks"] - kept


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_causes_no_traceback(built, unbuffered):
    command = ("index", "stats", "--json", "--index", built[0])
    process = start(*command, PYTHONUNBUFFERED=unbuffered)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(TIMEOUT_SECONDS) == 1
