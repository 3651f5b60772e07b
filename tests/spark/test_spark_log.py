"""Spark's offset and commit logs, read as files; the files here have the form that Spark writes."""

import json
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.errors import StateError
from spark_ext.model.offsets import Running, SourceOffset
from spark_ext.model.query_offsets import source_offsets
from spark_ext.queries import builder
from spark_ext.spark.logs import state_operators, watermarks
from spark_ext.spark.logs.spark_log import SparkLog, parse_offsets, with_offsets, with_watermark
from tests.support.refusals import refused

HEADER = {"batchWatermarkMs": 0, "batchTimestampMs": 1700000000000, "conf": {"spark.sql.shuffle.partitions": "2"}}
OFFSETS = "\n".join(["v1", json.dumps(HEADER), '{"version":1,"uid":"a","lineage":0}', "-", "17", '"text"', "not json"])


def checkpoint(folder: Path, *, planned: int, committed: int) -> SparkLog:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"0000-1111"}')
    for epoch in range(planned):
        (folder / "offsets" / str(epoch)).write_text(OFFSETS)
        (folder / "offsets" / f".{epoch}.crc").write_bytes(b"crc")
    (folder / "offsets" / ".99.0000.tmp").write_text("being written")
    for epoch in range(committed):
        (folder / "commits" / str(epoch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return SparkLog(str(folder))


def test_a_directory_that_is_not_there_is_an_unstarted_query(tmp_path: Path) -> None:
    log = SparkLog(str(tmp_path / "none"))
    assert not log.exists()
    assert (log.query_id(), log.newest_offsets(), log.newest_commit(), log.offsets(0)) == (None, None, None, None)
    assert not log.is_committed(0)
    assert log.committed_at(0) is None


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_what_spark_wrote_is_read(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "with space"
    checkpoint(folder, planned=12, committed=11)
    log = SparkLog(form.format(folder).replace(" ", "%20" if form != "{}" else " "))
    assert log.exists()
    assert log.query_id() == "0000-1111"
    assert (log.newest_offsets(), log.newest_commit()) == (11, 10)
    assert log.is_committed(10) and not log.is_committed(11)
    assert log.committed_at(10) == (folder / "commits" / "10").stat().st_mtime
    logged = log.offsets(11)
    assert logged is not None
    assert (logged.epoch, logged.metadata) == (11, HEADER)
    assert logged.sources == ({"version": 1, "uid": "a", "lineage": 0}, None, 17, "text", "not json")


def test_the_second_version_of_the_log_is_read() -> None:
    """Its lines are `id:offset`; taken for text, they would hide the end of input."""
    lines = ["v2", json.dumps(HEADER), '10:{"version":2,"uid":"b"}', "2:17", '0:{"a":"x:y"}', "the_input:-"]
    logged = parse_offsets(3, "\n".join(lines))
    assert logged is not None
    assert logged.sources == ({"a": "x:y"}, 17, {"version": 2, "uid": "b"}, None)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_offsets_are_replaced_by_uid_and_nothing_else_changes(version: str) -> None:
    given = {"version": 2, "kind": "channels", "uid": "a", "lineage": 3, "running": {"0": {"at": [1, 2]}}}
    names = ("10:", "2:", "0:") if version == "v2" else ("", "", "")
    others = (json.dumps({**given, "uid": "b"}), '"a"')
    text = "\n".join(
        [version, json.dumps(HEADER), *map("".join, zip(names, (json.dumps(given), *others), strict=True))]
    )
    wanted = SourceOffset("a", 3, {"0": Running([7, 0]), "1": Running([7, 0])})
    changed = with_offsets(text, {"a": wanted, "c": wanted})
    before, after = parse_offsets(3, text), parse_offsets(3, changed)
    assert before is not None and after is not None
    assert source_offsets(after)["a"] == wanted
    assert [one for one in after.sources if one != wanted.to_json()] == [one for one in before.sources if one != given]
    assert changed.splitlines()[1] == text.splitlines()[1]
    assert with_offsets(text, {}) == text


def test_another_watermark_leaves_the_offsets_as_they_are() -> None:
    text = 'v1\n{"batchWatermarkMs":5,"conf":{"a":"b"}}\n{"of":"a\u2028b"}\n-'
    changed = with_watermark(text, 7)
    assert changed == text.replace('"batchWatermarkMs":5', '"batchWatermarkMs":7')


def test_an_unknown_version_of_the_log_is_refused_and_no_log_is_not_read() -> None:
    """Nothing may wait without an end for a log that it cannot read."""
    with pytest.raises(StateError, match="version v3"):
        parse_offsets(3, OFFSETS.replace("v1", "v3"))
    assert parse_offsets(0, "") is parse_offsets(0, "x\n{}\n1") is None


@given(st.integers(0, len(OFFSETS)))
def test_a_file_that_is_being_written_is_not_there_yet(length: int) -> None:
    logged = parse_offsets(3, OFFSETS[:length])
    assert logged is None or logged.metadata == HEADER


@pytest.mark.parametrize("torn", ["\n", '{"id":"0000-', "[]\x00", "17"])
@pytest.mark.parametrize(
    ("name", "begin", "look"),
    [
        ("metadata", "", lambda log: log.query_id()),
        ("commits/1", "v1\n", lambda log: log.commit(1)),
        (watermarks.NAME, "", lambda log: watermarks.newest(log.checkpoint, 1)),
        (builder.PLANS, "", lambda log: builder.planned_values(log.checkpoint, 1)),
        ("state/0/_metadata/metadata", "v1\n", lambda log: state_operators.operators(log, 1)),
    ],
)
def test_a_torn_file_is_named(
    tmp_path: Path, name: str, begin: str, look: Callable[[SparkLog], object], torn: str
) -> None:
    log = checkpoint(tmp_path, planned=2, committed=2)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(begin + torn)
    with refused(StateError, f"the file {name} is empty or torn"):
        look(log)
