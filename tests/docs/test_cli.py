"""The page about the command line names each command, option and exit code that the code has, and no others."""

import re
from typing import Any

import pytest
import typer.main

from spark_ext import cli
from spark_ext.commands import output
from tests.support import pages

APP: Any = typer.main.get_command(cli.app)
CONTROL: Any = APP.commands["control"]
PAGE = pages.read("cli")
SEND = ("--wait", "--timeout", "--delivery", "--key", "--expires")
REACH = ("--json", "--token-file", "--ca", "--storage")


def first_cells(section: str) -> list[list[str]]:
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    tables = re.findall(r"^\|[^\n]*\|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[re.split(r"(?<!\\)\|", row)[1].strip(" `") for row in table.splitlines()] for table in tables]


def options(command: Any) -> set[str]:
    return {name for one in command.params for name in one.opts if name.startswith("--") and name != "--help"}


def arguments(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "argument"]


def test_each_command_has_a_section() -> None:
    for name in APP.commands:
        assert f"## `spark-ext {name}" in PAGE, name


def test_the_commands_of_control() -> None:
    """Those that send a kind are generated: see `tests/tools/test_pages.py`."""
    section = "`spark-ext control STATE|URL COMMAND`"
    sent, others, send, reach = first_cells(section)
    assert [cell.split()[0] for cell in [*sent, *others]] == list(CONTROL.commands)
    assert [[cell.split()[0] for cell in cells] for cells in (send, reach)] == [list(SEND), list(REACH)]
    text = PAGE.split(f"## {section}")[1].split("\n## ")[0]
    for cell in others:
        name, *given = cell.split()
        command = CONTROL.commands[name]
        assert [word.startswith("[") for word in given] == [not one.required for one in arguments(command)], cell
        row = next(row for row in text.splitlines() if re.match(rf"\| `{name}[ `]", row))
        assert options(command) - {*REACH, *SEND, "--yes"} == set(re.findall(r"`(--[a-z-]+)", row)) - {"--wait"}, name


@pytest.mark.parametrize("name", ["serve", "check"])
def test_the_options_of_a_command(name: str) -> None:
    (table,) = first_cells(f"`spark-ext {name} STATE...`")
    assert {cell.split()[0] for cell in table} == options(APP.commands[name])


@pytest.mark.parametrize("name", ["serve STATE NAME", "connect STATE NAME", "seal STATE NAME GATEWAY"])
def test_the_options_of_a_command_of_ingest(name: str) -> None:
    command = APP.commands["ingest"].commands[name.split()[0]]
    (table,) = first_cells(f"`spark-ext ingest {name}`")
    hidden = {option for one in command.params if getattr(one, "hidden", False) for option in one.opts}
    assert {cell.split()[0] for cell in table} == options(command) - hidden


def test_the_commands_of_token() -> None:
    text = PAGE.split("## `spark-ext token`")[1].split("\n## ")[0]
    for name, command in APP.commands["token"].commands.items():
        assert f"`token {name} FILE" in text
        assert options(command) - {"--json"} <= set(re.findall(r"--[a-z]+", text)), name


def test_the_exit_codes() -> None:
    (table,) = first_cells("Exit codes")
    known = {value for name, value in vars(output).items() if name.isupper() and isinstance(value, int)}
    assert {int(cell) for cell in table} == known | {0}
