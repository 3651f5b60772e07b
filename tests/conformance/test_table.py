"""The table in `docs/conformance.md` and the tests are one: each listed test exists, and each test is listed.

Tests of the contract kit count where they are written; which connectors run them is a list of its own.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sources.contract import ChannelSource
from spark_ext.spark.session import formats
from tests.support import pages

ROOT = Path(__file__).parents[2]
PAGE, _, _ = pages.read("conformance").partition("\n## Kill tests\n")
SHOWN, _, REST = PAGE.partition("\n## Not yet\n")
ROWS = dict(re.findall(r"^\| ([A-Z]\d+) \| [^|]+ \| ([^|]+) \|$", SHOWN, re.MULTILINE))
TABLE_LINES = [line for line in SHOWN.splitlines() if line.startswith("| ") and not line.startswith("| line ")]
ALL = {"P": 9, "R": 14, "F": 19, "C": 12, "U": 9, "X": 10, "G": 12, "E": 15, "L": 12, "I": 12}
"""How many lines each group has, from 1 without gaps."""


@cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(item.name for item in ast.walk(tree) if isinstance(item, ast.FunctionDef))


@cache
def classes(path: str) -> dict[str, set[str]]:
    """A file's classes, each with the names of its bases."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = (item for item in tree.body if isinstance(item, ast.ClassDef))
    return {item.name: {base.id for base in item.bases if isinstance(base, ast.Name)} for item in found}


def listed(cell: str) -> list[tuple[str, str]]:
    """Path and name of each test in a cell; every part of the cell has to be one."""
    found = [re.fullmatch(r"`([\w/.]+\.py)::(test_\w+)`", part.strip()) for part in cell.split("<br>")]
    assert all(found), f"not a list of tests: {cell}"
    return [(match[1], match[2]) for match in found if match]


def lines(test: str) -> list[str]:
    begin = re.match(r"test_((?:[a-z]\d+_)*)", test)
    return begin[1].upper().split("_")[:-1] if begin else []


def not_yet() -> Iterator[str]:
    """Ids that the page names as not there yet; `U1-U9` is a range."""
    for cell in re.findall(r"^\| ([A-Z]\d[^|]*) \|", REST, re.MULTILINE):
        for part in cell.split(","):
            first, _, last = part.strip().partition("-")
            group = first[0]
            yield from (f"{group}{number}" for number in range(int(first[1:]), int((last or first)[1:]) + 1))


@pytest.mark.parametrize("line", ROWS)
def test_each_listed_test_exists_and_one_is_named_after_its_line(line: str) -> None:
    tests = listed(ROWS[line])
    for path, name in tests:
        assert name in functions(path), f"{path} has no {name}"
    assert any(line in lines(name) for _, name in tests)


def test_each_row_is_read() -> None:
    """One that is spelled otherwise, or an id twice, would go unchecked."""
    assert len(ROWS) == len([line for line in TABLE_LINES if not set(line) <= set("|- ")])


def test_each_test_of_a_line_is_listed_under_it() -> None:
    kit = sorted((ROOT / "spark_ext" / "testing").glob("*.py"))
    of_kit = {name for path in kit for name in functions(str(path.relative_to(ROOT)))}
    for path in sorted([*(ROOT / "tests" / "conformance").glob("test_*.py"), *kit]):
        relative = str(path.relative_to(ROOT))
        # A connector that gives a test of the kit a form of its own shows the same line.
        for name in functions(relative) - (frozenset() if path in kit else of_kit):
            for line in lines(name):
                assert (relative, name) in listed(ROWS[line]), f"{relative}::{name} is not in the table"


def test_each_line_is_shown_or_named_as_not_yet() -> None:
    every = [f"{group}{number}" for group, count in ALL.items() for number in range(1, count + 1)]
    assert sorted([*ROWS, *not_yet()]) == sorted(every)


@pytest.mark.parametrize("connector", formats.load(), ids=lambda connector: connector.name())
def test_each_shipped_connector_runs_the_kit(connector: type[TwoPhaseCommitSink] | type[ChannelSource]) -> None:
    """By the classes that the page names, each of which takes a suite of the kit over."""
    named = re.findall(rf"^- `{connector.name()}`: (.*)$", SHOWN, re.MULTILINE)
    if connector.name() in ("end_of_input", "control_stamp"):
        return  # a part of the machinery, which no user names
    if connector.name() == "control":
        return  # its rows are those of the job that it is a part of; see tests/control
    assert len(named) == 1, f"{connector.name()} is not in the list"
    wanted = {"SinkContract", "SinkQueryContract"} if issubclass(connector, TwoPhaseCommitSink) else {"SourceContract"}
    for path, name in re.findall(r"`([\w/.]+\.py)::(\w+)`", named[0]):
        wanted -= classes(path)[name]
    assert not wanted, f"{connector.name()} does not run {wanted}"
