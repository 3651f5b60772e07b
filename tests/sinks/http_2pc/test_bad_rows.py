"""What a receiver refuses for good, and what has no JSON form."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import types as T

from spark_ext.errors import CommitError, ConfigurationError, DataError, SparkExtError, TransientError
from spark_ext.sinks.http_2pc.outbox_pieces import Chunk
from spark_ext.testing.sink_bad_rows import BadRowsKit
from spark_ext.testing.sink_driver import NUMBERS, Row, numbered
from tests.conformance.test_commit_http import HttpTarget
from tests.servers import receiver as receivers

pytestmark = pytest.mark.usefixtures("states", "waits")


def kit(target: HttpTarget, **options: str) -> BadRowsKit:
    made = BadRowsKit(target, **options)
    made.driver().claim()
    return made


def send(one: BadRowsKit, rows: Sequence[Row], incarnation: int = 1) -> None:
    driver = one.driver(incarnation)
    if incarnation > 1:
        driver.claim()
    driver.run(0, rows)
    one.settle(0)


@pytest.mark.parametrize("body", ["lines", "array"])
def test_a_request_is_put_aside_as_a_whole(target: HttpTarget, body: str) -> None:
    """Nobody can tell which of its rows is the reason; with batch_rows=1 each row is a request."""
    one = kit(target, batch_rows="4", body=body)
    send(one, [target.spoiled(row) if row["id"] == 5 else row for row in numbered(0, 10)])
    assert one.table() == [4, 5, 6, 7]
    one.check(10)
    found = sorted(one.found(), key=lambda row: str(row["raw"]))
    assert [row["position"] for row in found] == [f'{{"request": 1, "row": {n}}}' for n in range(4)]
    assert {row["reason"] for row in found} == {
        f"the receiver refused the request: status 422: the name {receivers.REFUSED} is not taken"
    }


@pytest.mark.parametrize("status", [400, 404, 410, 413, 414, 422])
def test_statuses_that_are_of_the_rows(target: HttpTarget, status: int) -> None:
    one = kit(target)
    receivers.behave(target.url, {"status": status, "text": "no"})
    send(one, numbered(0, 2))
    one.check(2)
    assert [row["reason"] for row in one.found()] == [f"the receiver refused the request: status {status}: no"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, ConfigurationError), (403, ConfigurationError), (405, ConfigurationError), (301, ConfigurationError),
     (408, TransientError), (425, TransientError), (429, TransientError), (503, TransientError), (415, DataError)],
)  # fmt: skip
def test_statuses_that_are_not(target: HttpTarget, status: int, kind: type[SparkExtError]) -> None:
    one = kit(target, commit_attempts="1")
    receivers.behave(target.url, {"status": status, "always": True})
    with pytest.raises(SparkExtError) as failed:
        one.driver().run(0, numbered(0, 2))
    assert isinstance(failed.value, kind) or isinstance(failed.value.__cause__, kind)
    receivers.behave(target.url)
    send(one, numbered(0, 2), 2)
    assert (target.ids(), one.table()) == ([0, 1], [])


def test_a_conflict_is_one_of_them_if_the_option_calls_it_final(target: HttpTarget) -> None:
    one = kit(target, conflict="refuse")
    receivers.behave(target.url, {"status": 409})
    send(one, numbered(0, 1))
    one.check(1)


def test_refusals_are_remembered_when_a_later_request_is_retried(target: HttpTarget) -> None:
    one = kit(target, commit_attempts="3", commit_backoff="1 ms")
    driver = one.driver()
    receivers.behave(target.url, {"status": 422}, {}, {"status": 503}, {"status": 503})
    driver.run(0, numbered(0, 4))
    one.settle(0)
    assert (target.ids(), one.table()) == ([1, 2, 3], [0])


def test_a_limit_ends_the_sending(target: HttpTarget) -> None:
    one = kit(target, max_bad_rows="2")
    receivers.behave(target.url, {"status": 404, "always": True})
    with pytest.raises(DataError, match="max_bad_rows"):
        one.driver().run(0, numbered(0, 100))
    receivers.behave(target.url)
    send(one, numbered(0, 100), 2)
    assert (len(target.ids()), one.table()) == (100, [])


def test_with_redact_a_reason_has_no_answer(target: HttpTarget) -> None:
    one = kit(target, redact="true")
    receivers.behave(target.url, {"status": 422, "text": "n0 is bad"})
    send(one, numbered(0, 1))
    assert [row["reason"] for row in one.found()] == ["the receiver refused the request: status 422"]


ADDRESSED = T.StructType([*NUMBERS.fields, T.StructField("to", T.StringType())])
COLUMN = {"url_column": "to"}
FAILS = {"on_bad_row": "fail"}
AWAY = list(range(0, 20, 5))  # The ids of the rows that go to another host


def more(target: HttpTarget) -> dict[str, str]:
    return {**COLUMN, "allowed_hosts": f"example.com:{urlsplit(target.url).port}"}


def addressed(target: HttpTarget, away: list[int]) -> list[dict[str, Any]]:
    """20 rows, some of them for another host than that of the option `url`."""
    elsewhere = target.url.replace("127.0.0.1", "example.com")
    return [{**row, "to": elsewhere if row["id"] in away else target.url} for row in numbered(0, 20)]


def decided(target: HttpTarget, away: list[int], options: dict[str, str]) -> BadRowsKit:
    one = BadRowsKit(target, ADDRESSED, commit_attempts="1")
    run(one, 1, addressed(target, away), options, down=True)
    assert (target.ids(), one.table()) == ([], [])
    return one


def run(
    one: BadRowsKit, incarnation: int, rows: list[dict[str, Any]], options: dict[str, str], *, down: bool = False
) -> None:
    driver = one.driver(incarnation)
    driver.options = {**driver.options, **options}
    assert isinstance(one.target, HttpTarget)
    receivers.behave(one.target.url, *([{"status": 503, "always": True}] if down else []))
    driver.claim()
    if down:
        with pytest.raises(CommitError):
            driver.run(0, rows, partitions=2)
    else:
        driver.run(0, rows, partitions=2)
        one.settle(0)


def test_rows_put_aside_when_the_epoch_was_decided_stay_so(target: HttpTarget) -> None:
    """A further host is allowed since; what is sent is what was decided, without them."""
    one = decided(target, AWAY, COLUMN)
    run(one, 2, addressed(target, AWAY), more(target))
    assert one.table() == AWAY and one.waiting() == []
    one.check(20)


@pytest.mark.parametrize("away", [AWAY, list(range(20))], ids=["some", "all"])
def test_rows_that_were_decided_are_not_put_aside_too(target: HttpTarget, away: list[int]) -> None:
    one = decided(target, away, {})
    run(one, 2, addressed(target, away), COLUMN)
    assert one.table() == [] and one.waiting() == []
    one.check(20)


def test_what_the_receiver_refuses_comes_on_top(target: HttpTarget) -> None:
    one = decided(target, AWAY, COLUMN)
    rows = addressed(target, AWAY)
    receivers.behave(target.url)
    driver = one.driver(2)
    driver.options = {**driver.options, **more(target), "commit_attempts": "1"}
    driver.claim()
    receivers.behave(target.url, {"status": 422}, {}, {"status": 503, "always": True})
    with pytest.raises(CommitError):
        driver.run(0, rows)
    third = one.driver(3)
    third.options = {**third.options, **more(target)}
    third.claim()
    receivers.behave(target.url, {"status": 422})
    third.run(0, rows)
    one.settle(0)
    assert one.table() == sorted([*AWAY, 2])
    one.check(20)


def test_bad_rows_of_a_decision_have_no_place_without_the_option(target: HttpTarget) -> None:
    one = decided(target, AWAY, COLUMN)
    with pytest.raises(ConfigurationError, match="start with on_bad_row=quarantine until the epoch is committed"):
        run(one, 2, addressed(target, AWAY), {**more(target), **FAILS})
    assert target.ids() == []
    run(one, 3, addressed(target, AWAY), more(target))
    one.check(20)


def test_a_decision_of_a_start_without_the_option_has_none(target: HttpTarget) -> None:
    one = decided(target, AWAY, FAILS)
    run(one, 2, addressed(target, AWAY), COLUMN)
    assert one.table() == []
    one.check(20)


def test_the_rows_of_a_request() -> None:
    lines = '{"a":1,"b":"\\u2028 \u2028"}\n{"a":2,"b":null}\n'
    assert Chunk(0, 2, lines.encode(), True).lines() == lines.split("\n")[:-1]
    assert Chunk(0, 1, b'{"a":1}', True).lines() == ['{"a":1}'], "one object without a line end"
    assert Chunk(0, 2, b'[{"a":1.0,"b":"\xc3\xa4"},{"a":[]}]', True).lines() == ['{"a":1.0,"b":"ä"}', '{"a":[]}']
