"""What has become of each event, read from the ledger while others write it."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable

from spark_ext.control.epoch_configuration import epoch_configuration
from spark_ext.control.event_state import EventState, state_of
from spark_ext.control.history import MARGIN, Changes, Filter, History
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, ControlRefused, Refusal, Request
from spark_ext.errors import StateError
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import ControlEventRow, ControlTransitionRow
from spark_ext.model.configuration import Configuration
from spark_ext.model.control import Event
from tests.control.states import State

AT = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)
EVENT = ControlEventRow(
    event_id="e", sequence=4, kind="pause", target="source:s", value=None, status="accepted", lineage=1, incarnation=2,
    at=AT, reason="", delivery="immediate",
)  # fmt: skip


def step(status: str, query: str = "", epoch: int | None = None, ms: float = 0, **more: object) -> ControlTransitionRow:
    given = ControlTransitionRow(
        event_id="e", sequence=4, status=status, query=query, epoch=epoch, lineage=1, incarnation=2,
        at=AT + timedelta(milliseconds=ms), reason="",
    )  # fmt: skip
    return replace(given, **more)  # type: ignore[arg-type]


class TestState:
    def test_follows_the_transitions(self) -> None:
        assert state_of(EVENT).status == "accepted"
        applied = state_of(EVENT, [step("applied", "q", 7, 120)])
        assert (applied.status, applied.applied, applied.applied_ms, applied.final) == ("applied", {"q": 7}, 120, False)
        done = state_of(EVENT, [step("acknowledged", ms=300), step("applied", "q", 7, 120)])
        assert (done.status, done.acknowledged_ms, done.final_at) == ("acknowledged", 300, AT + timedelta(seconds=0.3))
        assert [one.status for one in done.steps] == ["applied", "acknowledged"]

    def test_has_reason_and_result(self) -> None:
        failed = state_of(EVENT, [step("failed", ms=5, reason="no", result={"checkpoint": 3})])
        assert (failed.status, failed.reason, failed.result) == ("failed", "no", {"checkpoint": 3})

    @pytest.mark.parametrize("status", ["rejected", "expired"])
    def test_what_one_query_says_is_not_the_end(self, status: str) -> None:
        assert state_of(EVENT, [step(status, "q", reason="no")]).status == "accepted"
        both = state_of(EVENT, [step(status, "q", reason="no"), step("applied", "r", 3)])
        assert (both.status, both.applied) == ("applied", {"r": 3})

    def test_doubled_rows_count_once_and_the_first_end_counts(self) -> None:
        once, twice = [step("applied", "q", 7)], [step("applied", "q", 7)] * 2
        assert state_of(EVENT, once) == state_of(EVENT, twice)
        assert state_of(EVENT, [step("expired", ms=9), step("acknowledged", ms=8)]).status == "acknowledged"

    def test_survives_its_json_form(self) -> None:
        given = state_of(
            replace(EVENT, expires_at=AT, idempotency_key="k", requested_by="me"),
            [step("applied", "q", 7, 1.5), step("acknowledged", ms=2, result=[1])],
        )
        assert EventState.from_json(given.to_json()) == given


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "state")


def accept(state: State, *requests: Request) -> list[Event]:
    found = ControlLog(Ledger(state.path)).accept(requests)
    assert all(isinstance(one, Accepted) for one in found), found
    return [one.event for one in found if isinstance(one, Accepted)]


def set_key(number: int, by: str = "") -> Request:
    return Request("set_config", "job", {"key": "k", "value": number}, requested_by=by)


class TestHistory:
    def test_a_ledger_without_events_has_none(self, state: State) -> None:
        history = History(Ledger(state.path))
        assert history.page().events == ()
        assert history.event("x") is None
        assert history.newest() == 0

    def test_sees_what_others_add_and_reads_nothing_twice(self, state: State) -> None:
        history = History(Ledger(state.path))
        (first,) = accept(state, set_key(1))
        assert [one.event_id for one in history.page().events] == [first.event_id]
        seen = history.poll()
        assert history.poll() == seen
        state.step(first, "applied", "q", 3)
        assert history.poll() != seen
        found = history.event(first.event_id)
        assert found is not None and (found.status, found.applied) == ("applied", {"q": 3})

    def test_pages_stay_in_place_both_ways_while_events_come(self, state: State) -> None:
        history = History(Ledger(state.path))
        accept(state, *(set_key(number) for number in range(7)))
        newest = history.page(limit=3)
        assert [one.sequence for one in newest.events] == [7, 6, 5]
        accept(state, set_key(8))
        second = history.page(cursor=newest.cursor, limit=3)
        last = history.page(cursor=second.cursor, limit=3)
        assert [one.sequence for one in (*second.events, *last.events)] == [4, 3, 2, 1]
        assert last.cursor is None
        onward = history.page(after=5, limit=2)
        rest = history.page(cursor=onward.cursor, limit=2)
        assert [one.sequence for one in (*onward.events, *rest.events)] == [6, 7, 8]
        end = history.page(cursor=rest.cursor)
        assert end.events == ()
        accept(state, set_key(9))
        assert [one.sequence for one in history.page(cursor=end.cursor).events] == [9]

    def test_conditions_are_combined(self, state: State) -> None:
        history = History(Ledger(state.path))
        events = accept(
            state, set_key(1, "ann"), Request("pause", "source:q-in", requested_by="ann"),
            Request("pause", "source:r-in", requested_by="bob"), set_key(2, "bob"),
        )  # fmt: skip
        state.step(events[1], "applied", "q", 1)
        state.step(events[2], "applied", "r", 1)
        state.step(events[2], "acknowledged", ms=20)
        state.step(events[3], "rejected", reason="no")

        def found(**wanted: tuple[str, ...]) -> list[int]:
            return [one.sequence for one in history.page(Filter(**wanted), after=0).events]

        assert found(kind=("pause",)) == [2, 3]
        assert found(kind=("pause",), requested_by=("bob",)) == [3]
        assert found(target=("source:q-in", "job")) == [1, 2, 4]
        assert found(status=("accepted",)) == [1]
        assert found(status=("applied",)) == [2]
        assert found(status=("acknowledged", "rejected")) == [3, 4]
        assert found(status=("acknowledged",), kind=("set_config",)) == []
        assert found(requested_by=("\ud800",)) == []
        for one in history.page().events:
            assert one.sequence in found(status=(one.status,))

    @pytest.mark.parametrize(
        "cursor", ["", "x", "WzFd", "bnVsbA==", "W3RydWUsIDFd\u00e9", "W" * 10_000, "W1tbW1tb", "\x00"]
    )
    def test_a_cursor_of_another_list_is_refused(self, state: State, cursor: str) -> None:
        with pytest.raises(ControlRefused) as refused:
            History(Ledger(state.path)).page(cursor=cursor)
        assert refused.value.refusal is Refusal.MALFORMED

    def test_limits_and_statuses_are_checked(self, state: State) -> None:
        history = History(Ledger(state.path))
        for limit in (0, -1, 1_001):
            with pytest.raises(ControlRefused):
                history.page(limit=limit)
        with pytest.raises(ControlRefused):
            history.page(Filter(status=("done",)))
        assert history.page(after=10**30).events == ()

    def test_compaction_and_expiry_are_followed(self, state: State) -> None:
        history = History(Ledger(state.path))
        events = [accept(state, set_key(number))[0] for number in range(4)]
        assert len(history.page().events) == 4
        table = state.ledger.table(ControlEventRow)

        def compact(delta: DeltaTable, commit: CommitProperties) -> None:
            delta.optimize.compact(commit_properties=commit)

        def expire(delta: DeltaTable, commit: CommitProperties) -> None:
            delta.delete("sequence < 3", commit_properties=commit)

        assert table.change(compact, None, "compacting")
        assert [one.event_id for one in history.page(after=0).events] == [one.event_id for one in events]
        assert table.change(expire, None, "expiring")
        assert [one.sequence for one in history.page(after=0).events] == [3, 4]

    def test_changes_since(self, state: State) -> None:
        history = History(Ledger(state.path))
        first, second = accept(state, set_key(1), set_key(2))
        state.step(first, "applied", "q", 1, ms=5_000)
        moment = first.at_ms / 1000 + 4
        assert [one.sequence for one in history.changed(2, moment)] == [1]
        assert [one.sequence for one in history.changed(1, moment + 5)] == [2]
        assert [one.sequence for one in history.changed(1, moment)] == [1, 2]
        assert second.sequence == history.newest()


class TestEpochConfiguration:
    def test_is_that_of_the_offsets(self, state: State) -> None:
        events = accept(state, set_key(1), set_key(2))
        before = Configuration().after(events[:1])
        state.epoch("q", 0, None)
        state.epoch("q", 1, before)
        state.epoch("q", 2, before.after(events))
        found = [epoch_configuration(state.ledger, "q", number) for number in range(3)]
        assert [one and one.to_json()["config"] for one in found] == [{}, {"k": 1}, {"k": 2}]
        newest = epoch_configuration(state.ledger, "q")
        assert newest is not None and (newest.epoch, newest.configuration.sequence, newest.committed) == (2, 2, False)

    def test_it_comes_from_the_ledger_once_spark_deletes_its_offsets(self, state: State) -> None:
        (event,) = accept(state, set_key(1))
        state.committed("q", 1, [state.epoch("q", 1, Configuration().after([event]))])
        (state.folder / "queries" / "q" / "checkpoint" / "offsets" / "1").unlink()
        found = epoch_configuration(state.ledger, "q", 1)
        assert found is not None and found.committed and found.configuration.user() == {"k": 1}

    @pytest.mark.parametrize(
        ("query", "epoch"),
        [("q", 5), ("q", -1), ("q", 2**70), ("nobody", None), ("../../q", None), ("", 0), ("\x00", 1)],
    )
    def test_there_is_none(self, state: State, query: str, epoch: int | None) -> None:
        state.epoch("q", 0, None)
        assert epoch_configuration(state.ledger, query, epoch) is None

    def test_a_missing_file_is_an_error(self, state: State) -> None:
        (event,) = accept(state, set_key(1))
        state.epoch("q", 1, Configuration().after([event]))
        for file in (state.folder / "queries" / "q" / "checkpoint" / "control").iterdir():
            file.unlink()
        with pytest.raises(StateError, match="is missing"):
            epoch_configuration(state.ledger, "q", 1)


def added(state: State, number: int = 1) -> list[Event]:
    return accept(state, *map(set_key, range(number)))


def taken(changes: Changes) -> list[tuple[int, str, int]]:
    return [(one.sequence, one.status, len(one.steps)) for _, one in changes.take()]


def test_each_state_is_given_once(state: State) -> None:
    changes = Changes(History(Ledger(state.path)), after=0)
    first, second = added(state, 2)
    assert taken(changes) == [(1, "accepted", 0), (2, "accepted", 0)]
    assert taken(changes) == []
    state.step(first, "applied", "q", 1)
    state.step(first, "applied", "r", 1, ms=11)
    assert taken(changes) == [(1, "applied", 2)]
    state.step(first, "acknowledged", ms=12)
    state.step(second, "rejected", ms=12, reason="no")
    assert taken(changes) == [(1, "acknowledged", 3), (2, "rejected", 1)]
    assert taken(changes) == []
    added(state)
    assert taken(changes) == [(3, "accepted", 0)]


def test_what_is_known_at_the_beginning_is_left_out(state: State) -> None:
    first, second = added(state, 2)
    state.step(first, "acknowledged")
    changes = Changes(History(Ledger(state.path)))
    assert taken(changes) == []
    state.step(second, "acknowledged")
    assert taken(changes) == [(2, "acknowledged", 1)]
    assert taken(Changes(History(Ledger(state.path)), after=1)) == [(2, "acknowledged", 1)]


def test_a_late_step_is_given_until_the_event_is_over(state: State) -> None:
    changes = Changes(History(Ledger(state.path)), after=0)
    late, other = added(state, 2)
    taken(changes)
    state.step(other, "applied", "q", 9, ms=3 * MARGIN * 1000)
    assert taken(changes) == [(2, "applied", 1)]
    state.step(late, "acknowledged", ms=1)
    assert taken(changes) == [(1, "acknowledged", 1)]
    assert taken(changes) == []


def test_another_one_continues_at_a_mark_and_leaves_nothing_out(state: State) -> None:
    history = History(Ledger(state.path))
    changes = Changes(history, after=0)
    first, second = added(state, 2)
    (_, _), (mark, _) = changes.take()
    state.step(first, "acknowledged")
    added(state)
    found = taken(Changes(history, mark=mark))
    assert [one for one in found if one[0] != second.sequence] == [(1, "acknowledged", 1), (3, "accepted", 0)]


@pytest.mark.parametrize("mark", ["x", "1", "1-", "-1-1", "1-1-1", "9" * 30 + "-1", "١-1\x00"])
def test_a_mark_of_something_else_is_refused(state: State, mark: str) -> None:
    with pytest.raises(ControlRefused):
        Changes(History(Ledger(state.path)), mark=mark)
