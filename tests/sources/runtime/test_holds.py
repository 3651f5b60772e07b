"""Where the sources of a query stand still for its restart."""

from dataclasses import replace
from pathlib import Path

import pytest

from spark_ext.control import stamps
from spark_ext.model.barriers import Checkpoints
from spark_ext.model.configuration import SETTINGS
from spark_ext.model.control import Delivery
from spark_ext.model.offsets import Json
from spark_ext.sources.runtime.planner import Planner
from tests.queries.fakes import FakeQuery
from tests.sources.memory import FakeLedger, Log, Store, memory, registration

KEYS = (SETTINGS, "key")


class Query:
    def __init__(self, place: Path) -> None:
        self.place = str(place)
        self.ledger = FakeLedger()
        self.log = Log()
        self.registration = registration(checkpoint=self.place, start=7, rebuild=KEYS)
        self.start()

    def start(self, passed: int = 0) -> None:
        source = memory(Store({"a": 1_000}, ends=False), bounded=False, max_rows_per_epoch=10)
        self.registration = replace(self.registration, passed=passed)
        self.planner = Planner(source, self.registration, self.ledger)

    def plans(self) -> bool:
        return self.log.plan(self.planner) is not None

    def holds(self, sequence: int) -> bool:
        return stamps.all_hold(self.place, 7, sequence, ["s"])

    def spark_logs(self) -> None:
        FakeQuery(Path(self.place)).plan(self.log.offsets[-1])

    @property
    def key(self) -> Json:
        return stamps.configuration(self.place, [self.log.offsets[-1]]).user("q").get("key")

    def set(self, value: int, key: str = "key", target: str = "job") -> int:
        return self.ledger.accept("set_config", target, {"key": key, "value": value}).sequence


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def test_it_holds_behind_events_before_one_that_needs_a_restart(query: Query) -> None:
    assert query.plans() and not query.holds(1)
    query.set(1, "other")
    needs = query.set(2)
    query.set(3, "other")
    assert query.plans()
    assert query.log.offsets[-1].control == needs - 1 and not query.holds(needs)
    assert not query.plans() and not query.plans() and query.holds(needs)
    # A planner that is started again after a failure holds as well.
    query.start()
    assert not query.plans()
    query.start(passed=needs)
    assert query.plans()
    assert (query.key, query.log.offsets[-1].control) == (2, needs + 1)
    assert query.plans()


def test_it_continues_when_no_restart_is_needed(query: Query) -> None:
    query.plans()
    needs = query.set(2)
    query.set(1)
    assert not query.plans()
    stamps.release(query.place, 8, needs)
    assert not query.plans()
    stamps.release(query.place, 7, needs)
    assert query.plans() and query.key == 2
    assert not query.plans() and query.holds(needs + 1)


def test_a_refused_value_and_its_reversal_share_one_epoch(query: Query) -> None:
    """The view is old: the driver has added the former value since the source began to hold."""
    query.plans()
    bad = query.set(2)
    assert not query.plans() and query.holds(bad)
    old = list(query.ledger.accepted)
    former = query.set(1)
    new, query.ledger.accepted = query.ledger.accepted, old
    query.ledger.refresh_events = lambda: setattr(query.ledger, "accepted", new)  # type: ignore[method-assign]
    for sequence in (former, bad):
        stamps.release(query.place, 7, sequence)
    assert query.plans() and query.key == 1


@pytest.mark.parametrize(
    ("kind", "target", "value", "held"),
    [
        ("restart", "job", None, True), ("restart", "query:q", None, True), ("restart", "query:r", None, False),
        ("set_config", "query:q", {"key": "key", "value": 1}, True),
        ("set_config", "query:r", {"key": "key", "value": 1}, False),
        ("set_config", "job", {"key": "spark.sql.ansi.enabled", "value": True}, True),
        ("set_config", "job", {"key": "other", "value": 1}, False), ("pause", "source:t", None, False),
    ],
)  # fmt: skip
def test_what_calls_for_a_restart(query: Query, kind: str, target: str, value: Json, held: bool) -> None:
    query.plans()
    event = query.ledger.accept(kind, target, value)
    assert query.plans() is not held
    assert query.holds(event.sequence) is held


def test_a_restart_makes_no_epoch_of_its_own(query: Query) -> None:
    query.plans()
    query.start(passed=query.ledger.accept("restart", "job").sequence)
    assert query.plans() and query.log.offsets[-1].control == 0


def test_an_aligned_key_holds_where_it_takes_effect(query: Query) -> None:
    query.plans()
    waits = query.ledger.accept("set_config", "job", {"key": "key", "value": 1}, delivery=Delivery.ALIGNED)
    value = {"sequence": waits.sequence, "event_id": waits.event_id, "checkpoint": 5}
    query.ledger.accept("align", "job", {"checkpoint": 5, "sequences": [waits.sequence]})
    query.ledger.known = Checkpoints(5, frozenset({5}))
    assert query.plans() and query.key is None
    query.ledger.own = 5
    assert query.plans() and query.log.offsets[-1].barrier == 5
    query.spark_logs()
    assert not query.plans(), "until it is known whether the barrier has passed all queries"
    release = query.ledger.accept("release", "job", value)
    assert not query.plans() and query.holds(release.sequence)
    query.start(passed=release.sequence)
    assert query.plans() and query.key == 1


def test_a_run_of_what_is_available_waits(query: Query) -> None:
    query.planner.prepare_available_now()
    query.plans()
    assert query.planner.rationed_s == 0
    needs = query.set(2)
    assert not query.plans() and query.planner.rationed_s > 0
    stamps.release(query.place, 7, needs)
    assert query.plans() and query.planner.rationed_s == 0
