"""Where an aligned event takes effect: behind its barrier, which all queries have passed, the same for all sources."""

from dataclasses import replace
from pathlib import Path

import pytest

from spark_ext.model.configuration import Configuration
from spark_ext.model.control import Delivery, Event
from spark_ext.model.offsets import SourceOffset
from spark_ext.sources.runtime.directives import DirectiveBook, Directives
from spark_ext.spark.session.registry import Registration
from tests.queries.fakes import FakeQuery
from tests.sources.memory import FakeLedger, Store, memory

VALUE = {"sequence": 1, "event_id": "e1", "checkpoint": 9}
SET = Event(1, "e1", "set_config", value={"key": "a", "value": 1}, delivery=Delivery.ALIGNED, incarnation=2)
ALIGN = Event(2, "e2", "align", value={"checkpoint": 9, "sequences": [1]}, incarnation=2)
LATER = Event(3, "e3", "set_config", value={"key": "b", "value": 1}, incarnation=2)
RELEASE = Event(4, "e4", "release", value=VALUE, incarnation=2)
VOID = replace(RELEASE, value={**VALUE, "void": True})
WITHDRAWN = replace(RELEASE, value={**VALUE, "withdrawn": True})


class Query:
    def __init__(self, folder: Path, **registered: object) -> None:
        self.spark = FakeQuery(folder)
        given = {"incarnation": 2, "lineage": 1, "begun": 1, **registered}
        self.registration = Registration("s", "source", "j", "id", "q", "", str(folder), **given)  # type: ignore[arg-type]
        self.ledger = FakeLedger()
        self.ledger.accepted = [SET, ALIGN, LATER]

    def plan(self, start: SourceOffset, *others: SourceOffset) -> Directives:
        self.spark.plan(start, *others)
        registration = replace(self.registration, uid=start.uid)
        return DirectiveBook(memory(Store({})), registration, self.ledger).next(start)


def user(directives: Directives) -> dict[str, object]:
    return directives.configuration.user("q")


def at(uid: str, barrier: int = 0, **values: object) -> SourceOffset:
    return SourceOffset(uid, barrier=barrier, **values)  # type: ignore[arg-type]


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


@pytest.mark.parametrize(("s", "t"), [(0, 0), (9, 0), (0, 9)])
def test_until_the_barrier_has_passed_it_obeys_nothing_later(query: Query, s: int, t: int) -> None:
    directives = query.plan(at("s", s), at("t", t))
    assert not directives.hold and user(directives) == {} and directives.configuration.sequence <= 1


@pytest.mark.parametrize("other", [at("t", 9), at("t", 11), at("t", ended=True)])
def test_a_source_stands_behind_the_barrier_until_the_outcome(query: Query, other: SourceOffset) -> None:
    directives = query.plan(at("s", 9), other)
    assert directives.hold and directives.stamp is None and user(directives) == {}


@pytest.mark.parametrize(
    ("outcome", "found"),
    [(RELEASE, {"a": 1, "b": 1}), (VOID, {"b": 1}), (WITHDRAWN, {"b": 1})],
    ids=["in force", "void", "withdrawn"],
)
@pytest.mark.parametrize("barriers", [(9, 9), (0, 0), (9, 0)])
def test_what_has_come_of_it_is_the_same_for_all_sources(
    query: Query, outcome: Event, found: dict[str, object], barriers: tuple[int, int]
) -> None:
    query.ledger.accepted.append(outcome)
    s, t = (at(uid, barrier) for uid, barrier in zip("st", barriers, strict=True))
    directives = [query.plan(s, t), query.plan(t, s)]
    assert [user(one) for one in directives] == [found] * 2 and not any(one.hold for one in directives)
    assert directives[0].configuration.aligned.keys() == ({"1"} if outcome is VOID else set())


def test_after_an_aborted_barrier_another_one_follows(query: Query) -> None:
    again = {**VALUE, "checkpoint": 10}
    next_one = {"checkpoint": 10, "sequences": [1]}
    query.ledger.accepted += [VOID, replace(ALIGN, sequence=5, event_id="e5", value=next_one)]
    assert user(query.plan(at("s", 9), at("t", 9))) == {"b": 1}, "the events between are obeyed meanwhile"
    assert query.plan(at("s", 10), at("t", 10)).hold
    query.ledger.accepted.append(replace(RELEASE, sequence=6, event_id="e6", value=again))
    assert user(query.plan(at("s", 10), at("t", 10))) == {"a": 1, "b": 1}


@pytest.mark.parametrize("barrier", [0, 9])
def test_a_barrier_of_an_earlier_start_is_over(tmp_path: Path, barrier: int) -> None:
    """Nobody has obeyed the event behind it: those that had passed it stood still. It will have another one."""
    directives = Query(tmp_path, incarnation=3).plan(at("s", barrier), at("t", barrier))
    assert not directives.hold and user(directives) == {"b": 1} and directives.configuration.aligned.keys() == {"1"}


def test_without_events_the_configuration_is_empty(query: Query) -> None:
    query.ledger.accepted = []
    assert query.plan(at("s"), at("t")).configuration == Configuration()


def test_a_source_that_has_looked_in_vain_stands_still_too(query: Query) -> None:
    start, other = at("s", 9, control=1), at("t", 9, control=1)
    query.spark.plan(start, other)
    book = DirectiveBook(memory(Store({})), query.registration, query.ledger)
    query.ledger.accepted = [SET]
    assert not any(book.next(start).hold for _ in range(2))
    query.ledger.accepted = [SET, ALIGN]
    assert book.next(start).hold
    query.ledger.accepted = [SET, ALIGN, RELEASE]
    assert not book.next(start).hold
