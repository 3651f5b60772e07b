"""Lifecycle events follow from rows: the same for listeners, row by row, and for a server, from the whole ledger."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from spark_ext.incidents.types import EventKind, LifecycleEvent
from spark_ext.ledger.schema import CheckpointRow, ExecutionStateRow, FinishedRow, IncidentChangeRow, IncidentRow, Row
from spark_ext.model.latency import Hop, Marker
from spark_ext.views.events import EventMaker, events_since, of_marker
from spark_ext.views.page.facts import Facts
from tests.ledger import rows as made
from tests.ledger.rows import START
from tests.views.page.test_document import started


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def state(name: str, seconds: float, operator: str = "q", incarnation: int = 1, **more: Any) -> ExecutionStateRow:
    return replace(made.state(name, operator, at(seconds)), incarnation=incarnation, **more)


def flag(seconds: float, source: str = "s", lineage: int = 1, **more: Any) -> FinishedRow:
    return replace(made.flag(0, source, "q", lineage, "source"), at=at(seconds), **more)


def job_row(event: str, seconds: float, incarnation: int = 1, lineage: int = 1, **more: Any) -> dict[str, Any]:
    return started(event, at=at(seconds), incarnation=incarnation, lineage=lineage, **more)


def sources(query: str) -> frozenset[str]:
    return frozenset({"s", "t"} if query == "q" else ())


def facts(rows: Sequence[Row], jobs: Sequence[dict[str, Any]] = ()) -> Facts:
    def of(row_type: type[Row]) -> tuple[dict[str, Any], ...]:
        return tuple(vars(row) for row in rows if isinstance(row, row_type))

    return Facts(
        directory="d", jobs=tuple(jobs), states=of(ExecutionStateRow), finished=of(FinishedRow),
        checkpoints=of(CheckpointRow), incidents=of(IncidentRow), changes=of(IncidentChangeRow),
    )  # fmt: skip


def found(rows: Sequence[Row], jobs: Sequence[dict[str, Any]] = (), since: float = -1) -> list[LifecycleEvent]:
    return list(events_since(facts(rows, jobs), at(since), sources).values())


def steps(events: Sequence[LifecycleEvent], kind: EventKind) -> list[tuple[str, str | None, str]]:
    return [(one.source or one.query, one.old, one.new) for one in events if one.kind is kind]


LIVE = [
    state("DEPLOYING", 1), state("RUNNING", 2), flag(3), state("RUNNING", 4, incident="i", reason="stalled: f"),
    state("RESTARTING", 5, incident="i", reason="it failed"), state("DEPLOYING", 6), state("RUNNING", 7),
]  # fmt: skip


def test_a_state_has_what_was_before_it_and_why() -> None:
    events = found(LIVE)
    assert steps(events, EventKind.STATE) == [
        ("q", "CREATED", "DEPLOYING"), ("q", "DEPLOYING", "RUNNING"), ("q", "RUNNING", "RUNNING"),
        ("q", "RUNNING", "RESTARTING"), ("q", "RESTARTING", "DEPLOYING"), ("q", "DEPLOYING", "RUNNING"),
    ]  # fmt: skip
    stalled = next(one for one in events if one.old == one.new)
    assert (stalled.incident, stalled.cause) == ("i", "stalled: f")


def test_a_source_opens_and_runs_with_its_query_until_its_end() -> None:
    assert steps(found(LIVE), EventKind.SOURCE) == [
        ("s", None, "OPENED"), ("t", None, "OPENED"), ("s", "OPENED", "RUNNING"), ("t", "OPENED", "RUNNING"),
        ("s", "RUNNING", "FINISHED"), ("t", "RUNNING", "OPENED"), ("t", "OPENED", "RUNNING"),
    ]  # fmt: skip
    drained = found([state("RUNNING", 1), flag(2, drained=True)])[-1]
    assert (drained.cause, drained.details) == ("drained", {"epoch": 1, "lineage": 1})


def test_a_finished_source_opens_again_in_a_new_lineage_alone() -> None:
    def opened(*jobs: dict[str, Any]) -> list[str]:
        rows = [*LIVE, state("DEPLOYING", 20, incarnation=2)]
        return [one.source for one in found(rows, jobs) if one.kind is EventKind.SOURCE and one.incarnation == 2]

    assert opened() == ["t"]
    assert opened(job_row("reset", 10, lineage=2, query="other")) == ["t"]
    assert opened(job_row("reset", 10, lineage=2, query="q")) == ["s", "t"]
    assert opened(job_row("restored", 10, lineage=2)) == ["s", "t"]
    # A restore to behind its end writes its flag under the new lineage.
    kept = events_since(facts([*LIVE, flag(3, lineage=2), state("DEPLOYING", 20, incarnation=2)],
                              [job_row("restored", 10, lineage=2)]), at(19), sources)  # fmt: skip
    assert [one.source for one in kept.values() if one.kind is EventKind.SOURCE] == ["t"]


def test_checkpoints_incidents_and_the_job() -> None:
    rows: list[Row] = [
        replace(made.checkpoint(1, status="TRIGGERED", at=at(1)), mode="aligned"),
        replace(made.checkpoint(1, status="FAILED", at=at(2)), mode="aligned", reason="it took too long"),
        made.checkpoint(2, at=at(3)), made.checkpoint(3, "final", "FLAGGED", "q", at=at(4)),
        made.incident(1, at(5)), made.incident_change(1, at(5)), made.incident_change(9, at(5)),
        replace(made.incident_change(1, at(6)), old="OPEN", count=2),
        replace(made.incident_change(1, at(7)), old="OPEN", new="RESOLVED", cause="epoch 7"),
    ]  # fmt: skip
    events = found(rows, [job_row("started", 0), job_row("rescaled", 8, 2, query="q", reason="4 partitions")])
    assert steps(events, EventKind.CHECKPOINT) == [
        ("", None, "TRIGGERED"), ("", "TRIGGERED", "FAILED"), ("", None, "COMPLETED"), ("q", "COMPLETED", "FLAGGED"),
    ]  # fmt: skip
    assert next(one.cause for one in events if one.new == "FAILED") == "it took too long"
    assert steps(events, EventKind.INCIDENT) == [("", None, "OPEN"), ("", "OPEN", "RESOLVED")]
    assert [(one.new, one.query, one.cause) for one in events if one.kind is EventKind.JOB] == [
        ("started", "", ""), ("rescaled", "q", "4 partitions"),
    ]  # fmt: skip
    assert [one.new for one in found(rows, since=6.5)] == ["RESOLVED"]


def test_markers_and_epochs_have_figures_to_judge_by() -> None:
    marker = of_marker(Marker("in", 0, (Hop("p", 20), Hop("q", 90)), ("x",)), at(0), 3)
    assert (marker.query, marker.source, marker.details["latency_ms"]) == ("q", "in", 90)
    (epoch,) = EventMaker(sources).take("epochs", vars(made.epoch(4)))
    assert epoch.details == {"epoch": 4, "lineage": 1, "input_rows": 10, "duration_ms": 5}


STATES = st.sampled_from(["DEPLOYING", "RUNNING", "RESTARTING", "SCHEDULING", "FINISHED"])
ROWS = st.one_of(
    st.tuples(st.just("state"), STATES, st.sampled_from(["", "q", "r"]), st.integers(1, 2)),
    st.tuples(st.just("flag"), st.sampled_from("st"), st.integers(1, 2)),
    st.tuples(st.just("checkpoint"), st.integers(1, 4), st.sampled_from(["TRIGGERED", "COMPLETED", "FAILED"])),
)


def row_of(drawn: Any, second: int) -> Row:
    if drawn[0] == "state":
        return state(drawn[1], second, drawn[2], drawn[3])
    if drawn[0] == "flag":
        return flag(second, drawn[1], drawn[2])
    return made.checkpoint(drawn[1], status=drawn[2], at=at(second))


@given(st.lists(ROWS, max_size=25), st.data())
def test_listeners_and_the_server_are_told_the_same(drawn: list[Any], data: st.DataObject) -> None:
    rows = [row_of(one, second) for second, one in enumerate(drawn)]
    maker = EventMaker(sources)
    told = [event for row in rows for event in maker.take(row.table, vars(row))]
    again = data.draw(st.lists(st.sampled_from(rows), max_size=5)) if rows else []
    assert found(data.draw(st.permutations([*rows, *again]))) == told
    assert len({one.event_id for one in told}) == len(told)
