"""A recovery lasts from a failure to the commit of the next epoch."""

from typing import Any

import pytest

from spark_ext.metrics.recoveries import Recoveries, Recovery
from tests.ledger.rows import epoch
from tests.metrics.rows import incident, state
from tests.views.test_timeline import at


def recovered(*rows: Any) -> list[tuple[str, str, float, int]]:
    follow = Recoveries()
    return [shown(one) for row in rows for one in follow.take(row)]


def shown(one: Recovery) -> tuple[str, str, float, int]:
    return one.query, one.incident_id, one.seconds, one.failures


LOST = incident("d", 20, "job 'j'", "driver_lost", {"last_seen": at(5).isoformat()}, type="SYSTEM")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([incident("a", 10), epoch(8, "r", at=at(11)), epoch(8, at=at(14)), epoch(9, at=at(15))], [("q", "a", 4.0, 1)]),
        ([incident("a", 10), epoch(7, at=at(9)), epoch(8, at=at(12))], [("q", "a", 2.0, 1)]),
        ([incident("a", 10), incident("b", 12), epoch(8, at=at(15))], [("q", "a", 5.0, 2)]),
        ([LOST, epoch(3, "r", at=at(25)), epoch(4, at=at(26))], [("", "d", 20.0, 1)]),
        ([incident("a", 10), state("FINISHED", 11), epoch(8, at=at(15))], []),
        ([incident("a", 10, kind="close"), epoch(8, at=at(15))], []),
    ],
    ids=[
        "next epoch of its query", "late figures of one before", "failures on the way", "driver", "ended",
        "no failure",
    ],
)  # fmt: skip
def test_when_it_ends(rows: list[Any], expected: list[tuple[str, str, float, int]]) -> None:
    assert recovered(*rows) == expected


def test_an_earlier_starts_failure_known_late_is_recovered_from() -> None:
    early, late = Recoveries(), Recoveries()
    assert early.inherit("q", "a", "USER_CODE", at(1)) == []
    assert [shown(one) for one in early.take(epoch(3, at=at(9)))] == [("q", "a", 8.0, 1)]
    assert late.take(epoch(3, at=at(9))) == []
    assert [shown(one) for one in late.inherit("q", "a", "USER_CODE", at(1))] == [("q", "a", 8.0, 1)]
    assert late.take(epoch(4, at=at(10))) == []
