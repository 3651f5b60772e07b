"""What `http_2pc` reckons without a receiver: statuses, waits, requests' sizes, and rows as JSON."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from spark_ext.errors import DataError
from spark_ext.model.commits import Epoch
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.http_2pc.chunks import ChunkPart, ChunkRule, chunks, pieces
from spark_ext.sinks.http_2pc.client import Verdict, retry_after, verdict
from spark_ext.sinks.http_2pc.rows import JsonRows


def test_what_a_status_means() -> None:
    assert {verdict(status, "retry") for status in (200, 201, 202, 204)} == {Verdict.TAKEN}
    assert {verdict(status, "retry") for status in (408, 425, 429, 500, 502, 503, 504)} == {Verdict.AGAIN}
    assert {verdict(status, "retry") for status in (301, 400, 401, 404, 413, 422)} == {Verdict.REFUSED}
    assert verdict(412, "retry") is Verdict.FENCED
    assert [verdict(409, said) for said in ("retry", "done", "refuse")] == [
        Verdict.AGAIN,
        Verdict.TAKEN,
        Verdict.REFUSED,
    ]


def test_retry_after_in_seconds_and_as_a_date() -> None:
    now = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)
    assert retry_after("120", now) == 120
    assert retry_after(format_datetime(now + timedelta(seconds=90), usegmt=True), now) == 90
    assert retry_after("Wed, 01 May 2024 11:59:00 GMT", now) == 0
    assert retry_after("soon", now) is None
    assert retry_after(None, now) is None
    assert retry_after("\u00b2", now) is None, "a digit that is no number"
    assert retry_after(f"Fri, 01 Jan {'9' * 40} 00:00:00 GMT", now) is None


def test_many_small_tasks_make_few_requests_and_no_limit_is_passed() -> None:
    cut = ChunkRule(rows=5, bytes=40, body="array")
    lines = ['{"n":1}'] * 7 + ['{"n":"' + "ä" * 50 + '"}', '{"n":2}']
    found = list(pieces(iter(lines), cut))
    assert [piece.rows for piece in found] == [5, 2, 1, 1]
    small = [ChunkPart(1, f'{{"n":{n}}}\n') for n in range(12)]
    joined = list(chunks(iter(small), cut))
    assert [chunk.rows for chunk in joined] == [5, 5, 2]
    assert joined[2].body == b'[{"n":10},{"n":11}]'
    assert [(chunk.number, chunk.last) for chunk in joined] == [(0, False), (1, False), (2, True)]
    assert list(chunks(iter([]), cut)) == []


def test_a_key_names_the_job() -> None:
    epoch = Epoch("out", 1, "q", 7, 2)
    cut = ChunkRule(rows=1, bytes=40, body="lines")
    found = [ChunkPart(1, "{}\n")] * 2

    def keys(cut: ChunkRule, job: str) -> list[str]:
        return [chunk.key(epoch) for chunk in chunks(iter(found), cut, job)]

    assert keys(ChunkRule.from_json(cut.to_json()), "1f") == ["out:1f:1:q:7:0", "out:1f:1:q:7:1"]
    assert keys(cut, "2e") != keys(cut, "1f")
    assert keys(cut, "") == ["out:1:q:7:0", "out:1:q:7:1"], "outside a job"


def test_rows_that_json_has_no_values_for() -> None:
    schema = T.StructType(
        [T.StructField("d", T.DoubleType()), T.StructField("pairs", T.MapType(T.IntegerType(), T.DecimalType(9, 7)))]
    )
    rows = [{"d": math.nan, "pairs": [(1, None)]}, {"d": -math.inf, "pairs": None}]
    batch = pa.RecordBatch.from_pylist(
        rows, pa.schema([("d", pa.float64()), ("pairs", pa.map_(pa.int32(), pa.decimal128(9, 7)))])
    )
    assert list(JsonRows(schema, "a sink").lines(batch)) == [
        '{"d":"NaN","pairs":[{"key":1,"value":null}]}',
        '{"d":"-Infinity","pairs":null}',
    ]
    late = pa.array([253402300800000000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    with pytest.raises(DataError, match="column 't' has a date or time outside"):
        list(
            JsonRows(T.StructType([T.StructField("t", T.TimestampType())]), "a sink").lines(
                pa.RecordBatch.from_arrays([late], ["t"])
            )
        )


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_the_first_and_the_last_moment_are_times_in_any_session_zone(zone: str) -> None:
    """Often used for `no beginning` and `no end`; in the session's zone they may lie in the year 0 or 10000."""
    schema = columns("t timestamp, s struct<l: array<timestamp>>")
    ends = pa.array([-62135596800000000, 253402300799999999], pa.int64()).cast(pa.timestamp("us", zone))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), ends)
    batch = pa.RecordBatch.from_arrays([ends, pa.StructArray.from_arrays([lists], ["l"])], ["t", "s"])
    first, last = "0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"
    assert [json.loads(line) for line in JsonRows(schema, "a sink").lines(batch)] == [
        {"t": first, "s": {"l": [first]}},
        {"t": last, "s": {"l": [last]}},
    ]
