"""`coinkv inspect` shows contexts and answers in colours, brackets, a page or JSON."""

from __future__ import annotations

import io
import json
import re
from html import unescape

import pytest
from rich.console import Console

from coinkv.cli import inspect as command
from coinkv.methods.registry import METHODS
from coinkv.rag.build import build
from small_corpus import QUESTIONS, block_files, write_documents

DEFAULT = ["standard_rag", "standard_cag", "coinrag", "coinrag_cacheblend"]
BASE = ("--max-tokens", 4)


def facts_of(ran):
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


def contexts_of(out):
    """What was printed of each method's context, by name."""
    parts = re.split(r"^(\w+), \d+ tokens.*\n", out, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture
def inspected(coinkv, built):
    def run(*arguments, question=QUESTIONS[0]):
        return coinkv("inspect", question, "--index", built[0], *BASE, *arguments)

    return run


@pytest.fixture
def terminal(monkeypatch):
    """A colour terminal that results are printed to."""
    screen = Console(
        file=io.StringIO(), force_terminal=True, color_system="standard", width=200, no_color=False
    )
    monkeypatch.setattr(command, "results", screen)
    return screen.file


def test_json_holds_every_method_with_its_answer_and_runs(inspected):
    facts = facts_of(inspected("--json", "--k-chunks", 2, "--k-nuggets", 3))
    assert (facts["question"], facts["k_chunks"], facts["k_nuggets"]) == (QUESTIONS[0], 2, 3)
    assert [each["method"] for each in facts["methods"]] == DEFAULT
    for each in facts["methods"]:
        assert sum(run["tokens"] for run in each["runs"]) == each["len_tokens"]
        assert each["answer_tokens"] <= 4
        assert each["options"] == {}
        assert {run["chunk_rank"] for run in each["runs"]} <= {None, 0, 1}
    assert len(facts["methods"][2]["evidence"]) == 3


def test_the_answers_are_those_of_ask(inspected, coinkv, built):
    for each in facts_of(inspected("--json"))["methods"]:
        ask = ("ask", QUESTIONS[0], "--index", built[0], "--method", each["method"], *BASE)
        asked = facts_of(coinkv(*ask, "--json"))
        assert (each["answer"], each["len_tokens"]) == (asked["answer"], asked["len_tokens"])


def test_options_go_to_the_method_they_name(inspected):
    methods = ("--methods", "epic, cacheblend", "--k-chunks", 3)
    options = ("--option", "epic.tokens=2", "--option", "cacheblend.ratio=1")
    epic, blend = facts_of(inspected("--json", *methods, *options))["methods"]
    assert (epic["options"], blend["options"]) == ({"tokens": 2}, {"ratio": 1.0})
    assert epic["tokens"]["computed"] == 2 * 3
    assert blend["tokens"]["computed"] == blend["len_tokens"] - blend["tokens"]["reused"] > 6
    shown = inspected(*methods, *options).out
    assert "tokens=2" in shown
    assert "ratio=1.0" in shown


def test_untrained_link_tokens_are_labelled_as_such(inspected):
    kvlink, coinrag = facts_of(inspected("--json", "--methods", "kvlink,coinrag"))["methods"]
    assert kvlink["note"] == "untrained link tokens"
    assert "note" not in coinrag
    assert " tokens (untrained link tokens)\n" in inspected("--methods", "kvlink").out


def test_all_stands_for_every_method(inspected):
    facts = facts_of(inspected("--json", "--methods", "all"))
    assert [each["method"] for each in facts["methods"]] == list(METHODS)


def test_the_second_time_counts_when_blocks_have_been_made(coinkv, index_folder):
    for path in block_files(index_folder):
        path.unlink()
    for each in facts_of(coinkv("inspect", QUESTIONS[0], "--index", index_folder, *BASE, "--json"))[
        "methods"
    ]:
        assert each["blocks_missing"] == 0
        assert (each["bytes_read"] > 0) == (each["method"] != "standard_rag")


def test_an_adapter_and_its_scope_arrive(inspected, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "coinkv.rag.ask.adapter_for",
        lambda backbone, adapter, scope: seen.append((adapter.name, scope)),
    )
    arguments = ("--methods", "coinrag,epic", "--adapter", "tuned", "--adapter-scope", "all")
    assert inspected(*arguments).code == 0
    assert seen == [("tuned", "all")] * 2


def test_without_colours_brackets_tell_what_was_recomputed(inspected):
    methods = ("standard_rag", "coinrag", "epic", "cacheblend")
    ran = inspected("--methods", ",".join(methods), "--k-chunks", 1, "--k-nuggets", 2)
    assert (ran.code, ran.err) == (0, "")
    assert "\x1b" not in ran.out
    shown = contexts_of(ran.out)
    assert list(shown) == list(methods)
    chunk = "The stone bridge was built in 1843 by Anna Holm. It crosses"
    assert f"(1) [[bridge\n{chunk}" in shown["standard_rag"]
    assert "(1) The stone bridge was built in 1843 by Anna Holm." in shown["coinrag"]
    assert "[[" not in shown["coinrag"]
    assert (shown["epic"].count("[["), shown["epic"].count("{{")) == (1, 0)
    assert shown["cacheblend"].count("{{") > 1 < shown["cacheblend"].count("[[")
    unmarked = re.sub(r"\[\[|\]\]|\{\{|\}\}", "", shown["cacheblend"])
    assert chunk in unmarked


def test_the_legend_names_each_chunk_by_the_number_it_has_in_the_contexts(inspected):
    out = inspected("--k-chunks", 3).out
    legend = re.findall(r"^\((\d)\) (.+) \((.+), chunk (\d)\)$", out, flags=re.MULTILINE)
    assert [number for number, *_ in legend] == ["1", "2", "3"]
    assert legend[0] == ("1", "bridge", "bridge.txt", "0")
    for context in list(contexts_of(out).values())[:2]:
        assert re.findall(r"^\((prompt|\d)\) ", context, re.MULTILINE) == ["prompt", *"123"]


def test_methods_that_rank_chunks_differently_give_a_chunk_one_number(inspected):
    arguments = ("--methods", "standard_cag,coinrag", "--option", "coinrag.stages=1")
    arguments += ("--k-chunks", 2, "--k-nuggets", 8)
    facts = facts_of(inspected("--json", *arguments, question=QUESTIONS[4]))
    ranks = [
        {(run["document"], run["chunk"]): run["chunk_rank"] for run in each["runs"]}
        for each in facts["methods"]
    ]
    assert any(ranks[0][place] != rank for place, rank in ranks[1].items() if place in ranks[0])
    out = inspected(*arguments, question=QUESTIONS[4]).out
    legend = re.findall(r"^\((\d+)\) (.+, chunk \d+)\)$", out, flags=re.MULTILINE)
    assert [number for number, _ in legend] == [str(at + 1) for at in range(len(legend))]
    assert len({name for _, name in legend}) == len(legend) > 2
    numbers = {name: f"({number}) " for number, name in legend}
    shown = contexts_of(out)["coinrag"]
    for run in facts["methods"][1]["runs"][1:]:
        name = f"{run['title']} ({run['document']}, chunk {run['chunk']}"
        (paragraph,) = (p for p in re.split(r"\n(?=\()", shown) if run["text"] in p)
        assert paragraph.startswith(numbers[name])


def test_text_left_out_between_nuggets_and_link_tokens_have_marks(inspected):
    arguments = ("--methods", "coinrag_kvlink", "--option", "coinrag_kvlink.links=3")
    out = inspected(*arguments, "--k-chunks", 1, "--k-nuggets", 3, question=QUESTIONS[4]).out
    (context,) = contexts_of(out).values()
    assert context.count("◆") == 3
    assert context.rstrip().endswith("[[◆◆◆]]")
    assert " ⋯ " in context


def test_a_terminal_shows_sources_in_colours_and_recomputed_tokens_underlined(inspected, terminal):
    ran = inspected("--methods", "epic,cacheblend,coinrag", "--k-chunks", 2)
    assert (ran.code, ran.out) == (0, "")
    shown = contexts_of(re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue()))
    assert not any(mark in context for context in shown.values() for mark in ("[[", "{{"))
    coloured = terminal.getvalue()
    assert re.search(r"\x1b\[1;4;36m[^\x1b]*bridge", coloured)  # bold, underlined, first colour
    assert re.search(r"\x1b\[3;36m", coloured)  # probed: italic
    assert re.search(r"\x1b\[36mThe stone bridge was built", coloured)  # reused: colour alone
    assert re.search(r"\x1b\[32m", coloured)  # the second chunk's colour
    assert re.search(r"\x1b\[2m[^\x1b]*Answer the question", coloured)  # the prompt is dim


