"""Requests of `http_2pc`: addresses of rows, sizes, waits, rows as JSON, and the outbox that records them."""

import json
import math
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.errors import ConfigurationError, DataError, StateError
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import Claim, Epoch, Task
from spark_ext.sinks.http_2pc.addresses import Addresses, Allowed, checked, columns_of, hosts
from spark_ext.sinks.http_2pc.client import Verdict, retry_after, verdict
from spark_ext.sinks.http_2pc.outbox import Outbox
from spark_ext.sinks.http_2pc.outbox_pieces import ChunkPart, ChunkRule, chunks, pieces, stage
from spark_ext.sinks.http_2pc.sink import HttpTwoPhaseCommit
from spark_ext.sinks.json_rows import JsonRows
from spark_ext.storage import Location
from spark_ext.testing.children import killed_at
from spark_ext.testing.sink_driver import NUMBERS, Driver, numbered, table
from tests.conformance.test_commit_http import HttpTarget
from tests.servers.receiver import Receiver
from tests.servers.receiver import rows as rows_at

HOME = "https://shop.example/items/{id}?day={day}"


def addresses(template: str = HOME, column: str | None = None, others: tuple[str, ...] = ()) -> Addresses:
    home = urlsplit(template)
    return Addresses(template, column, Allowed(home, hosts(others, home.scheme)), "sink 'out'")


def test_a_template_is_filled_from_the_row() -> None:
    batch = pa.RecordBatch.from_pydict({"day": [date(2024, 5, 1), date(1, 1, 1)], "id": ["a/b ?#ä", "7"]})
    assert addresses().of(batch) == [
        "https://shop.example/items/a%2Fb%20%3F%23%C3%A4?day=2024-05-01",
        "https://shop.example/items/7?day=0001-01-01",
    ]
    flags = pa.RecordBatch.from_pydict({"n": [1, -2], "f": [True, False]})
    assert addresses("http://h/{f}/{n}/{n}").of(flags) == ["http://h/true/1/1", "http://h/false/-2/-2"]


@given(st.text(min_size=1).filter(lambda text: text not in (".", "..")))
def test_a_value_stays_one_part_of_the_path(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return
    (found,) = addresses("https://h.example/a/{v}/z").of(pa.RecordBatch.from_pydict({"v": [value]}))
    parts = urlsplit(found)
    before, middle, after = parts.path.removeprefix("/").split("/")
    assert (parts.netloc, parts.query, before, after) == ("h.example", "", "a", "z")
    assert unquote(middle) == value
    checked(found)


@pytest.mark.parametrize("value", [None, "", ".", ".."])
def test_a_value_that_is_no_part_of_an_address_is_refused(value: str | None) -> None:
    batch = pa.RecordBatch.from_pydict({"v": pa.array([value], pa.string())})
    with pytest.raises(DataError, match=r"column 'v' of a row is .* cannot be a part of an address"):
        addresses("https://h/{v}").of(batch)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (None, "is null"),
        ("", "not an address"),
        ("items/3", "not an address"),
        ("ftp://shop.example/3", "not an address"),
        ("https://shop.example@evil.example/3", "credentials do not belong"),
        ("https://evil.example/3", "host 'evil.example:443' is neither"),
        ("https://shop.example.evil.example/", "is neither"),
        ("https://shop.example:8443/3", "host 'shop.example:8443' is neither"),
        ("https://shop.example\\@evil.example/3", "credentials do not belong"),
        ("http://shop.example/3", "is http, and the option 'url' is https"),
        ("https://shop.example/a b", "no blanks"),
        ("https://shop.example/a\nb", "no blanks and no control"),
        ("https://shop.example/#x", "no fragment"),
        ("https://shop.example:0/", "not an address"),
        ("https://shop.example:99999/", "not an address"),
        ("https://[::1/", "not an address"),
        ("https://shop.example/" + "x" * 8000, "more than 8000"),
    ],
)
def test_an_address_of_a_row_that_leaves_the_host_is_refused(address: str | None, words: str) -> None:
    found = addresses("https://shop.example/items", "to", ("other.example", "third.example:8443"))
    batch = pa.RecordBatch.from_pydict({"to": pa.array([address], pa.string())})
    with pytest.raises(DataError, match=words):
        found.of(batch)


