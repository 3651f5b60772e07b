"""The pages that promise to run do run: their Python is taken out and started as a reader would start it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_ext.sources.datagen import DataGenOptions
from spark_ext.sources.delta_snapshot import DeltaSnapshotOptions
from spark_ext.sources.files import FilesOptions

DOCS = Path(__file__).parents[1] / "docs"


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def run(script: Path) -> str:
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=script.parent,
        env={**os.environ, "PYTHONPATH": str(script.parent)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_write_a_source_runs_as_printed(tmp_path: Path) -> None:
    source, trial = python_blocks("write-a-source.md")
    (tmp_path / "shop.py").write_text(source, encoding="utf-8")
    (tmp_path / "try_shop.py").write_text(trial, encoding="utf-8")
    assert "20 runs agree" in run(tmp_path / "try_shop.py")
    assert "1000 rows in 4 epochs" in run(tmp_path / "shop.py")


@pytest.mark.parametrize(
    ("section", "options"),
    [("files", FilesOptions), ("delta_snapshot", DeltaSnapshotOptions), ("datagen", DataGenOptions)],
)
def test_each_option_of_a_source_is_in_its_table(section: str, options: type[FilesOptions]) -> None:
    text = (DOCS / "sources.md").read_text(encoding="utf-8")
    shared, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    page = shared + next(part for part in sections if part.startswith(section + "\n"))
    named = {name for row in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert named == set(options.model_fields)


def test_the_kit_tries_the_sink_and_the_source_as_printed(tmp_path: Path) -> None:
    sink, sink_test, source_test = python_blocks("testing.md")
    (tmp_path / "sqlite_sink.py").write_text(sink, encoding="utf-8")
    (tmp_path / "test_sqlite_sink.py").write_text(sink_test, encoding="utf-8")
    (tmp_path / "shop.py").write_text(python_blocks("write-a-source.md")[0], encoding="utf-8")
    (tmp_path / "test_shop.py").write_text(source_test, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout and " skipped" not in done.stdout
