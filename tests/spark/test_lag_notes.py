"""What a source's planner notes of its lag, and how the driver reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ext.spark.session import lag_notes, registry
from spark_ext.spark.session.lag_notes import LagNotes
from spark_ext.spark.watching.source_reports import SourceReport
from tests.sources.memory import registration


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"lag": "x", "at": 1}', '{"lag": 3}', "null"])
def test_what_is_no_note_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / registry.lag_note("s")).write_text(text)
    assert lag_notes.read(tmp_path, "s") is None


def test_notes_are_read_once_a_second_at_most(tmp_path: Path) -> None:
    registry.publish([registration()], tmp_path)
    now = [100.0]
    notes = LagNotes(tmp_path, ["s", "t"], lambda: now[0])
    unknown = SourceReport(None, None)
    assert notes() == {"s": unknown, "t": unknown}
    lag_notes.write(tmp_path, "s", 7, 1.5)
    now[0] += 0.9
    assert notes()["s"] == unknown
    now[0] += 0.1
    assert notes() == {"s": SourceReport(7, None, 1.5), "t": unknown}


def test_nothing_is_left_of_a_note_that_is_written_again(tmp_path: Path) -> None:
    registry.publish([registration()], tmp_path)
    for lag in range(3):
        assert lag_notes.write(tmp_path, "s", lag, float(lag))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.json", "s.lag"]
