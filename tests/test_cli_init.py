"""`spark-ext init` copies programs that run."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_ext.cli import app
from spark_ext.errors import ConfigurationError
from tests.support.pages import GALLERY


def init(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["init", *arguments])
    if done.exception is not None:
        raise done.exception
    return done.stdout


TEMPLATES = {
    "first": "first", "csv-hourly": "incremental_files", "postgres-scd1": "postgres_to_delta",
    "kafka-to-postgres": "kafka_to_postgres", "webhook": "github_webhooks", "own-source": "own_source",
}  # fmt: skip


def test_each_program_is_listed_once_with_what_it_does_and_common_ones_first() -> None:
    listed = [line.split()[0] for line in init().splitlines()[1:-1]]
    others = {path.stem.replace("_", "-") for path in GALLERY.glob("*.py") if path.stem not in TEMPLATES.values()}
    assert listed == [*TEMPLATES, "notebook", *sorted(others)]
    assert "A source of your own" in init()


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_program_is_copied_once_and_names_itself(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "mine" / f"{name.replace('-', '_')}.py"
    assert f"python {copy}" in init(name, "--folder", str(copy.parent)).replace("\n", "")
    program = (GALLERY / f"{TEMPLATES[name]}.py").read_text()
    assert copy.read_text() == program.replace(f"examples/gallery/{TEMPLATES[name]}.py", copy.name)
    assert f"python {copy.name}" in copy.read_text().partition("from __future__")[0]
    assert callable(runpy.run_path(str(copy))["job"])
    copy.write_text("mine")
    with pytest.raises(ConfigurationError, match=f"{copy.name} exists"):
        init(name, "--folder", str(copy.parent))
    assert copy.read_text() == "mine"


def test_what_a_program_deletes_is_said(tmp_path: Path) -> None:
    said = " ".join(init("csv-hourly", "--folder", str(tmp_path)).split())
    assert "it deletes out/gallery/incremental_files first" in said and f"spark-ext run {tmp_path}" in said
    assert "it deletes" not in init("first", "--folder", str(tmp_path))


@pytest.mark.slow(9, "tests a source with the kit")
def test_a_source_comes_with_its_kit_and_passes_it(tmp_path: Path) -> None:
    assert f"pytest {tmp_path}/test_own_source.py" in init("own-source", "--folder", str(tmp_path)).replace("\n", "")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "r1 or r2 or f10"]
    done = subprocess.run([*command, "test_own_source.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout


def test_the_notebook_is_there(tmp_path: Path) -> None:
    assert "A first job, as a notebook." in init()
    init("notebook", "--folder", str(tmp_path))
    assert (tmp_path / "notebook.ipynb").read_text() == (GALLERY.parent / "first_job.ipynb").read_text()


def test_an_unknown_program_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="unknown program 'first-job'; did you mean 'first'"):
        init("first-job")
