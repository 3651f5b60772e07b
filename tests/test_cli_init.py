"""`spark-ext init` copies programs that run."""

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


def test_each_program_of_the_gallery_is_listed_with_what_it_does() -> None:
    listed = init()
    for program in GALLERY.glob("*.py"):
        assert program.stem.replace("_", "-") in listed
    assert "A source of your own" in listed


def test_a_program_is_copied_once(tmp_path: Path) -> None:
    copy = tmp_path / "mine" / "own_source.py"
    assert f"python {copy}" in init("own-source", "--folder", str(copy.parent)).replace("\n", "")
    assert copy.read_text() == (GALLERY / "own_source.py").read_text()
    copy.write_text("mine")
    with pytest.raises(ConfigurationError, match=r"own_source\.py exists"):
        init("own-source", "--folder", str(copy.parent))
    assert copy.read_text() == "mine"


def test_an_unknown_program_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="unknown program 'first-job'; did you mean 'first'"):
        init("first-job")