def test_a_page_shows_the_same_and_needs_nothing_else(inspected, terminal, tmp_path):
    page = tmp_path / "page.html"
    question = 'Who <b>built</b> the "bridge" & mill?'
    ran = inspected("--html", page, "--methods", "epic,standard_cag", question=question)
    assert ran.code == 0
    text = page.read_text(encoding="utf-8")
    assert "<b>built" not in text
    assert not re.search(r"https?://|<script|<link|src=|url\(", text)
    assert "text-decoration: underline" in text
    body = unescape(re.sub(r"<[^>]+>", "", text.partition("<body>")[2]))
    printed = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())
    assert question in body
    as_words = [word for word in contexts_of(printed)["epic"].split() if word.isalpha()]
    assert as_words == [word for word in contexts_of(body)["epic"].split() if word.isalpha()]


def test_a_page_can_be_had_beside_json(inspected, tmp_path):
    facts = facts_of(inspected("--json", "--html", tmp_path / "a.html", "--methods", "coinrag"))
    assert facts["methods"][0]["answer"] in unescape((tmp_path / "a.html").read_text())


def test_a_document_cannot_command_the_terminal(coinkv, tmp_path, options, terminal):
    docs = write_documents(
        tmp_path / "docs", {"trap.txt": "The well [bold]is\x1b[2J deep :smile:."}
    )
    build(docs, tmp_path / "index", options)
    command_line = ("inspect", "How deep is the well?", "--index", tmp_path / "index", *BASE)
    ran = coinkv(*command_line, "--model", options.model.name, "--methods", "standard_cag")
    assert ran.code == 0
    assert "\x1b[2J" not in terminal.getvalue()
    assert "The well [bold]is␦[2J deep :smile:." in terminal.getvalue()


