"""A recovery lasts from a failure to the commit of the next epoch."""

from __future__ import annotations

from typing import Any

from spark_ext.metrics.recoveries import Recoveries, Recovery
from tests.ledger.rows import epoch
from tests.metrics.rows import incident, state
from tests.views.test_timeline import at


def recovered(*rows: Any) -> list[tuple[str, str, float, int]]:
    follow = Recoveries()
    return [shown(one) for row in rows for one in follow.take(row)]


def shown(one: Recovery) -> tuple[str, str, float, int]:
    return one.query, one.incident_id, one.seconds, one.failures


def test_it_ends_with_the_next_epoch_of_its_query() -> None:
    rows = [incident("a", 10), epoch(8, "r", at=at(11)), epoch(8, at=at(14)), epoch(9, at=at(15))]
    assert recovered(*rows) == [("q", "a", 4.0, 1)]


def test_an_epoch_from_before_the_failure_whose_figures_come_late_does_not_end_it() -> None:
    assert recovered(incident("a", 10), epoch(7, at=at(9)), epoch(8, at=at(12))) == [("q", "a", 2.0, 1)]


def test_failures_on_the_way_belong_to_it() -> None:
    assert recovered(incident("a", 10), incident("b", 12), epoch(8, at=at(15))) == [("q", "a", 5.0, 2)]


def test_a_lost_driver_is_recovered_from_by_any_query() -> None:
    lost = incident("d", 20, "job 'j'", "driver_lost", {"last_seen": at(5).isoformat()}, type="SYSTEM")
    assert recovered(lost, epoch(3, "r", at=at(25)), epoch(4, at=at(26))) == [("", "d", 20.0, 1)]


def test_what_has_ended_does_not_recover() -> None:
    assert recovered(incident("a", 10), state("FINISHED", 11), epoch(8, at=at(15))) == []
    assert recovered(incident("a", 10, kind="close"), epoch(8, at=at(15))) == []


def test_a_failure_of_an_earlier_start_is_recovered_from_whenever_it_becomes_known() -> None:
    early, late = Recoveries(), Recoveries()
    assert early.inherit("q", "a", "USER_CODE", at(1)) == []
    assert [shown(one) for one in early.take(epoch(3, at=at(9)))] == [("q", "a", 8.0, 1)]
    assert late.take(epoch(3, at=at(9))) == []
    assert [shown(one) for one in late.inherit("q", "a", "USER_CODE", at(1))] == [("q", "a", 8.0, 1)]
    assert late.take(epoch(4, at=at(10))) == []
