"""The pages `postgres_2pc.md` and `postgres.md` say what is so: their examples run, their options are the code's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_ext.sinks.postgres_2pc import PostgresSinkOptions
from spark_ext.sources.contract import SourceOptions
from spark_ext.sources.postgres import PostgresOptions
from tests.servers.postgres import Database

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def run_example(name: str, folder: Path, database: Database) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", page(name), re.DOTALL | re.MULTILINE)
    (folder / "page.py").write_text(block, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=folder,
        env={**os.environ, "POSTGRES_DSN": database.dsn},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_examples_run_as_printed(tmp_path: Path, database: Database) -> None:
    """One after the other: the source reads the table that the sink has made."""
    (tmp_path / "sink").mkdir()
    (tmp_path / "source").mkdir()
    run_example("postgres_2pc.md", tmp_path / "sink", database)
    assert database.rows("SELECT count(*), sum(amount) FROM orders") == [(2500, 2499 * 2500 / 8)]
    run_example("postgres.md", tmp_path / "source", database)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("postgres_2pc.md", PostgresSinkOptions.model_fields.keys()),
        ("postgres.md", PostgresOptions.model_fields.keys() - SourceOptions.model_fields.keys()),
    ],
)
def test_each_option_is_in_the_table(name: str, named: set[str]) -> None:
    table = page(name).partition("## Options")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.MULTILINE)
    assert {option for row in listed for option in re.findall(r"`(\w+)`", row)} == set(named)


def test_each_default_of_the_sink_is_that_of_the_code() -> None:
    table = page("postgres_2pc.md").partition("## Options")[2].partition("\n## ")[0]
    defaults = PostgresSinkOptions.model_validate({"uid": "a", "table": "b"})
    told = re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", table, re.MULTILINE)
    assert len(told) >= 9
    for name, value in told:
        given = PostgresSinkOptions.model_validate({"uid": "a", "table": "b", name: value})
        assert getattr(given, name) == getattr(defaults, name), name
