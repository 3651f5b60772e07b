"""What is read from Spark's progress reports, in the forms that Spark gives it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.spark.watching.query_events import (
    SourceReport,
    hints_of,
    known_lags,
    lags_at,
    newest,
    source_reports,
    total_at,
    total_lag,
)


def ours(uid: str, **said: int) -> dict[str, Any]:
    return {
        "description": "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@1f",
        "endOffset": {"version": 2, "kind": "channels", "uid": uid, "lineage": 1},
        "latestOffset": {"uid": uid, **said} if said else None,
    }


def other(description: str, end: Any = None, latest: Any = None, **metrics: str) -> dict[str, Any]:
    return {"description": description, "endOffset": end, "latestOffset": latest, "metrics": metrics}


END = {"version": 2, "kind": "end_of_input", "uid": "end", "marker": 0, "flushed": False, "query": "q"}


def reports(*sources: dict[str, Any]) -> dict[str, SourceReport]:
    return source_reports({"sources": list(sources)})


def test_a_source_of_ours_says_it_itself() -> None:
    found = reports(ours("a", waiting=2, lag=30), ours("b", waiting=0), ours("c"))
    assert found == {"a": SourceReport(30, 2), "b": SourceReport(None, 0), "c": SourceReport(None, None)}
    assert known_lags(found) == {"a": 30}


def test_what_marks_an_end_of_input_is_no_source() -> None:
    assert list(reports(ours("a", lag=1), {"description": "x", "endOffset": END, "latestOffset": None})) == ["a"]


def test_sparks_kafka_source_by_partition() -> None:
    end, latest = '{"t":{"0":7,"1":5},"u":{"0":1}}', '{"t":{"0":10,"1":5},"u":{"0":2}}'
    assert reports(other("KafkaV2[Subscribe[t]]", end, latest)) == {"KafkaV2": SourceReport(4, None)}


@pytest.mark.parametrize(
    ("end", "latest"),
    [
        *((end, {"t": {"0": 1}}) for end in (None, {"t": 3}, "not json")),
        *(({"t": {"0": 1}}, latest) for latest in (None, {"t": {"0": 1, "1": 9}}, {"t": {"0": -1}})),
    ],
)
def test_nothing_is_made_up(end: Any, latest: Any) -> None:
    assert reports(other("KafkaV2[Subscribe[t]]", end, latest))["KafkaV2"].lag_rows is None


def test_sources_of_a_class_are_numbered_and_described_briefly() -> None:
    found = reports(
        other("FileStreamSource[file:/secret/a]"),
        other("DeltaSource[s3://b]", numFilesOutstanding="12"),
        other("FileStreamSource[file:/secret/b]"),
        other("org.apache.spark.RateStreamV2[rowsPerSecond=1]", 3, 9),
    )
    assert {uid: report.waiting for uid, report in found.items()} == {
        "FileStreamSource-0": None,
        "DeltaSource": 12,
        "FileStreamSource-1": None,
        "RateStreamV2": None,
    }
    assert not known_lags(found)


@pytest.mark.parametrize(("lags", "whole"), [([], None), ([3], 3), ([3, 0], 3), ([3, None], None)])
def test_a_query_has_a_lag_if_all_its_sources_have_one(lags: list[int | None], whole: int | None) -> None:
    assert total_lag({str(at): SourceReport(lag, 0) for at, lag in enumerate(lags)}) == whole


def test_each_lag_has_a_time_spark_s_own_that_of_the_epoch() -> None:
    begun = "2026-01-01T00:00:02.500Z"
    sources = [ours("a", lag=3) | {"latestOffset": {"uid": "a", "lag": 3, "at": 9.5}}, ours("b", lag=4)]
    sources += [other("KafkaV2[Subscribe[t]]", '{"t":{"0":7}}', '{"t":{"0":9}}')]
    found = source_reports({"timestamp": begun, "sources": sources})
    assert lags_at(found) == {"a": 9.5, "b": 1767225602.5, "KafkaV2": 1767225602.5}
    assert total_at(found) == 9.5
    assert lags_at(source_reports({"timestamp": "soon", "sources": sources})) == {"a": 9.5}


FEW = st.none() | st.integers(0, 9)
REPORTS = st.dictionaries(st.sampled_from("abc"), st.builds(SourceReport, FEW, FEW, st.none() | st.floats(1, 9)))


@given(REPORTS, REPORTS)
def test_the_newer_figure_counts_and_no_source_is_lost(said: Any, noted: Any) -> None:
    found = newest(said, noted)
    assert found.keys() == said.keys() | noted.keys()
    for uid, one in found.items():
        known = [given[uid] for given in (said, noted) if uid in given]
        assert (one.lag_rows, one.at) in [(each.lag_rows, each.at) for each in known]
        assert (one.at or 0) == max(each.at or 0 for each in known)
        assert uid not in said or one.waiting == said[uid].waiting
    assert newest(found, noted) == found


def text(epoch: int, **durations: int) -> str:
    states = [{"numRowsTotal": rows, "numRowsDroppedByWatermark": late} for rows, late in ((5, 2), (1, 1))]
    numbers = {"batchId": epoch, "numInputRows": 3, "durationMs": durations}
    sources = [{**other("FileStreamSource[x]"), "numInputRows": 3}]
    return json.dumps({"id": "i", "runId": "r", "sources": sources, "stateOperators": states, **numbers})


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        (ours("a", rows=600), 600),
        (ours("a", rows=700), 680),  # as of deleted rows, or of others that are left out
        (ours("a", waiting=0), 680),
        (ours("a"), 680),
        (other("KafkaV2[Subscribe[rows]]", latest={"rows": {"0": 3}}), 680),
        (other("RateStreamV2[x]", latest={"rows": 3}), 680),
    ],
    ids=["repeated", "fewer", "not counted", "nothing said", "a topic", "not ours"],
)
def test_rows_that_spark_has_counted_again_count_once(source: dict[str, Any], rows: int) -> None:
    read = {**source, "numInputRows": 680}
    (found,) = hints_of([json.dumps({**json.loads(text(7, addBatch=5)), "sources": [read], "numInputRows": 680})])
    assert found.input_rows == rows and list(found.source_rows.values()) == [rows]


@pytest.mark.parametrize(
    ("operator", "rows"),
    [
        ({"numStateStoreInstances": 3}, 7),
        ({"numStateStoreInstances": 4}, None),  # a task was repeated
        ({"numStateStoreInstances": 6}, None),  # as by two actions of `foreachBatch`
        ({"operatorName": "symmetricHashJoin", "numStateStoreInstances": 12}, 7),
        ({"operatorName": "symmetricHashJoin", "numStateStoreInstances": 3}, 7),
        ({"operatorName": "symmetricHashJoin", "numStateStoreInstances": 16}, None),
        ({"numRowsTotal": 0, "numRowsUpdated": 9, "numRowsRemoved": 9}, 0),
        ({"numRowsTotal": 0, "numRowsUpdated": 9, "numRowsRemoved": 2}, None),  # RocksDB's were not counted
        ({}, 7),
    ],
)
def test_rows_in_the_state_are_right_or_unknown(operator: dict[str, Any], rows: int | None) -> None:
    state = {"operatorName": "stateStoreSave", "numRowsTotal": 7, "numShufflePartitions": 3, **operator}
    (found,) = hints_of([json.dumps({**json.loads(text(7, addBatch=5)), "stateOperators": [state]})])
    assert found.state_rows == rows


def test_rows_come_out_of_no_state_of_deduplication_alone() -> None:
    for names, emits in (
        (["dedupe"], False),
        (["dedupeWithinWatermark", "dedupe"], False),
        (["dedupe", "stateStoreSave"], True),
    ):
        states = [{"operatorName": name, "numRowsTotal": 7, "numShufflePartitions": 3} for name in names]
        (found,) = hints_of([json.dumps({**json.loads(text(7, addBatch=5)), "stateOperators": states})])
        assert found.emits is emits


def test_a_trigger_that_had_nothing_to_do_is_no_epoch() -> None:
    found = hints_of([text(7, addBatch=5, triggerExecution=9), text(8, latestOffset=1, triggerExecution=1)])
    assert [(hint.epoch, hint.input_rows, hint.duration_ms) for hint in found] == [(7, 3, 9)]
    assert [(hint.state_rows, hint.late_rows) for hint in found] == [(6, 3)]
