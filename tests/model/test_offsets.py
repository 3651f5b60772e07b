"""Offsets survive JSON, stay small, and say exactly what an epoch reads."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.errors import OffsetError
from spark_ext.model.end_of_input import EndOffset
from spark_ext.model.offsets import VERSION, Finished, OffsetKind, Range, Running, SourceOffset, kind_of, ranges

GOLDEN = Path(__file__).parents[1] / "golden"

EVERYTHING = SourceOffset(
    "flights", lineage=3,
    running={"2013-03.csv": Running(1200, {"size": 99}, 0, True), "2013-02.csv": Running([7, "k"])},
    finished=(Finished(2, "2013-01.csv", 27004, {"size": 70}, 0, True), Finished(3, "2012-12.csv", 5)), confirmed=1,
    sequence=3, ended=True, drained=True, control=4, final=2, stage={"number": 1, "offsets": {"0": 17}},
)  # fmt: skip
"""An offset with a value in every field that it has had since version 1."""

# An offset with a value in every field.
NEWEST = replace(
    EVERYTHING, running={**EVERYTHING.running, "2013-04.csv": Running(3, jumped=True)}, barrier=7,
    stamp="0123456789abcdef0123456789abcdef",
)  # fmt: skip

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
names = st.text(min_size=1, max_size=6)


@st.composite
def running(draw: st.DrawFn) -> Running:
    new = draw(st.booleans())
    return Running(draw(values), draw(values), draw(values) if new else None, new, not new and draw(st.booleans()))


@st.composite
def offsets(draw: st.DrawFn) -> SourceOffset:
    confirmed = draw(st.integers(0, 5))
    channels = draw(st.lists(names, max_size=4, unique=True))
    finished = []
    for number, channel in enumerate(channels):
        new = draw(st.booleans())
        finished.append(
            Finished(confirmed + number + 1, channel, draw(values), draw(values), draw(values) if new else None, new)
        )
    return SourceOffset(
        uid=draw(st.text(min_size=1)), lineage=draw(st.integers(0, 9)),
        running=draw(st.dictionaries(names, running(), max_size=4)), finished=tuple(finished), confirmed=confirmed,
        sequence=confirmed + len(finished), ended=draw(st.booleans()), drained=draw(st.booleans()),
        control=draw(st.integers(0, 9)), final=draw(st.integers(0, 3)), stamp=draw(st.text(max_size=3)),
        barrier=draw(st.integers(0, 3)),
    )  # fmt: skip


@given(offsets())
def test_an_offset_survives_sparks_log(offset: SourceOffset) -> None:
    raw = json.loads(json.dumps(offset.to_json()))
    assert SourceOffset.from_json(raw, offset.uid) == offset
    assert kind_of(raw) is OffsetKind.CHANNELS


def test_the_initial_offset_is_as_short_as_can_be() -> None:
    assert SourceOffset("s").to_json() == {"version": VERSION, "kind": "channels", "uid": "s", "lineage": 0}


def test_an_offset_of_another_source_is_refused_by_both_names() -> None:
    with pytest.raises(OffsetError, match="offset of source 'left'") as refused:
        SourceOffset.from_json(SourceOffset("left").to_json(), "right")
    assert refused.value.operator == "source 'right'"
    assert "order" in refused.value.do


@pytest.mark.parametrize("version", [None, 0, VERSION + 1, "1"])
def test_an_unknown_version_is_refused(version: object) -> None:
    with pytest.raises(OffsetError, match="not known"):
        SourceOffset.from_json({"version": version, "uid": "s", "lineage": 0}, "s")


@pytest.mark.parametrize(
    "raw",
    [
        *(None, 3, "x", [], {}), {"version": 1, "uid": "s"}, {"version": 1, "uid": "s", "lineage": 0},
        *({"logOffset": 3}, {"kind": "channels"}), {"version": 2, "uid": "s", "lineage": 0, "kind": "another"},
    ],
)  # fmt: skip
def test_a_line_of_one_of_sparks_own_sources_has_no_kind(raw: object) -> None:
    assert kind_of(raw) is None


def golden(version: int) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GOLDEN / f"offsets-v{version}.json").read_text())
    return loaded


def test_the_newest_version_is_written_as_in_its_golden_file() -> None:
    """A change of the written form needs a new version, and a golden file of its own."""
    assert VERSION == 2
    assert NEWEST.to_json() == golden(VERSION)["channels"]
    assert EndOffset("flights~end", 3, True).to_json() == golden(VERSION)["end_of_input"]


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_each_version_ever_written_is_read_and_keeps_its_kind(version: int) -> None:
    channels, end = golden(version)["channels"], golden(version)["end_of_input"]
    assert (kind_of(channels), kind_of(end)) == (OffsetKind.CHANNELS, OffsetKind.END_OF_INPUT)
    assert SourceOffset.from_json(channels, "flights") == (EVERYTHING if version < VERSION else NEWEST)
    assert EndOffset.from_json(end, "flights~end") == EndOffset("flights~end", 3, True)
    with pytest.raises(OffsetError, match="in the place of this one"):
        SourceOffset.from_json(golden(version)["end_of_input"])
    with pytest.raises(OffsetError, match="in the place of this one"):
        EndOffset.from_json(golden(version)["channels"])


@given(offsets(), st.integers(0, 12))
def test_confirming_drops_exactly_what_the_ledger_holds(offset: SourceOffset, upto: int) -> None:
    after = offset.confirm(upto)
    assert after.confirmed == max(offset.confirmed, min(upto, offset.sequence))
    assert after.finished == tuple(finish for finish in offset.finished if finish.sequence > after.confirmed)
    assert after.sequence == offset.sequence
    assert replace(after, finished=(), confirmed=0) == replace(offset, finished=(), confirmed=0)
    assert after.confirm(upto) is after


def test_an_epoch_reads_what_lies_between_two_offsets() -> None:
    old = Finished(1, "old", 9)
    running = {"a": Running(5, "A"), "b": Running(2, "B"), "still": Running(1)}
    start = SourceOffset("s", running=running, finished=(old,), sequence=1)
    running = {"a": Running(8, "A"), "still": Running(1), "new": Running(7, "N", 3, new=True)}
    finished = (old, Finished(2, "b", 4, "B"), Finished(3, "whole", 6, "W", 0, new=True))
    end = SourceOffset("s", running=running, finished=finished, sequence=3)
    read = {Range("a", "A", 5, 8), Range("b", "B", 2, 4), Range("new", "N", 3, 7), Range("whole", "W", 0, 6)}
    assert set(ranges(start, end)) == read
    before = SourceOffset("s", running={"a": Running(5), "b": Running(1)})
    jump = SourceOffset("s", running={"a": Running(2, jumped=True), "b": Running(3)})
    after = SourceOffset("s", running={"a": Running(4), "b": Running(3)})
    assert ranges(before, jump) == (Range("b", None, 1, 3),)
    assert ranges(jump, after) == (Range("a", None, 2, 4),)
    start = SourceOffset("s", finished=(Finished(1, "a", 9, new=True),), sequence=1)
    assert ranges(start, start.confirm(1)) == ()


STARTED, ENDED = SourceOffset("s", running={"a": Running(5)}), Finished(1, "a", 5)


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        (STARTED, SourceOffset("s"), r"\['a'\] are in the start"),
        (SourceOffset("s"), STARTED, "channel 'a' is in the end"),
        (SourceOffset("s"), replace(STARTED, running={}, finished=(ENDED,), sequence=1), "channel 'a' is in the end"),
    ],
)
def test_a_channel_that_vanished_or_is_new_is_refused(start: SourceOffset, end: SourceOffset, says: str) -> None:
    with pytest.raises(OffsetError, match=says):
        ranges(start, end)