@pytest.mark.parametrize(
    ("question", "more", "says"),
    [
        ("", (), "the question is empty"),
        ("why " * 3000, (), "the context window"),
        ("Why?", ("--methods", "coinrag,magic"), "no method is called 'magic'"),
        ("Why?", ("--methods", ","), "no method is named"),
        ("Why?", ("--option", "ratio=0.3"), "names no method"),
        ("Why?", ("--option", "coinrag.order"), "is not NAME=VALUE"),
        ("Why?", ("--option", "epic.tokens=3"), "epic is not asked; add it to --methods"),
        ("Why?", ("--option", "coinrag.tokens=3"), "coinrag has no option 'tokens'"),
        ("Why?", ("--option", "coinrag_cacheblend.ratio=lots"), "ratio is 'lots'"),
        ("Why?", ("--option", "coinrag_cacheblend.check_layer=3"), "the model has 3 layers"),
        ("Why?", ("--k-chunks", 0), "k_chunks is 0"),
        ("Why?", ("--k-nuggets", 9999), "use 1 to"),
        ("Why?", ("--max-tokens", -1), "max_tokens is -1"),
        ("Why?", ("--threads", 0), "threads is 0"),
        ("Why?", ("--adapter", "/no/such/adapter"), "no such adapter folder"),
        ("Why?", ("--adapter-scope", "lunch"), "no adapter scope 'lunch'"),
        ("Why?", ("--dtype", "bfloat16"), "was built with"),
        ("Why?", ("--html", "/no/such/folder/a.html"), "no page can be written here"),
        ("Why?", ("--html", "/"), "no page can be written here"),
    ],
)
def test_what_cannot_be_inspected_is_one_line(inspected, question, more, says):
    ran = inspected(*more, question=question)
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1, ran.err
    assert ran.err.startswith("error: ")
    assert says in ran.err
