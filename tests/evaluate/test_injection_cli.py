"""`coinkv bench injection`: the shares printed, every answer written, wrong options refused."""

from __future__ import annotations

import json

import pytest
import typer

from coinkv.cli.bench_injection import injection_command
from coinkv.errors import InputError, StorageError

APP = typer.Typer()
APP.command()(injection_command)


@pytest.fixture
def bench(model_folder, capsys):
    """Runs the command with the tiny model; returns what it printed."""

    def run(*arguments):
        APP([*map(str, arguments), "--model", str(model_folder)], standalone_mode=False)
        return capsys.readouterr().out

    return run


def test_answers_are_written_and_their_shares_printed(bench, tmp_path):
    to = tmp_path / "new" / "result.json"
    printed = bench("--to", to, "--limit", 2, "--answer-tokens", 2, "--methods", "coinrag")
    facts = json.loads(to.read_text(encoding="utf-8"))
    assert (facts["cases"], len(facts["rows"])) == (2, 8)
    assert facts["settings"] == {
        "methods": ["coinrag"],
        "k_chunks": 1,
        "k_nuggets": 5,
        "answer_tokens": 2,
    }
    assert "obeyed" in printed
    assert "coinrag: with the mark +0 points obeyed (+0 to +0)" in printed


def test_json_is_the_result_without_the_answers(bench, tmp_path):
    to = tmp_path / "result.json"
    options = ("--limit", 1, "--answer-tokens", 1, "--methods", "coinrag", "--json")
    facts = json.loads(bench("--to", to, *options))
    written = json.loads(to.read_text(encoding="utf-8"))
    assert len(written.pop("rows")) == 4
    assert facts == written


@pytest.mark.parametrize(
    ("arguments", "kind", "reason"),
    [
        (("--methods", "coin"), InputError, "no method is called 'coin'"),
        (("--methods", ","), InputError, "no method is called ','"),
        (("--limit", 0), InputError, "limit is 0"),
        (("--k-chunks", 0), InputError, "k_chunks is 0"),
        (("--k-nuggets", -1), InputError, "k_nuggets is -1"),
        (("--answer-tokens", 0), InputError, "answer_tokens is 0"),
        (("--cases", "nowhere.jsonl"), InputError, "no such file"),
        (("--to", "/dev/null/file"), StorageError, "cannot be written"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(bench, tmp_path, arguments, kind, reason):
    with pytest.raises(kind, match=reason) as error:
        bench("--to", tmp_path / "result.json", *arguments)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "result.json").exists()
