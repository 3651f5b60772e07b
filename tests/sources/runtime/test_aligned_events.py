"""Where an aligned event takes effect: behind its barrier, the same for all sources of a query."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_ext.control import stamps
from spark_ext.model.barriers import Checkpoints
from spark_ext.model.configuration import Configuration
from spark_ext.model.control import Delivery, Event
from spark_ext.model.offsets import SourceOffset
from spark_ext.sources.runtime.orders import OrderBook, Orders
from spark_ext.spark.registry import Registration
from tests.queries.fakes import FakeQuery
from tests.sources.memory import FakeLedger, Store, memory

SET = Event(1, "e1", "set_config", value={"key": "a", "value": 1}, delivery=Delivery.ALIGNED, incarnation=2)
RELEASE = Event(2, "e2", "release", value={"sequence": 1, "event_id": "e1", "checkpoint": 9}, incarnation=2)
PENDING = Checkpoints(9, frozenset({9}))
OVER = Checkpoints(9)


class Query:
    """A query of two sources, `s` and `t`, whose planners a test asks."""

    def __init__(self, folder: Path, **registered: object) -> None:
        self.spark = FakeQuery(folder)
        given = {"incarnation": 2, "lineage": 1, "begun": 1, **registered}
        self.registration = Registration("s", "source", "j", "id", "q", "", str(folder), **given)  # type: ignore[arg-type]
        self.ledger = FakeLedger()
        self.ledger.accepted = [SET, RELEASE]

    def plan(self, start: SourceOffset, known: Checkpoints) -> Orders:
        registration = replace(self.registration, uid=start.uid)
        return OrderBook(memory(Store({})), registration, self.ledger).next(start, known)

    def value(self, orders: Orders) -> object:
        return orders.configuration.user("q").get("a")


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def test_it_waits_until_all_sources_of_the_query_have_delivered_the_barrier(query: Query) -> None:
    for barriers in ({"s": 0, "t": 0}, {"s": 9, "t": 0}):
        offsets = [SourceOffset(uid, barrier=barrier) for uid, barrier in barriers.items()]
        query.spark.plan(*offsets)
        orders = query.plan(offsets[0], PENDING)
        assert query.value(orders) is None and orders.configuration.sequence <= 1
    query.spark.plan(SourceOffset("s", barrier=9), SourceOffset("t", barrier=9))
    orders = query.plan(SourceOffset("s", barrier=9), PENDING)
    assert query.value(orders) == 1 and orders.stamp is not None and orders.stamp.outcomes == {}


def test_a_source_that_has_ended_is_not_waited_for(query: Query) -> None:
    query.spark.plan(SourceOffset("s", barrier=9), SourceOffset("t", ended=True))
    assert query.value(query.plan(SourceOffset("s", barrier=9), PENDING)) == 1


def test_a_checkpoint_that_is_not_known_yet_is_pending(query: Query) -> None:
    query.spark.plan(SourceOffset("s"), SourceOffset("t"))
    assert query.plan(SourceOffset("s"), Checkpoints(8)).configuration.sequence == 1


def test_an_aborted_barrier_puts_nothing_into_force_in_any_source(query: Query) -> None:
    """One source finds that it was aborted; by then the other one could take a later barrier for it."""
    query.spark.plan(SourceOffset("s"), SourceOffset("t"))
    first = query.plan(SourceOffset("s"), OVER)
    assert query.value(first) is None and first.configuration.aligned.keys() == {"1"}
    assert first.stamp is not None and first.stamp.outcomes["e2"]["status"] == "failed"
    query.spark.plan(SourceOffset("s", barrier=11), SourceOffset("t", barrier=11))
    assert query.value(query.plan(SourceOffset("t", barrier=11), OVER)) is None


def test_what_is_in_force_in_one_source_is_in_all(query: Query) -> None:
    """The checkpoint is aborted between the looks of the two."""
    query.spark.plan(SourceOffset("s", barrier=9), SourceOffset("t", barrier=9))
    assert query.value(query.plan(SourceOffset("s", barrier=9), PENDING)) == 1
    assert query.value(query.plan(SourceOffset("t", barrier=9), OVER)) == 1


def test_a_later_release_puts_it_into_force(query: Query) -> None:
    query.ledger.accepted.append(replace(RELEASE, sequence=3, event_id="e3", value={**RELEASE.value, "checkpoint": 10}))
    query.spark.plan(SourceOffset("s", barrier=10), SourceOffset("t", barrier=10))
    stamps.decide(query.registration.checkpoint, "release-1-2", "void")
    assert query.value(query.plan(SourceOffset("s", barrier=10), Checkpoints(10, frozenset({10})))) == 1


@pytest.mark.parametrize(("unreleased", "expected"), [((), 1), ((1,), None)])
def test_the_release_of_an_earlier_start(tmp_path: Path, unreleased: tuple[int, ...], expected: int | None) -> None:
    """It took effect everywhere, or the driver will see that it gets another one."""
    query = Query(tmp_path, incarnation=3, unreleased=unreleased)
    query.spark.plan(SourceOffset("s"), SourceOffset("t"))
    assert query.value(query.plan(SourceOffset("s"), Checkpoints(20))) == expected


def test_the_release_of_an_earlier_start_whose_barrier_has_passed_the_query(tmp_path: Path) -> None:
    """Others have obeyed it behind that barrier, and so does this query, whatever the driver does for the rest."""
    query = Query(tmp_path, incarnation=3, unreleased=(1,))
    query.spark.plan(SourceOffset("s", barrier=9), SourceOffset("t", barrier=9))
    assert query.value(query.plan(SourceOffset("s", barrier=9), Checkpoints(20))) == 1
    assert query.value(query.plan(SourceOffset("t", barrier=9), Checkpoints(20))) == 1


def test_of_the_release_of_an_earlier_start_all_sources_think_alike(tmp_path: Path) -> None:
    """A later barrier has passed by the time at which the second one looks."""
    query = Query(tmp_path, incarnation=3, unreleased=(1,))
    query.spark.plan(SourceOffset("s"), SourceOffset("t"))
    assert query.value(query.plan(SourceOffset("s"), Checkpoints(20))) is None
    query.spark.plan(SourceOffset("s", barrier=20), SourceOffset("t", barrier=20))
    assert query.value(query.plan(SourceOffset("t", barrier=20), Checkpoints(20))) is None


def test_without_events_the_configuration_is_empty(query: Query) -> None:
    query.ledger.accepted = []
    assert query.plan(SourceOffset("s"), OVER).configuration == Configuration()
