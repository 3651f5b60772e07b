"""Text that is hostile to a terminal: escape sequences, controls, directions of writing, and rich's own markup."""

import io
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from rich.console import Group
from rich.table import Table
from rich.text import Text

from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.schema import Row
from spark_ext.views.terminal import Terminal
from tests.ledger import rows as made
from tests.test_cli import spark_ext

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b1m\rover\b\x7f\u202eright\u2066\ud800"
MARKUP = "[bold]name[/bold] [/] [link=http://evil]x[/link] :smile:"


def shown(*parts: Text | Table | Group | str, color: bool = False) -> str:
    out = io.StringIO()
    console = Terminal(file=out, width=200, color_system="truecolor" if color else None, force_terminal=color)
    for part in parts:
        console.print(part)
    return out.getvalue()


def test_nothing_but_the_text_is_left() -> None:
    table = Table(ESCAPES, MARKUP)
    table.add_row(ESCAPES, Text(MARKUP))
    found = shown(ESCAPES, MARKUP, Text(ESCAPES), Group(Text(MARKUP)), table)
    assert "red" in found and found.count(MARKUP) == 4
    assert not [one for one in found if not one.isprintable() and one != "\n"]


def test_the_layout_of_a_table_is_that_of_the_text_that_is_left() -> None:
    hostile, tame = Table("a", "b"), Table("a", "b")
    hostile.add_row("x\x1b[31my\x9b\u202e", "z")
    tame.add_row("x[31my", "z")
    assert shown(hostile) == shown(tame)


def test_styles_of_our_own_stay() -> None:
    assert shown(Text("RUNNING\x1b[2J", style="green"), color=True) == "\x1b[32mRUNNING[2J\x1b[0m\n"


@given(st.text())
@settings(max_examples=20)
def test_any_text_is_printable(text: str) -> None:
    assert not set(shown(text, Text(text))) & {chr(code) for code in (*range(10), *range(11, 32), *range(127, 160))}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "state"
    ledger = Ledger(str(folder))
    text = ESCAPES.replace("\ud800", "") + MARKUP
    writer = LedgerWriter(ledger, start_incarnation(ledger, text))

    def with_texts(row: Row, *names: str) -> Row:
        return type(row)(**{**vars(row), **dict.fromkeys(names, text)})

    lines: list[Row] = [with_texts(made.epoch(number), "query") for number in range(3)]
    lines += [with_texts(made.flag(1), "query", "source", "channel")]
    lines += [with_texts(made.checkpoint(1), "path", "reason")]
    lines += [with_texts(made.state("RUNNING"), "reason"), with_texts(made.state("FAILED"), "operator", "reason")]
    lines += [with_texts(made.incident(1), "incident_id", "operator", "what", "action", "job")]
    lines += [with_texts(made.incident_change(1), "incident_id", "cause")]
    for row in lines:
        writer.append(row)
    return folder


@pytest.mark.parametrize(
    "command", ["status", "timeline", "check", "top --once", "incidents", "epochs", "finished", "checkpoints", "plot"]
)
def test_no_command_lets_a_ledger_control_the_terminal(hostile: Path, command: str) -> None:
    name, *options = command.split()
    done = spark_ext(name, hostile, *options)
    said = done.stdout + done.stderr
    assert "owned" in said and "Traceback" not in said
    assert not [one for one in said if not one.isprintable() and one not in "\n\u2800"]
    assert "[bold]name[/bold]" in said.replace("\n", "") or name == "plot"
