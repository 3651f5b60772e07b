"""Stamps as files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from spark_ext.control import stamps
from spark_ext.errors import OffsetError, StateError
from spark_ext.model.configuration import Configuration, Stamp
from spark_ext.model.offsets import SourceOffset

DAY = 86_400.0


def stamp(sequence: int) -> Stamp:
    return Stamp(Configuration(sequence, {"pause": {"job": {"": None}}}), sequence - 1)


def test_a_stamp_is_read_as_it_was_written_and_written_once(tmp_path: Path) -> None:
    place = str(tmp_path)
    name = stamps.write(place, stamp(5).text())
    assert stamps.write(place, stamp(5).text()) == name == stamp(5).name
    assert stamps.read(place, name) == stamp(5)
    assert [file.name for file in (tmp_path / "control").iterdir()] == [f"{name}.json"]


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_a_stamp_that_is_gone_or_changed_is_named(tmp_path: Path, damage: str) -> None:
    name = stamps.write(str(tmp_path), stamp(6).text())
    file = tmp_path / "control" / f"{name}.json"
    file.unlink() if damage == "gone" else file.write_text(file.read_text().replace("6", "7"))
    with pytest.raises(StateError, match=f"control/{name}.json"):
        stamps.read(str(tmp_path), name)


def test_a_stamp_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    raw = {**json.loads(stamp(5).text()), "version": 2}
    name = stamps.write(str(tmp_path), json.dumps(raw))
    with pytest.raises(OffsetError, match="has version 2; this release reads version 1"):
        stamps.read(str(tmp_path), name)


def test_the_greatest_sequence_of_the_sources_counts(tmp_path: Path) -> None:
    place = str(tmp_path)
    offsets = [
        SourceOffset(f"s{number}", control=number, stamp=stamps.write(place, stamp(number).text()))
        for number in (3, 9, 4)
    ]
    assert stamps.configuration(place, [*offsets, SourceOffset("ended")]).sequence == 9
    assert stamps.configuration(place, [SourceOffset("ended")]) == Configuration()


def test_a_question_is_decided_once(tmp_path: Path) -> None:
    assert stamps.decide(str(tmp_path), "expiry-1-5", "late") == "late"
    assert stamps.decide(str(tmp_path), "expiry-1-5", "in time") == "late"


def test_old_stamps_are_deleted_unless_an_offset_names_them(tmp_path: Path) -> None:
    place = str(tmp_path)
    names = {number: stamps.write(place, stamp(number).text()) for number in (1, 2, 3)}
    stamps.decide(place, "expiry-1-1", "late")
    for number in (1, 2):
        os.utime(tmp_path / "control" / f"{names[number]}.json", (time.time() - 2 * DAY,) * 2)
    os.utime(tmp_path / "control" / "expiry-1-1.txt", (time.time() - 2 * DAY,) * 2)
    (tmp_path / "offsets").mkdir()
    line = json.dumps(SourceOffset("s", control=2, stamp=names[2]).to_json())
    (tmp_path / "offsets" / "7").write_text(f"v1\n{{}}\n{line}")
    assert stamps.sweep(place, 3 * DAY) == 0
    assert stamps.sweep(place, DAY) == 2
    assert {file.stem for file in (tmp_path / "control").iterdir()} == {names[2], names[3]}
    (tmp_path / "offsets" / "7").unlink()
    assert stamps.sweep(place, DAY) == 0, "it was in force until now"
