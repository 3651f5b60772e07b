"""When the marker is due: the pure decision, the offset's form, and the looks at Spark's commit log."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from spark_ext.errors import ConfigurationError, OffsetError
from spark_ext.exchange.arrow import arrow_parts
from spark_ext.exchange.descriptor import nullable
from spark_ext.model.end_of_input import (
    DELAY,
    END_MICROS,
    FORMAT,
    MAX_UID,
    NEVER_MICROS,
    EndOffset,
    all_ended,
    is_end_of_input_offset,
    marker_uid,
    next_offset,
    passed_watermark,
    taken_over,
)
from spark_ext.model.offsets import VERSION, LoggedOffsets, SourceOffset
from spark_ext.options import UID
from spark_ext.sources.end_of_input import CommittedEpochs, EndOfInput, EndOfInputReader
from spark_ext.spark.logs import watermarks
from spark_ext.spark.session import registry
from spark_ext.spark.session.registry import Registration
from spark_ext.spark.watching.query_events import Hint, hint_of
from spark_ext.storage import LocalFolder
from tests.support.exchanges import descriptor

START = EndOffset("a~end")


def epoch(number: int, policy: str = "min", **ended: bool) -> LoggedOffsets:
    conf = {"spark.sql.streaming.multipleWatermarkPolicy": policy}
    return LoggedOffsets(
        number, {"conf": conf}, tuple(SourceOffset(uid, ended=value).to_json() for uid, value in ended.items())
    )


def write_epoch(checkpoint: Path, number: int, *, committed: bool = True, **ended: bool) -> None:
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
    lines = ["v1", json.dumps({"batchWatermarkMs": 0, "conf": {}})]
    lines += [json.dumps(SourceOffset(uid, ended=value).to_json()) for uid, value in ended.items()]
    (checkpoint / "offsets" / str(number)).write_text("\n".join(lines))
    if committed:
        (checkpoint / "commits" / str(number)).write_text("v1\n{}")


def test_the_marker_comes_when_all_sources_ended_then_the_flush() -> None:
    assert next_offset(START, ("a", "b"), None, 0) is START
    assert next_offset(START, ("a", "b"), epoch(3, a=True, b=False), 0) is START
    marker = next_offset(START, ("a", "b"), epoch(4, a=True, b=True), 0)
    assert marker == EndOffset("a~end", 1, False)
    flush = next_offset(marker, ("a", "b"), epoch(5, a=True, b=True), 0)
    assert flush == EndOffset("a~end", 1, True)
    assert next_offset(flush, ("a", "b"), epoch(6, a=True, b=True), 0) is flush
    assert next_offset(START, ("a",), epoch(1, a=True, live=False), 0).marker == 1, "one of another watermark"


def test_unknown_sources_never_end_and_others_lines_are_skipped() -> None:
    watched: list[tuple[str, ...]] = [(), ("?",), ("a", "?")]
    for watches in watched:
        assert not all_ended(epoch(1, a=True), watches)
        assert next_offset(START, watches, epoch(1, a=True), 0) is START
    ended = SourceOffset("a", ended=True).to_json()
    logged = LoggedOffsets(0, {}, (None, 17, "text", {"kafka": {"0": 5}}, {"ended": True}, ended))
    assert all_ended(logged, ("a",))


def test_a_checkpoints_policy_max_is_refused_before_the_marker() -> None:
    with pytest.raises(ConfigurationError, match="multipleWatermarkPolicy"):
        next_offset(START, ("a",), epoch(1, "max", a=True), 0)
    assert next_offset(START, ("a",), epoch(1, "max", a=False), 0) is START


def test_the_least_watermark_of_producers_that_go_on_is_taken_over() -> None:
    def committed(**sources: int | None) -> LoggedOffsets:
        """By source its watermark; None: it has ended."""
        every = (SourceOffset(uid, watermark=at or 0, ended=at is None) for uid, at in sources.items())
        return LoggedOffsets(1, {}, tuple(one.to_json() for one in every))

    def at(logged: LoggedOffsets | None, *stays: int) -> int | None:
        found = taken_over(logged, ("a", "b"), stays or (0, 0))
        return None if found is None else (found - NEVER_MICROS) // 1000

    assert at(None) is at(committed(a=7)) is at(committed(a=7, b=0)) is at(committed(a=None, b=None)) is None
    assert at(committed(a=7, b=9)) == 7 and at(committed(a=None, b=9, c=1)) == 9
    assert at(committed(a=7, b=9), 0, 5) == 4, "a delay that is longer than the producer's"


def test_the_end_of_a_producers_time_passes_with_its_seal_alone() -> None:
    def passed(at_ms: int) -> int:
        return passed_watermark(LoggedOffsets(3, {"batchWatermarkMs": at_ms}, ()))

    year_9999 = 253_402_300_799_000
    assert passed(year_9999) == year_9999 and passed_watermark(None) == 0
    for delay_micros in (0, 3_600_000_000, NEVER_MICROS):
        assert passed((END_MICROS - delay_micros) // 1000) == 0
    assert year_9999 * 1000 + NEVER_MICROS < END_MICROS < 2**63


@given(st.lists(st.booleans(), max_size=12), st.integers(0, 3), st.booleans())
def test_each_planner_makes_exactly_two_epochs_after_the_end(ends: list[bool], before: int, flushed: bool) -> None:
    """Whatever is committed between, and whatever an earlier planner left."""
    offset = first = EndOffset("a~end", before, flushed)
    ended, made = False, 0
    for number, now in enumerate([*ends, True, True, True]):
        after = next_offset(offset, ("a",), epoch(number, a=ended), before)
        assert ended or after is offset
        made += after is not offset
        offset = after
        ended = ended or now
    assert next_offset(offset, ("a",), epoch(99, a=True), before).marker == first.marker + 1
    assert made <= 2


def test_offsets_survive_json_and_differ_from_channel_sources() -> None:
    raw = json.loads(json.dumps(EndOffset("a~end", 3, True).to_json()))
    assert EndOffset.from_json(raw, "a~end") == EndOffset("a~end", 3, True)
    assert is_end_of_input_offset(raw)
    assert not is_end_of_input_offset(SourceOffset("a", ended=True).to_json())


@pytest.mark.parametrize(
    "raw",
    [
        EndOffset("b~end").to_json(),
        SourceOffset("a~end").to_json(),
        {**EndOffset("a~end").to_json(), "version": VERSION + 1},
    ],
    ids=["other uid", "other kind", "newer version"],
)
def test_a_foreign_offset_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(OffsetError, match=rf"a~end|version {VERSION + 1}"):
        EndOffset.from_json(raw, "a~end")


def test_the_markers_uid_is_valid_whatever_the_order_of_sources() -> None:
    assert marker_uid(("b", "a")) == marker_uid(("a", "b")) == "a~end"
    long = "x" * MAX_UID
    assert len(marker_uid((long,))) <= MAX_UID
    assert UID.fullmatch(marker_uid((long,)))
    assert marker_uid((long,)) != marker_uid((long[:-1] + "y",))


def test_the_end_of_time_leaves_room_for_arithmetic() -> None:
    thousand_years = 1000 * 366 * 86_400 * 1_000_000
    assert 90 * thousand_years < 2**63 - 1 - END_MICROS


def test_an_unknown_option_of_the_source_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'watches'"):
        EndOfInput({"uid": "a~end", "watch": "a"})


def test_committed_epochs_are_followed_one_by_one(tmp_path: Path) -> None:
    for number in range(40, 90):
        write_epoch(tmp_path / "long", number, a=False)
    newest = CommittedEpochs(str(tmp_path / "long")).newest(at_once=False)
    assert newest is not None and newest.epoch == 89
    epochs = CommittedEpochs(str(tmp_path))
    assert epochs.newest(at_once=False) is None
    write_epoch(tmp_path, 0, a=False)
    write_epoch(tmp_path, 1, committed=False, a=True)
    assert all_ended(epochs.newest(at_once=False), ("a",)) is False  # type: ignore[arg-type]
    write_epoch(tmp_path, 1, a=True)
    newest = epochs.newest(at_once=False)
    assert newest is not None and newest.epoch == 1 and all_ended(newest, ("a",))


def test_an_idle_query_rarely_looks_at_a_remote_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    epochs = CommittedEpochs(str(tmp_path), lambda: clock.now)
    monkeypatch.setattr(epochs, "_remote", True)
    write_epoch(tmp_path, 0, a=False)

    def seen(at_once: bool = False) -> int | None:
        newest = epochs.newest(at_once=at_once)
        return None if newest is None else newest.epoch

    assert seen() == 0
    write_epoch(tmp_path, 1, a=False)
    clock.now = 0.01
    assert seen() == 0, "idle: no look"
    assert seen(at_once=True) == 1, "availableNow: always"
    write_epoch(tmp_path, 2, a=True)
    clock.now = 0.02
    assert seen() == 1
    clock.now = 0.1
    assert seen() == 2, "an epoch ran since the last call"
    write_epoch(tmp_path, 3, a=True)
    for step in range(11, 20):
        clock.now = step / 100
        assert seen() == 2
    clock.now = 0.21
    assert seen() == 3, "idle for as long as a look lasts"


def test_the_reader_decides_from_the_checkpoint_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "registry"))
    reader = EndOfInputReader("a~end", ("a",), ())
    start = reader.initialOffset()
    write_epoch(tmp_path / "checkpoint", 0, a=True)
    assert reader.latestOffset(start, None) == start, "outside a job"
    registry.publish(
        [Registration("a~end", "end_of_input", "j", "0", "q", "s", str(tmp_path / "checkpoint"), 1, 0)],
        tmp_path / "registry",
    )
    marker = reader.latestOffset(start, None)
    assert len(reader.partitions(start, marker)) == 1
    flush = reader.latestOffset(marker, None)
    assert (flush["marker"], flush["flushed"]) == (1, True)
    assert list(reader.partitions(marker, flush)) == []
    assert reader.latestOffset(flush, None) == flush


def test_a_new_planner_puts_its_event_time_back_behind_one_epoch(tmp_path: Path) -> None:
    """And what an epoch has put back is the same in its replay."""
    checkpoint, place = tmp_path / "checkpoint", registry.new_folder()
    write_epoch(checkpoint, 3, a=False)
    watermarks.record(str(checkpoint), 3, {"a~end": 50})
    watermarks.record(str(checkpoint), 4, {"a~end": 90})
    place.mkdir(mode=0o700)
    registry.publish([Registration("a~end", FORMAT, "job", "0", "q", str(tmp_path), str(checkpoint), 1, 0)], place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(registry.VARIABLE, str(place))
        reader = EndOfInputReader("a~end", ("a",), ())
        start = START.to_json()
        assert reader.latestOffset(start, None) == start, "there is nothing new"
        write_epoch(checkpoint, 4, a=False)
        end = reader.latestOffset(start, None)
        assert EndOffset.from_json(end) == EndOffset("a~end", carried=1, at=50), "later ones may be of another history"
        assert reader.latestOffset(end, None) == end, "once"
    (task,) = EndOfInputReader("a~end", ("a",), ()).partitions(start, end)
    (batch,) = reader.read(task)
    assert batch.column("end_of_time").cast(pa.int64()).to_pylist() == [50]
    assert not reader.partitions(end, end)
    shutil.rmtree(place)


@contextmanager
def planned(tmp_path: Path, stays: tuple[int, ...], **about: Any) -> Iterator[Callable[[], EndOfInputReader]]:
    """New planners of the marker of a query whose checkpoint is the folder `checkpoint`."""
    place = registry.new_folder()
    place.mkdir(mode=0o700)
    given = ("a~end", FORMAT, "job", "0", "q", str(tmp_path), str(tmp_path / "checkpoint"), 1, 0)
    registry.publish([Registration(*given, **about)], place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(registry.VARIABLE, str(place))
        yield lambda: EndOfInputReader("a~end", ("a",), stays)
    shutil.rmtree(place)


def test_a_watermark_is_taken_over_when_it_is_later_and_in_each_start(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"

    def commit(number: int, watermark: int) -> None:
        write_epoch(checkpoint, number, a=False)
        (checkpoint / "offsets" / str(number)).write_text(
            "\n".join(["v1", "{}", json.dumps(SourceOffset("a", watermark=watermark).to_json())])
        )

    def rows(start: Any, end: Any) -> list[int]:
        return [(task.value - NEVER_MICROS) // 1000 for task in reader.partitions(start, end)]

    with planned(tmp_path, (0,)) as new:
        reader, start = new(), START.to_json()
        commit(0, 0)
        assert reader.latestOffset(start, None) == start
        commit(1, 50)
        end = reader.latestOffset(start, None)
        assert rows(start, end) == [50] and reader.latestOffset(end, None) == end
        commit(2, 50)
        assert reader.latestOffset(end, None) == end, "once"
        reader = new()
        assert reader.latestOffset(end, None) == end, "Spark restores it, and nobody else's may have moved"
        commit(3, 50)
        again = reader.latestOffset(end, None)
        assert rows(end, again) == [50], "Spark has forgotten which watermark it was"
        commit(4, 40)
        assert reader.latestOffset(again, None) == again


def test_a_watermark_that_has_moved_is_passed_on_by_an_epoch(tmp_path: Path) -> None:
    """Of a query that writes an exchange with its event time, and once for each move."""
    checkpoint = tmp_path / "checkpoint"

    def commit(number: int, at: int, then: int) -> None:
        write_epoch(checkpoint, number, a=False)
        lines = ["v1", *map(json.dumps, ({"batchWatermarkMs": at}, SourceOffset("a").to_json()))]
        (checkpoint / "offsets" / str(number)).write_text("\n".join(lines))
        (checkpoint / "commits" / str(number)).write_text(f'v1\n{{"nextBatchWatermarkMs":{then}}}')

    def written(name: str, columns: StructType) -> tuple[str, str, dict[str, str], tuple[str, ...]]:
        made = arrow_parts(LocalFolder(tmp_path / name), name).master
        made.register(descriptor(name, columns=nullable(columns).jsonValue()))
        return "arrow", str(tmp_path / name), {}, ()

    marked = StructType([StructField("ts", TimestampType(), metadata={DELAY: 1000})])
    commit(0, 0, 700)
    start = START.to_json()
    with planned(tmp_path, (), writes=(written("x", marked),)) as new:
        reader = new()
        end = reader.latestOffset(start, None)
        assert EndOffset.from_json(end) == EndOffset("a~end", passed=1) and not reader.partitions(start, end)
        assert reader.latestOffset(start, None) == end, "asked again, as long as no epoch has followed"
        commit(1, 700, 700)
        assert reader.latestOffset(end, None) == end == new().latestOffset(end, None)
    commit(2, 700, 900)
    for writes in ((), (written("y", StructType([StructField("n", LongType())])),)):
        with planned(tmp_path, (), writes=writes) as new:
            assert new().latestOffset(end, None) == end, "nobody could use it"


def test_event_times_of_a_discarded_history_are_forgotten(tmp_path: Path) -> None:
    folder = str(tmp_path)
    watermarks.record(folder, 3, {"a": 5})
    watermarks.record(folder, 9, {"a": 8, "b": 1})
    watermarks.record(folder, 12, {"a": 2})
    assert (watermarks.newest(folder, 2), watermarks.newest(folder, 8)) == ({}, {"a": 5})
    assert watermarks.newest(folder, 99) == {"a": 8, "b": 1}
    watermarks.record(folder, 5, {})
    assert watermarks.newest(folder, 99) == {"a": 5}
    for epoch in range(6, 99):
        watermarks.record(folder, epoch, {"a": epoch})
    assert watermarks.newest(folder, 98) == {"a": 98} and watermarks.newest(folder, 50) == {}


def test_event_times_are_taken_from_reports_in_any_order() -> None:
    def report(epoch: int, **event_times: int | None) -> Hint:
        metrics = {f"{uid}~end": {"event_time": at} for uid, at in event_times.items()} | {"mine": {"rows": 7}}
        progress = {"id": "q", "runId": "r", "batchId": epoch, "numInputRows": 1, "durationMs": {}}
        return hint_of(json.dumps({**progress, "sources": [], "stateOperators": [], "observedMetrics": metrics}))

    found = watermarks.EventTimes()
    for hint in (report(4, a=7, b=None), report(3, a=9, b=2)):
        found.take(hint)
    assert (found.epoch, found.at) == (4, {"a~end": 9, "b~end": 2})
