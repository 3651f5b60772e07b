"""The manifest of a savepoint: both versions that are read, and the one that is written."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spark_ext.checkpoints.savepoint import About, read_savepoint, seal, write_flags
from spark_ext.errors import StateError

GOLDEN = Path(__file__).parents[1] / "golden"

ABOUT = About(
    "flights", "0a1b", 7, 1, 3, "savepoint", "aligned", "2024-05-01T12:00:00+00:00", rows_in_flight=12, start=99
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checkpoint.json").write_text((GOLDEN / "checkpoint-v2.json").read_text())
    (tmp_path / "definitions.json").write_text("{}")
    write_flags(str(tmp_path), [])
    return tmp_path


def test_the_manifest_is_written_as_in_its_golden_file(folder: Path) -> None:
    """A change of the written form needs a new version, and a golden file of its own."""
    seal(str(folder), ABOUT, ["definitions.json"])
    assert (folder / "manifest.json").read_text() == (GOLDEN / "manifest-v2.json").read_text()


@pytest.mark.parametrize(("version", "about"), [(1, replace(ABOUT, start=0)), (2, ABOUT)])
def test_this_version_and_the_former_one_are_read(folder: Path, version: int, about: About) -> None:
    (folder / "manifest.json").write_text((GOLDEN / f"manifest-v{version}.json").read_text())
    found = read_savepoint(str(folder))
    assert found.about == about and list(found.files) == ["definitions.json"]
    assert found.metadata.job == "flights"


def test_another_version_is_refused(folder: Path) -> None:
    raw = json.loads((GOLDEN / "manifest-v2.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**raw, "version": 3}))
    with pytest.raises(StateError, match="has version 3; this release reads versions 1 to 2"):
        read_savepoint(str(folder))
