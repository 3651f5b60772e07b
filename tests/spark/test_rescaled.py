"""A checkpoint directory that a copy replaces: which copy counts after a crash, without Spark."""

import shutil
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from spark_ext import failpoints
from spark_ext.failpoints import FailPoint
from spark_ext.spark.logs.rescaled import BUILDING, complete, discard, is_interrupted, replace, take

AT = datetime(2024, 5, 6, tzinfo=timezone.utc)


def made(folder: Path, content: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "metadata").write_text(content)
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return made(tmp_path / "q" / "checkpoint", "first")


def content(place: Path) -> str | None:
    return (place / "metadata").read_text() if place.exists() else None


def names(place: Path) -> list[str]:
    return sorted(one.name for one in place.parent.iterdir())


def interrupted(monkeypatch: pytest.MonkeyPatch, point: FailPoint, place: Path, at: datetime = AT) -> None:
    monkeypatch.setattr(failpoints, "_passed", Counter())
    monkeypatch.setenv(failpoints.VARIABLE, f"{point}=raise")
    with pytest.raises(OSError, match=f"fail point {point}"):
        replace(place, made(place.with_name(BUILDING), "copy"), at)
    monkeypatch.delenv(failpoints.VARIABLE)


def test_the_copy_takes_the_place_and_the_former_one_is_kept(place: Path) -> None:
    replace(place, made(place.with_name(BUILDING), "copy"), AT)
    assert content(place) == "copy"
    assert names(place) == ["checkpoint", "checkpoint.until-20240506T000000000000"]
    assert not complete(str(place)), "nothing is left to do"


def test_one_that_was_moved_aside_is_replaced_by_the_next_start(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, FailPoint.RESCALE_MOVED_ASIDE, place)
    assert content(place) is None and is_interrupted(str(place))
    assert complete(str(place)) and content(place) == "copy" and not is_interrupted(str(place))
    assert names(place) == ["checkpoint", "checkpoint.until-20240506T000000000000"]


def test_a_copy_beside_an_unmoved_checkpoint_is_deleted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, FailPoint.RESCALE_BEFORE_MOVING_ASIDE, place)
    assert not is_interrupted(str(place))
    assert not take(str(place)) and len(names(place)) == 2, "whoever does not own the job changes nothing"
    assert not complete(str(place)) and content(place) == "first"
    assert names(place) == ["checkpoint"]


@pytest.mark.parametrize("aside", [None, "checkpoint.until-20240506T000001000000", "elsewhere"])
def test_a_copy_does_not_replace_what_was_removed_otherwise(
    place: Path, monkeypatch: pytest.MonkeyPatch, aside: str | None
) -> None:
    """Deleted by hand, reset, or moved with a query that has another name now: the copy is older than that."""
    interrupted(monkeypatch, FailPoint.RESCALE_BEFORE_MOVING_ASIDE, place)
    if aside is None:
        shutil.rmtree(place)
    else:
        place.rename(place.with_name(aside))
    assert not complete(str(place)) and content(place) is None


def test_of_two_copies_the_one_the_checkpoint_moved_for_counts(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, FailPoint.RESCALE_BEFORE_MOVING_ASIDE, place)
    (place.with_name("checkpoint.rescaled-20240506T000000000000") / "metadata").write_text("older copy")
    interrupted(monkeypatch, FailPoint.RESCALE_MOVED_ASIDE, place, AT + timedelta(seconds=1))
    assert complete(str(place)) and content(place) == "copy"
    assert names(place) == ["checkpoint", "checkpoint.until-20240506T000001000000"]


def test_what_is_discarded_does_not_come_back(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, FailPoint.RESCALE_MOVED_ASIDE, place)
    made(place.with_name(BUILDING), "half")
    discard(str(place))
    assert not complete(str(place)) and names(place) == ["checkpoint.until-20240506T000000000000"]


def test_an_object_store_has_no_copies() -> None:
    assert not take("s3://bucket/q/checkpoint") and not complete("s3://bucket/q/checkpoint")
    discard("s3://bucket/q/checkpoint")
