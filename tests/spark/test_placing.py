"""A prepared checkpoint goes into its place, also when Spark has just written state there; without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ext.spark.logs.placing import put_in_place


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    folder = tmp_path / "prepared"
    (folder / "state" / "0").mkdir(parents=True)
    (folder / "metadata").write_text("prepared")
    return folder


def files(place: Path) -> set[str]:
    return {str(file.relative_to(place)) for file in place.rglob("*")}


@pytest.mark.parametrize("late", [(), ("state/0/0/7.zip",), ("state/0/0/SSTs/a.sst", "state/1/0/7.zip")])
def test_state_that_was_uploaded_late_is_replaced(prepared: Path, tmp_path: Path, late: tuple[str, ...]) -> None:
    place = tmp_path / "place"
    for name in late:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("late")
    put_in_place(prepared, place)
    assert files(place) == {"metadata", "state", "state/0"} and not prepared.exists()


@pytest.mark.parametrize("other", ["metadata", "offsets/0", "commits/0"])
def test_a_checkpoint_is_never_replaced(prepared: Path, tmp_path: Path, other: str) -> None:
    place = tmp_path / "place"
    for name in ("state/0/0/7.zip", other):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("kept")
    before = files(place)
    with pytest.raises(OSError, match="not empty"):
        put_in_place(prepared, place)
    assert files(place) == before and prepared.exists()