def test_allowed_hosts() -> None:
    found = addresses("https://shop.example/items", "to", ("Other.example", "third.example:8443"))
    good = ["https://SHOP.example:443/1", "https://other.example/2", "https://third.example:8443/3?a=b"]
    assert found.of(pa.RecordBatch.from_pydict({"to": good})) == good


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("https://h/{", "no other half"),
        ("https://h/a}", "no other half"),
        ("https://h/{}", "without a column's name"),
        ("https://{host}/a", "host cannot come from a column"),
        ("https://h/{id}?api_key=abcd", "parameter 'api_key' is a secret"),
    ],
)
def test_templates_that_are_refused(template: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        columns_of(template)


@pytest.mark.parametrize(
    ("template", "column", "schema", "words"),
    [
        ("https://h/{no}", None, "id string", "names the column 'no', which does not exist; there are: id"),
        ("https://h/{id}", None, "id double", "has the type double; it must be a string, whole number"),
        ("https://h/", "id", "id int, n int", "option 'url_column' has the type int; it must be a string"),
        ("https://h/", "to", "id int", "option 'url_column' names the column 'to', which does not exist"),
        ("https://h/", "to", "to string", "is the only column"),
    ],
)
def test_columns_that_are_refused_at_the_start(template: str, column: str | None, schema: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        addresses(template, column).check(columns(schema))


def test_rows_of_one_address_share_a_request_and_no_others() -> None:
    cut = ChunkRule(rows=3, bytes=1000, body="lines")
    found = list(pieces(iter(["1", "2", "3", "4", "5"]), cut, iter(["a", "a", "b", "b", "a"])))
    assert [(piece.url, piece.lines) for piece in found] == [("a", "1\n2\n"), ("b", "3\n4\n"), ("a", "5\n")]
    joined = list(chunks(iter([*found, ChunkPart(1, "6\n", "a"), ChunkPart(1, "7\n")]), cut))
    assert [(chunk.url, chunk.body, chunk.last) for chunk in joined] == [
        ("a", b"1\n2\n", False),
        ("b", b"3\n4\n", False),
        ("a", b"5\n6\n", False),
        (None, b"7\n", True),
    ]


def at(receiver: Receiver, path: str) -> list[dict[str, Any]]:
    return rows_at(receiver.folder, path)


QUICK = {"commit_attempts": "3", "commit_backoff": "1 ms"}


def test_each_row_is_sent_to_its_own_address_as_an_object(target: HttpTarget, receiver: Receiver) -> None:
    options = {**QUICK, "url": f"{receiver.url}/{{id}}", "body": "object", "batch_rows": "1", "method": "PUT"}
    Driver(target, options=options).claim().run(0, numbered(0, 3), partitions=2)
    assert [row["id"] for number in range(3) for row in at(receiver, f"{number}")] == [0, 1, 2]
    asked = receiver.requests()
    assert {one["content_type"] for one in asked} == {"application/json"}
    assert [one["last"] for one in asked] == ["false", "false", "true"]


def test_a_replay_under_another_template_sends_as_recorded(target: HttpTarget, receiver: Receiver) -> None:
    """The driver dies behind the first of three requests, and the next start has another address and other rows."""
    killed_at("http.answered", run_to_old_addresses, target)
    assert len(receiver.rows()) == 1
    again = Driver(target, 2, options={**QUICK, "url": f"{receiver.url}/new-{{id}}"}).claim()
    again.run(0, numbered(0, 3)[::-1])
    again.run(1, numbered(3, 4))
    assert [row["id"] for number in range(3) for row in at(receiver, f"old-{number}")] == [0, 1, 2]
    assert [row["id"] for row in at(receiver, "new-3")] == [3]
    assert len(receiver.rows()) == 4
    assert target.leftovers() == set()


def run_to_old_addresses(target: HttpTarget) -> None:
    Driver(target, options={**QUICK, "url": f"{target.url}/old-{{id}}"}).claim().run(0, numbered(0, 3))


def test_a_recorded_host_that_is_no_longer_allowed(target: HttpTarget, receiver: Receiver) -> None:
    killed_at("http.decided", run_to_old_addresses, target)
    elsewhere = Driver(target, 2, options={**QUICK, "url": "http://127.0.0.1:9/{id}"}).claim()
    with pytest.raises(ConfigurationError, match="recorded for an address to which nothing may be sent now") as refused:
        elsewhere.run(0, numbered(0, 3))
    assert "allowed_hosts" in refused.value.do and receiver.requests() == []
    Driver(target, 3, options={**QUICK, "url": f"{receiver.url}/new-{{id}}"}).claim().run(0, numbered(0, 3))
    assert [row["id"] for number in range(3) for row in at(receiver, f"old-{number}")] == [0, 1, 2]


def test_the_column_of_the_address_is_not_sent(tmp_path: Path, receiver: Receiver) -> None:
    schema = columns("to string, n int")
    sink = HttpTwoPhaseCommit(
        {"uid": "out", "url": receiver.url, "outbox": str(tmp_path / "outbox"), "url_column": "to", **QUICK}
    )
    sink.validate(schema)
    sink.claim(Claim("out", "job", "job-1", 1, 0))
    given = {"to": [f"{receiver.url}/{n // 2}" for n in range(4)], "n": range(4)}
    batch = pa.RecordBatch.from_pydict(given, schema=pa.schema([("to", pa.string()), ("n", pa.int32())]))
    written = sink.write(schema, iter([batch]), Task("out", "q", 0, 0, 0, 1, 0))
    assert written is not None
    sink.commit(schema, Epoch("out", 0, "q", 0, 1), [written])
    assert at(receiver, "0") == [{"n": 0}, {"n": 1}] and at(receiver, "1") == [{"n": 2}, {"n": 3}]
    assert len(receiver.requests()) == 2


CLAIM = Claim("out", "job", "job-1", 1, 0, start=71, query_id="q", planned=9)


def opened(folder: Path) -> Outbox:
    return Outbox(Location.of(str(folder), {}), "out", "sink 'out'")


def sent(folder: Path, number: int, previous: int | None) -> None:
    outbox, claim = opened(folder), CLAIM
    task = Task("out", "q", number, 0, 0, claim.incarnation, 0, claim.start)
    batches = iter(table(NUMBERS, numbered(number, number + 1)).to_batches())
    epoch = Epoch("out", 0, "q", number, claim.incarnation, start=claim.start, previous=previous)
    files = stage(outbox.location, NUMBERS, batches, task, ChunkRule(10, 1000, "lines"), "sink 'out'")
    if outbox.decide(epoch, files or ()):
        outbox.settle(epoch)


def test_a_restore_that_brings_the_epochs_back_is_the_way_out(tmp_path: Path) -> None:
    opened(tmp_path).claim(CLAIM)
    sent(tmp_path, 0, None)
    sent(tmp_path, 1, 0)
    newest = DeltaTable(tmp_path).version()
    # The files of epochs that were sent are gone.
    DeltaTable(tmp_path).restore(1, ignore_missing_files=True)
    with pytest.raises(StateError, match=f"RESTORE the table to version {newest}, the newest one that has all"):
        sent(tmp_path, 2, 1)
    with pytest.raises(StateError, match=f"RESTORE the table to version {newest}, the newest one that has all"):
        opened(tmp_path).claim(replace(CLAIM, incarnation=2, start=72, previous=1))
    DeltaTable(tmp_path).restore(newest, ignore_missing_files=True)
    sent(tmp_path, 2, 1)
    opened(tmp_path).claim(replace(CLAIM, incarnation=2, start=72, previous=2))


def test_what_a_status_means() -> None:
    assert {verdict(status, "retry") for status in (200, 201, 202, 204)} == {Verdict.TAKEN}
    assert {verdict(status, "retry") for status in (408, 425, 429, 500, 502, 503, 504)} == {Verdict.AGAIN}
    assert {verdict(status, "retry") for status in (301, 400, 401, 404, 413, 422)} == {Verdict.REFUSED}
    assert verdict(412, "retry") is Verdict.FENCED
    for said, meant in (("retry", Verdict.AGAIN), ("done", Verdict.TAKEN), ("refuse", Verdict.REFUSED)):
        assert verdict(409, said) is meant


def test_retry_after_in_seconds_and_as_a_date() -> None:
    now = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)
    assert retry_after("120", now) == 120
    assert retry_after(format_datetime(now + timedelta(seconds=90), usegmt=True), now) == 90
    assert retry_after("Wed, 01 May 2024 11:59:00 GMT", now) == 0
    assert retry_after("soon", now) is None
    assert retry_after(None, now) is None
    assert retry_after("\u00b2", now) is None, "a digit that is no number"
    assert retry_after(f"Fri, 01 Jan {'9' * 40} 00:00:00 GMT", now) is None


def test_many_small_tasks_make_few_requests_within_all_limits() -> None:
    cut = ChunkRule(rows=5, bytes=40, body="array")
    found = list(pieces(iter(['{"n":1}'] * 7 + ['{"n":"' + "ä" * 50 + '"}', '{"n":2}']), cut))
    assert [piece.rows for piece in found] == [5, 2, 1, 1]
    joined = list(chunks(iter([ChunkPart(1, f'{{"n":{n}}}\n') for n in range(12)]), cut))
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
    schema = columns("d double, pairs map<int, decimal(9,7)>")
    rows = [{"d": math.nan, "pairs": [(1, None)]}, {"d": -math.inf, "pairs": None}]
    assert list(JsonRows(schema, "a sink").lines(pa.RecordBatch.from_pylist(rows, arrow_schema(schema)))) == [
        '{"d":"NaN","pairs":[{"key":1,"value":null}]}',
        '{"d":"-Infinity","pairs":null}',
    ]
    late = pa.array([253402300800000000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    with pytest.raises(DataError, match="column 't' has a date or time outside"):
        list(JsonRows(columns("t timestamp"), "a sink").lines(pa.record_batch({"t": late})))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_first_and_last_moments_are_times_in_any_session_zone(zone: str) -> None:
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
