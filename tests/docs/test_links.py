"""The pages hang together: each link leads somewhere, each page is reached from the README, each named test exists."""

import ast
import re
from pathlib import Path

import pytest

from spark_ext import errors
from spark_ext.control.requests import ControlRefused
from spark_ext.steering.sent import ControlNotDone
from tests.support import pages

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(pages.HOW_TO.glob("*.md")),
]
ERRORS = pages.read("errors")
REFUSED = pages.section("conformance", "Refused input and outages")


def links(page: Path) -> set[Path]:
    found = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    return {(page.parent / link).resolve() for link in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_leads_to_a_file(page: Path) -> None:
    assert [link for link in links(page) if not link.exists()] == []


def test_each_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    new = {ROOT / "README.md"}
    while new:
        page = new.pop()
        seen.add(page)
        new |= {link for link in links(page) if link.suffix == ".md"} - seen
    assert {page.resolve() for page in PAGES} <= {page.resolve() for page in seen}


def test_the_tests_of_errors_exist() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", REFUSED))
    assert len(named) >= 30
    for path, test in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert test in {item.name for item in ast.walk(tree) if isinstance(item, ast.FunctionDef)}, f"{path}::{test}"


def test_the_errors_page_has_every_kind_and_every_bad_input_test() -> None:
    """Kinds that stand for their children, and the one around all, are not in its table."""
    table = ERRORS.partition("## What a job does")[2].partition("\n## ")[0]
    kinds = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "code")}
    kinds |= {ControlRefused.code, ControlNotDone.code}
    assert set(re.findall(r"`([A-Z_]+)`", table)) == kinds - {"SPARK_EXT", "TERMINAL", "JOB_FAILED"}
    for connector in ("http", "kafka", "postgres"):
        path = ROOT / "tests" / "jobs" / f"test_bad_input_{connector}.py"
        tests = {item.name for item in ast.parse(path.read_text()).body if isinstance(item, ast.FunctionDef)}
        listed = set(re.findall(rf"`tests/jobs/{path.name}::(\w+)`", REFUSED))
        assert {name for name in tests if name.startswith("test_")} == listed
