"""The page for operators has the settings and the figures that the code has."""

from __future__ import annotations

import re

import pytest
import typer
from deploying import DEPLOY, PROJECT
from operations_tables import PAGE, metrics_table, page_with_tables, settings_table

from coinkv.cli.main import app
from coinkv.serve.settings import ServeSettings

TEXT = PAGE.read_text("utf-8")


def test_its_tables_are_those_that_the_code_makes() -> None:
    assert page_with_tables(TEXT) == TEXT, "run: python tests/deploy/operations_tables.py"
    assert settings_table() in TEXT
    assert metrics_table() in TEXT


@pytest.mark.parametrize("name", ServeSettings.model_fields)
def test_every_setting_has_one_row_with_its_meaning(name: str) -> None:
    (row,) = [row for row in settings_table().splitlines() if f"_SERVE_{name.upper()}`" in row]
    assert len(row.split("|")[4].strip()) >= 5


def test_options_in_the_table_are_those_of_the_command() -> None:
    cells = re.findall(r"^\|([^|]*)\|", settings_table(), re.MULTILINE)
    shown = {option for cell in cells for option in re.findall(r"`(--[\w-]+)`", cell)}
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    there = {max(each.opts, key=len) for each in commands["serve"].params}
    assert shown == there - {"--browser", "--help"}


def test_every_figure_has_a_type_and_a_meaning() -> None:
    rows = [row.split("|")[1:-1] for row in metrics_table().splitlines()[2:]]
    assert len(rows) > 20
    assert {row[1].strip() for row in rows} <= {"counter", "gauge", "histogram", "info"}
    assert all(row[3].strip() for row in rows)


def test_files_and_commands_it_names_are_there() -> None:
    named = set(re.findall(r"`(deploy/[\w./-]+)`", TEXT))
    assert len(named) >= 5
    assert [path for path in named if not (PROJECT / path).exists()] == []
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(re.findall(r"coinkv (serve|keys|build)\b", TEXT)) <= set(commands)


def test_every_file_of_the_deployment_is_named() -> None:
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    missing = [path.name for path in files if path.relative_to(PROJECT).as_posix() not in TEXT]
    assert missing == []


def test_log_fields_it_explains_are_those_of_a_line() -> None:
    section = TEXT.partition("## Logs")[2].partition("\n## ")[0]
    example = re.search(r"^({.*})$", section, re.MULTILINE)
    assert example is not None
    fields = set(re.findall(r'"(\w+)":', example[1]))
    explained = set(re.findall(r"`(\w+)`", section))
    assert fields - explained - {"event", "level", "logger", "timestamp"} == set()
