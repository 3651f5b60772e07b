"""What a receiver refuses for good, and what has no JSON form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tenacity

from spark_ext.errors import ConfigurationError, DataError, SparkExtError, TransientError
from spark_ext.sinks.http_2pc.chunks import Chunk
from spark_ext.testing.sink_bad_rows import BadRowsKit
from spark_ext.testing.sink_driver import STATES, numbered
from tests.conformance.test_commit_http import HttpTarget
from tests.servers import receiver as receivers
from tests.servers.receiver import Receiver


@pytest.fixture(autouse=True)
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATES, str(tmp_path / "states"))
    monkeypatch.setattr(tenacity.nap, "sleep", lambda _: None)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[HttpTarget]:
    with Receiver(tmp_path / "receiver") as there:
        yield HttpTarget(there.url, there.folder, tmp_path / "outbox")


def kit(target: HttpTarget, **options: str) -> BadRowsKit:
    made = BadRowsKit(target, **options)
    made.driver().claim()
    return made


@pytest.mark.parametrize("body", ["lines", "array"])
def test_a_request_is_put_aside_as_a_whole(target: HttpTarget, body: str) -> None:
    """Nobody can tell which of its rows is the reason; with batch_rows=1 each row is a request."""
    one = kit(target, batch_rows="4", body=body)
    rows = [target.spoiled(row) if row["id"] == 5 else row for row in numbered(0, 10)]
    one.driver().run(0, rows)
    one.settle(0)
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
    one.driver().run(0, numbered(0, 2))
    one.settle(0)
    one.check(2)
    assert [row["reason"] for row in one.found()] == [f"the receiver refused the request: status {status}: no"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, ConfigurationError), (403, ConfigurationError), (405, ConfigurationError), (301, ConfigurationError),
     (408, TransientError), (425, TransientError), (429, TransientError), (503, TransientError), (415, DataError)],
)  # fmt: skip
def test_statuses_that_are_not(target: HttpTarget, status: int, kind: type[SparkExtError]) -> None:
    """Nothing is put aside; the epoch is sent again once that is corrected."""
    one = kit(target, commit_attempts="1")
    receivers.behave(target.url, {"status": status, "always": True})
    with pytest.raises(SparkExtError) as failed:
        one.driver().run(0, numbered(0, 2))
    assert isinstance(failed.value, kind) or isinstance(failed.value.__cause__, kind)
    receivers.behave(target.url)
    again = one.driver(2)
    again.claim()
    again.run(0, numbered(0, 2))
    one.settle(0)
    assert (target.ids(), one.table()) == ([0, 1], [])


def test_a_conflict_is_one_of_the_rows_if_the_option_says_that_it_is_final(target: HttpTarget) -> None:
    one = kit(target, conflict="refuse")
    receivers.behave(target.url, {"status": 409})
    one.driver().run(0, numbered(0, 1))
    one.settle(0)
    one.check(1)


def test_refusals_are_remembered_when_a_later_request_is_tried_again(target: HttpTarget) -> None:
    """Neither is a refused request sent again by the next attempt, nor are its rows lost."""
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
    again = one.driver(2)
    again.claim()
    again.run(0, numbered(0, 100))
    one.settle(0)
    assert (len(target.ids()), one.table()) == (100, [])


def test_with_redact_a_reason_has_no_answer(target: HttpTarget) -> None:
    one = kit(target, redact="true")
    receivers.behave(target.url, {"status": 422, "text": "n0 is bad"})
    one.driver().run(0, numbered(0, 1))
    one.settle(0)
    assert [row["reason"] for row in one.found()] == ["the receiver refused the request: status 422"]


def test_the_rows_of_a_request() -> None:
    lines = '{"a":1,"b":"\\u2028 \u2028"}\n{"a":2,"b":null}\n'
    assert Chunk(0, 2, lines.encode(), True).lines() == lines.split("\n")[:-1]
    assert Chunk(0, 1, b'{"a":1}', True).lines() == ['{"a":1}'], "one object without a line end"
    array = b'[{"a":1.0,"b":"\xc3\xa4"},{"a":[]}]'
    assert Chunk(0, 2, array, True).lines() == ['{"a":1.0,"b":"ä"}', '{"a":[]}']
