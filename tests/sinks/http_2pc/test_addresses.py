"""Addresses of rows: templates, columns, allowed hosts; and that a replay sends to what was recorded."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext import failpoints
from spark_ext.errors import ConfigurationError, DataError
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import Claim, Epoch, Task
from spark_ext.sinks.http_2pc.addresses import Addresses, Allowed, checked, columns_of, hosts
from spark_ext.sinks.http_2pc.chunks import ChunkPart, ChunkRule, chunks, pieces
from spark_ext.sinks.http_2pc.sink import HttpTwoPhaseCommit
from spark_ext.spark.session import registry
from spark_ext.testing.children import killed_at
from spark_ext.testing.sink_driver import Driver, numbered
from tests.conformance.test_commit_http import HttpTarget
from tests.servers.receiver import Receiver
from tests.servers.receiver import rows as rows_at

HOME = "https://shop.example/items/{id}?day={day}"


def addresses(template: str = HOME, column: str | None = None, others: tuple[str, ...] = ()) -> Addresses:
    home = urlsplit(template)
    return Addresses(template, column, Allowed(home, hosts(others, home.scheme)), "sink 'out'")


# -- pure -------------------------------------------------------------------------------------------------------------


def test_a_template_is_filled_from_the_row() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"day": [datetime.date(2024, 5, 1), datetime.date(1, 1, 1)], "id": ["a/b ?#ä", "7"]}
    )
    assert addresses().of(batch) == [
        "https://shop.example/items/a%2Fb%20%3F%23%C3%A4?day=2024-05-01",
        "https://shop.example/items/7?day=0001-01-01",
    ]
    flags = pa.RecordBatch.from_pydict({"n": [1, -2], "f": [True, False]})
    assert addresses("http://h/{f}/{n}/{n}").of(flags) == ["http://h/true/1/1", "http://h/false/-2/-2"]


@given(st.text(min_size=1).filter(lambda text: text not in (".", "..")))
def test_a_value_stays_one_part_of_the_path(value: str) -> None:
    """Whatever a row has, the host and the rest of the path are those of the template; the value can be read back."""
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


# -- with a receiver --------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "registry"))
    monkeypatch.setattr(failpoints, "_passed", Counter())


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with Receiver(tmp_path / "receiver") as there:
        yield there


@pytest.fixture
def target(receiver: Receiver, tmp_path: Path) -> HttpTarget:
    return HttpTarget(receiver.url, receiver.folder, tmp_path / "outbox")


def at(receiver: Receiver, path: str) -> list[dict[str, Any]]:
    """The rows that came to an address below `/rows`."""
    return rows_at(receiver.folder, path)


QUICK = {"commit_attempts": "3", "commit_backoff": "1 ms"}


def test_each_row_is_sent_to_its_own_address_as_an_object(target: HttpTarget, receiver: Receiver) -> None:
    options = {**QUICK, "url": f"{receiver.url}/{{id}}", "body": "object", "batch_rows": "1", "method": "PUT"}
    driver = Driver(target, options=options)
    driver.claim()
    driver.run(0, numbered(0, 3), partitions=2)
    assert [row["id"] for number in range(3) for row in at(receiver, f"{number}")] == [0, 1, 2]
    asked = receiver.requests()
    assert {one["content_type"] for one in asked} == {"application/json"}
    assert [one["last"] for one in asked] == ["false", "false", "true"]


def test_a_replay_under_another_template_sends_to_what_was_recorded(target: HttpTarget, receiver: Receiver) -> None:
    """The driver dies behind the first of three requests, and the next start has another address and other rows."""
    killed_at("http.answered", run_to_old_addresses, target)
    assert len(receiver.rows()) == 1
    again = Driver(target, 2, options={**QUICK, "url": f"{receiver.url}/new-{{id}}"})
    again.claim()
    again.run(0, numbered(0, 3)[::-1])
    again.run(1, numbered(3, 4))
    assert [row["id"] for number in range(3) for row in at(receiver, f"old-{number}")] == [0, 1, 2]
    assert [row["id"] for row in at(receiver, "new-3")] == [3]
    assert len(receiver.rows()) == 4
    assert target.leftovers() == set()


def run_to_old_addresses(target: HttpTarget) -> None:
    driver = Driver(target, options={**QUICK, "url": f"{target.url}/old-{{id}}"})
    driver.claim()
    driver.run(0, numbered(0, 3))


def test_a_recorded_address_whose_host_is_no_longer_allowed_is_not_sent_to(
    target: HttpTarget, receiver: Receiver
) -> None:
    killed_at("http.decided", run_to_old_addresses, target)
    elsewhere = Driver(target, 2, options={**QUICK, "url": "http://127.0.0.1:9/{id}"})
    elsewhere.claim()
    with pytest.raises(ConfigurationError, match="recorded for an address to which nothing may be sent now") as refused:
        elsewhere.run(0, numbered(0, 3))
    assert "allowed_hosts" in refused.value.do and receiver.requests() == []
    back = Driver(target, 3, options={**QUICK, "url": f"{receiver.url}/new-{{id}}"})
    back.claim()
    back.run(0, numbered(0, 3))
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


def test_a_row_without_an_address_stops_the_epoch_before_anything_is_sent(
    target: HttpTarget, receiver: Receiver
) -> None:
    driver = Driver(target, options={**QUICK, "url": f"{receiver.url}/{{name}}"})
    driver.claim()
    rows = numbered(0, 2)
    rows[1]["name"] = None
    with pytest.raises(DataError, match="column 'name' of a row is null"):
        driver.run(0, rows)
    assert receiver.requests() == []
