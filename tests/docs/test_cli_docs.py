"""The command line reference names what the command line has: no option less, none more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from coinkv.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def leaves(command: Any, name: str) -> dict[str, Any]:
    """Every command that does something, by what is typed to run it."""
    if not hasattr(command, "commands"):
        return {name: command}
    found: dict[str, Any] = {}
    for child, its_command in command.commands.items():
        found |= leaves(its_command, f"{name} {child}")
    return found


def options_of(command: Any) -> set[str]:
    return {
        option
        for parameter in command.params
        if parameter.param_type_name == "option"
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--")
    } - {"--help"}


def sections(page: str) -> dict[str, str]:
    """The page's parts by heading of the second level; what stands before the first under ""."""
    parts = re.split(r"^## +(.+)$", page, flags=re.MULTILINE)
    headings = [heading.strip().strip("`") for heading in parts[1::2]]
    return {"": parts[0], **dict(zip(headings, parts[2::2], strict=True))}


def option_rows(section: str) -> set[str]:
    """Options that a table row of the section begins with."""
    rows = re.findall(r"^\|([^|]*)\|", section, flags=re.MULTILINE)
    return {option for row in rows for option in OPTION.findall(row)}


def options_typed(section: str) -> set[str]:
    """Options in the commands that the section's examples run."""
    lines = re.findall(r"^\$ ((?:.*\\\n)*.*)$", section, flags=re.MULTILINE)
    return {option for line in lines for option in OPTION.findall(line)}


ROOT = typer.main.get_command(app)
COMMANDS = leaves(ROOT, "coinkv")
SECTIONS = sections(PAGE.read_text(encoding="utf-8"))
ALL_OPTIONS = {option for command in COMMANDS.values() for option in options_of(command)}
ALL_OPTIONS |= options_of(ROOT) | {"--help"}


def test_every_command_has_a_section_and_every_such_section_a_command() -> None:
    assert {heading for heading in SECTIONS if heading.startswith("coinkv")} == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_of_a_command_has_a_row_in_its_section(name: str) -> None:
    assert options_of(COMMANDS[name]) - option_rows(SECTIONS[name]) == set()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_of_a_command_is_used_in_an_example_of_its_section(name: str) -> None:
    assert options_of(COMMANDS[name]) - options_typed(SECTIONS[name]) == set()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_in_a_commands_section_is_one_of_that_command(name: str) -> None:
    known = options_of(COMMANDS[name]) | {"--help"}
    assert set(OPTION.findall(SECTIONS[name])) - known == set()


def test_every_option_elsewhere_on_the_page_is_one_of_some_command() -> None:
    elsewhere = "".join(text for heading, text in SECTIONS.items() if heading not in COMMANDS)
    assert set(OPTION.findall(elsewhere)) - ALL_OPTIONS == set()


def test_the_options_before_any_command_are_named() -> None:
    elsewhere = "".join(text for heading, text in SECTIONS.items() if heading not in COMMANDS)
    assert options_of(ROOT) - set(OPTION.findall(elsewhere)) == set()


def test_every_argument_of_a_command_stands_in_its_usage_line() -> None:
    for name, command in COMMANDS.items():
        arguments = {p.name.upper() for p in command.params if p.param_type_name == "argument"}
        usage = re.search(rf"^{name}\b.*$", SECTIONS[name], flags=re.MULTILINE)
        assert usage is not None, name
        assert arguments - set(re.findall(r"[A-Z]+", usage[0])) == set(), name
