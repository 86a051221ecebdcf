"""A report is written whole, shows what was found and nothing that it was not told."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import typer
from typer.testing import CliRunner

from coinkv.cli.report import report_command
from coinkv.errors import InputError
from coinkv.evaluate.budget import Budget
from coinkv.evaluate.report.write import write_report
from sweep_rows import a_sweep, answers, on_both, written

HOSTILE = '<script>alert("1")</script>|$x$'


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = written(tmp_path_factory.mktemp("sweep") / "sweep.jsonl", a_sweep())
    return write_report([path], tmp_path_factory.mktemp("report") / "new" / "folder")


def test_a_report_is_a_page_a_text_numbers_and_each_figure_twice(report):
    folder = report.page.parent
    names = {file.name for file in folder.iterdir()}
    assert names == {"report.html", "report.md", "report.json", "figures"}
    figures = {file.name for file in (folder / "figures").iterdir()}
    charts = ("frontier-ttft", "frontier-len", "ablations", "repair")
    assert figures == {f"{chart}.{suffix}" for chart in charts for suffix in ("svg", "png")}
    for file in (folder / "figures").glob("*.png"):
        assert file.read_bytes().startswith(b"\x89PNG")
    for file in (folder / "figures").glob("*.svg"):
        assert ElementTree.parse(file).getroot().tag.endswith("svg")


def test_the_numbers_are_plain_json_and_all_there(report):
    text = (report.page.parent / "report.json").read_text(encoding="utf-8")
    facts = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert facts == json.loads(json.dumps(report.facts))
    (part,) = facts["parts"]
    assert {block["budget"] for block in part["budgets"]} == {"1x", "none"}
    assert all(len(block["choices"]) == 3 * 6 for block in part["budgets"])
    assert len(part["results"]) == len(report.sections[0].part.results)
    assert [figure["name"] for figure in part["figures"]][:2] == ["frontier-ttft", "frontier-len"]
    assert part["commands"]


def test_every_number_of_table_3_is_in_the_json(report):
    (section,) = report.sections
    for block, table in zip(report.facts["parts"][0]["budgets"], section.tables, strict=True):
        choices = {(c["set"], c["method"]): c for c in block["choices"]}
        places = [n for n, column in enumerate(table.columns) if column == "F1"]
        for row in table.rows:
            for set_, place in zip(section.part.sets, places, strict=False):
                f1 = choices[set_, row[0].text]["test"]["f1"]
                assert row[place].text == f"{f1:.1f}"


class Page(HTMLParser):
    """What a page refers to, its ids, and whether its elements are closed in order."""

    EMPTY = frozenset({"meta", "br", "link", "img"})

    def __init__(self, text):
        super().__init__()
        self.ids, self.references, self.tags, self.open = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.open += [] if tag in self.EMPTY else [tag]
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            elif name in ("src", "href", "xlink:href", "action"):
                self.references.append(value)
            self.references += re.findall(r"url\((.*?)\)", value or "")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open = self.open[: len(self.open) - (tag not in self.EMPTY)]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_needs_no_other_file_and_its_references_lead_somewhere(report):
    text = report.page.read_text(encoding="utf-8")
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert page.references
    assert {reference.removeprefix("#") for reference in page.references} <= set(page.ids)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", text))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text


def test_the_page_shows_tables_figures_statements_and_what_was_run(report):
    text = report.page.read_text(encoding="utf-8")
    page = Page(text)
    assert page.tags.count("svg") == page.tags.count("figcaption") == 4
    assert page.tags.count("table") == 2 + 2 + 1  # budgets; chosen, ablations; everything
    assert re.search(r"coinrag minus standard_rag: [+-]\d+\.\d F1, 95 % CI ", text)
    for shown in ("smollm2-135m-instruct", "coinkv sweep --timing", "torch 2.13.0", "timed"):
        assert shown in text


def test_everything_from_the_results_is_escaped(tmp_path):
    rows = [
        row
        for method in (HOSTILE, "standard_rag", "coinrag")
        for row in on_both(
            method,
            k_chunks=1,
            set=HOSTILE,
            model=HOSTILE,
            command=HOSTILE,
            versions={HOSTILE: HOSTILE},
            options={HOSTILE: HOSTILE, "ratio": 0.1},
        )
    ]
    rows += [row | {"options": {"ratio": 0.5}} for row in rows]
    rows += on_both("coinrag", set=HOSTILE, index=HOSTILE, model=HOSTILE, k_chunks=1)
    report = write_report([written(tmp_path / "r.jsonl", rows)], tmp_path / "out")
    text = report.page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert text.count("&lt;script") > 10
    Page(text)
    for file in (tmp_path / "out" / "figures").glob("*.svg"):
        ElementTree.parse(file)
    markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "<script" not in markdown
    for block in markdown.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
        assert len(widths) <= 1  # a bar in a name makes no cell


def test_backbones_of_different_fingerprints_have_parts_and_files_of_their_own(tmp_path):
    rows = [*on_both(), *on_both(fingerprint="b" * 12), *on_both(fingerprint="c", model="other")]
    report = write_report([written(tmp_path / "r.jsonl", rows)], tmp_path / "out", [Budget()])
    assert [section.part.title for section in report.sections] == [
        "smollm2-135m-instruct (a09b7b99fb7a)",
        "smollm2-135m-instruct (bbbbbbbbbbbb)",
        "other",
    ]
    assert all(len(section.part.results) == 2 for section in report.sections)
    names = {file.name for file in (tmp_path / "out" / "figures").glob("*.svg")}
    assert {f"{n}-frontier-ttft.svg" for n in (1, 2, 3)} <= names
    Page(report.page.read_text(encoding="utf-8"))


def test_ablations_alone_make_a_report_too(tmp_path):
    path = written(tmp_path / "r.jsonl", [answers(options={"align": False})])
    report = write_report([path], tmp_path / "out")
    assert report.sections[0].part.compared == ()
    Page(report.page.read_text(encoding="utf-8"))


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(report_command)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def small(tmp_path):
    rows = [*on_both("standard_rag", k_chunks=1, k_nuggets=None), *on_both()]
    return written(tmp_path / "small.jsonl", rows)


def test_the_command_prints_tables_statements_and_where_the_page_is(run, small, tmp_path):
    ran = run(small, "--out", tmp_path / "out", "--budget", "100ms", "--budget", "none")
    assert ran.exit_code == 0, ran.output
    assert "P99 ≤ 100 ms" in ran.output
    assert "No latency limit" in ran.output
    assert "coinrag minus standard_rag" in ran.output
    assert str(tmp_path / "out" / "report.html") in ran.output.replace("\n", "")


def test_the_command_prints_one_object_when_asked_to(run, small, tmp_path):
    ran = run(small, small, "--out", tmp_path / "out", "--json")
    facts = json.loads(ran.stdout)
    assert facts == json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert facts["sources"] == ["small.jsonl", "small.jsonl"]
    assert len(facts["parts"][0]["results"]) == 4  # the same file twice is the file


@pytest.mark.parametrize("wrong", [("--budget", "fast"), ("--budget", "0x")])
def test_bad_budgets_are_refused_before_anything_is_written(run, small, tmp_path, wrong):
    ran = run(small, "--out", tmp_path / "out", *wrong)
    assert isinstance(ran.exception, InputError)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
def test_without_the_extra_it_is_said_what_to_install(small, tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=missing) as refused:
        write_report([small], tmp_path / "out")
    assert refused.value.hint == "run: pip install 'coinkv[eval]'"
    assert not (tmp_path / "out").exists()
