"""Control events in the driver: a real ledger and real files, and queries that a test moves by hand."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from spark_ext.control import stamps
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, Request
from spark_ext.errors import CheckpointError, ConfigurationError
from spark_ext.jobs.checkpointing.savepoint_requests import CheckpointRequest
from spark_ext.jobs.controlling.control_poll import poll_pace
from spark_ext.jobs.controlling.controller import Controller
from spark_ext.jobs.controlling.driver_directives import LOST, DriverDirectives
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.schema import ControlEventRow, ControlTransitionRow, DefinitionRow
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.model.configuration import Configuration, Stamp
from spark_ext.model.control import Event
from spark_ext.model.definitions import OperatorDefinition, QueryDefinition, Role
from spark_ext.model.event_progress import Step
from spark_ext.model.lifecycle import State
from spark_ext.model.offsets import SourceOffset
from tests.queries.fakes import Bench
from tests.support.coordinated import execution_of, no_rebuilds
from tests.support.ledgers import started
from tests.support.waiting import until


class Actions:
    def __init__(self) -> None:
        self.stops = 0
        self.asked: list[CheckpointRequest] = []
        self.levels: list[dict[str, str]] = []
        self.settings: list[dict[str, Any]] = []
        self.dumped = threading.Event()
        self.dumped.set()

    def stop(self) -> None:
        self.stops += 1

    def checkpoint(self, folder: str | None) -> CheckpointRequest:
        self.asked.append(CheckpointRequest(folder))
        return self.asked[-1]

    def savepoint(self, folder: str) -> CheckpointRequest:
        return self.checkpoint(folder)

    def check_folder(self, folder: str, *, remote: bool) -> str:
        if remote:
            raise ConfigurationError("it is not below a root")
        return folder

    def dump_driver(self, event_id: str) -> str:
        return f"/stacks/{event_id}"

    def dump(self, event_id: str, *, heap: bool) -> str:
        assert self.dumped.wait(60)
        return f"/dumps/{event_id}{'/heap' if heap else ''}"

    def set_log_levels(self, levels: dict[str, str], former: dict[str, str]) -> None:
        self.levels.append(levels)

    def set_checkpoint_settings(self, settings: dict[str, Any]) -> None:
        self.settings.append(settings)

    def restart(self, event: Event) -> None:
        """Nothing to restart here."""

    def restarted(self, event: Event) -> None:
        return None


class Desk:
    """A job of one query with the sources `in`, at one start of it."""

    def __init__(self, folder: Path, ledger: Ledger, *, takeover: bool = False) -> None:
        self.ledger = ledger
        self.bench = Bench(folder)
        again = Path(ledger.uri).exists()
        incarnation = start_incarnation(ledger, "lab", takeover=takeover) if again else started(ledger, "lab")
        self.writer = LedgerWriter(ledger, incarnation)
        made_of = QueryDefinition((OperatorDefinition("in", Role.SOURCE, "files"),))
        now = datetime.now(timezone.utc)
        row = DefinitionRow(query="q", lineage=1, incarnation=incarnation.number, at=now, definition=made_of.to_json())
        self.writer.append(row)
        self.control = ControlLog(ledger, incarnation.fence)
        self.context = replace(
            self.bench.context, incarnation=incarnation, write_behind=WriteBehind(self.writer, "lab"),
            control=self.control,
        )  # fmt: skip
        self.actions = Actions()
        self.drains = 0
        self.aligned: list[tuple[Any, CheckpointRequest]] = []
        self.run = self.bench.run
        self.run.start()
        self.now = 0.0
        actions: Any = self.actions
        rebuilds = no_rebuilds()
        self.controller = Controller(
            self.context, ledger, self.control, execution_of([self.run]),
            DriverDirectives("lab", actions, lambda: None), rebuilds, self._align, self._drained, lambda event: event,
        )  # fmt: skip

    def _align(self, prepare: Any) -> CheckpointRequest:
        self.aligned.append((prepare, CheckpointRequest()))
        return self.aligned[-1][1]

    def _drained(self) -> None:
        self.drains += 1

    def send(self, kind: str, target: str = "job", value: Any = None, **more: Any) -> Event:
        (found,) = ControlLog(Ledger(self.ledger.uri)).accept([Request(kind, target, value, **more)])
        assert isinstance(found, Accepted), found
        return found.event

    def send_aligned(self, key: str = "a") -> Event:
        return self.send("set_config", value={"key": key, "value": 1}, delivery="aligned")

    def until(self, condition: Callable[[], object], what: str, seconds: float = 30) -> None:
        """Tick until something has come of it."""

        def come() -> bool:
            self.tick()
            return bool(condition())

        until(come, what, seconds)

    def tick(self) -> None:
        self.now += 1.0
        self.bench.tick(0.1)
        self.controller.tick(self.now)
        self.context.write_behind.flush()

    def rows(self, event: Event) -> list[tuple[str, str, int | None]]:
        rows = self.ledger.table(ControlTransitionRow).rows([("event_id", "=", event.event_id)])
        return [(row.status, row.query, row.epoch) for row in sorted(rows, key=lambda row: row.at)]

    def comes(self, event: Event, *rows: tuple[str, str, int | None]) -> None:
        """Wait until exactly this has come of an event."""
        self.until(lambda: self.rows(event) == list(rows), f"{rows} of event {event.sequence}")

    def why(self, event: Event) -> str:
        rows = self.ledger.table(ControlTransitionRow).rows([("event_id", "=", event.event_id), ("query", "=", "")])
        return max(rows, key=lambda row: row.at).reason

    def offset(
        self, sequence: int, outcomes: dict[str, Any] | None = None, *, ended: bool = False, held: Event | None = None
    ) -> SourceOffset:
        """What a planner returns that has obeyed all events up to one, but for an aligned one that it holds."""
        aligned = {} if held is None else {str(held.sequence): {"kind": held.kind, "target": "job", "value": None}}
        stamp = Stamp(Configuration(sequence, aligned=aligned), outcomes=outcomes or {})
        return SourceOffset("in", control=sequence, stamp=stamps.write(self.run.checkpoint, stamp.text()), ended=ended)

    def end(self) -> None:
        self.controller.close()
        forget(self.ledger.uri, self.context.incarnation.number)


@pytest.fixture
def desks(tmp_path: Path) -> Iterator[Any]:
    made: list[Desk] = []

    def start() -> Desk:
        if made:
            made[-1].end()
        made.append(Desk(tmp_path, Ledger(str(tmp_path / "state"))))
        return made[-1]

    yield start
    made[-1].end()


@pytest.fixture
def desk(desks: Any) -> Desk:
    made: Desk = desks()
    return made


def test_an_event_is_applied_when_planned_then_acknowledged(desk: Desk) -> None:
    desk.tick()
    event = desk.send("set_config", value={"key": "a", "value": 1})
    desk.bench.query.plan(desk.offset(event.sequence))
    desk.comes(event, ("applied", "q", 0))
    desk.bench.query.commit_planned()
    desk.comes(event, ("applied", "q", 0), ("acknowledged", "", None))


def test_an_epoch_that_was_faster_than_the_look_is_found(desk: Desk) -> None:
    desk.tick()
    event = desk.send("pause")
    desk.bench.query.commit(SourceOffset("in"))
    desk.bench.query.commit(desk.offset(event.sequence))
    desk.bench.query.commit(desk.offset(event.sequence))
    desk.comes(event, ("applied", "q", 1), ("acknowledged", "", None))


def test_a_start_finds_what_the_last_one_has_not_written(desks: Any) -> None:
    first = desks()
    obeyed, open_ = first.send("pause"), first.send("resume")
    first.bench.query.commit(SourceOffset("in"))
    first.bench.query.commit(first.offset(obeyed.sequence))
    second = desks()
    second.run.restore(("fake-id", 1))
    second.comes(obeyed, ("applied", "q", 1), ("acknowledged", "", None))
    assert second.rows(open_) == []
    second.bench.query.commit(second.offset(open_.sequence))
    second.comes(open_, ("applied", "q", 2), ("acknowledged", "", None))


def test_what_a_planner_has_rejected_is_rejected(desk: Desk) -> None:
    event = desk.send("seek", "source:in/c1", {"position": 5, "yes": True})
    said = {event.event_id: {"status": "rejected", "reason": "there is no such channel"}}
    desk.bench.query.commit(desk.offset(event.sequence, said))
    desk.comes(event, ("rejected", "q", 0), ("rejected", "", None))
    assert desk.why(event) == "there is no such channel"


def test_an_ended_source_rejects(desk: Desk) -> None:
    desk.bench.query.commit(SourceOffset("in", ended=True))
    desk.tick()
    event = desk.send("rate_limit", "source:in", {"rows_per_second": 5})
    desk.comes(event, ("rejected", "", None))
    assert desk.why(event) == "query 'q' has read source 'in' to its end"


def test_requests_fail_with_their_driver_and_a_stop_holds(desks: Any) -> None:
    first = desks()
    lost = [first.send("checkpoint"), first.send("savepoint", value={"path": "/x"}), first.send("dump", value={})]
    stop = first.send("stop")
    second = desks()
    for event in lost:
        second.comes(event, ("failed", "", None))
        assert second.why(event) == LOST
    assert second.actions.stops == 1 and second.controller.stop_requested == stop.event_id
    second.controller.conclude(State.CANCELED)
    second.comes(stop, ("applied", "", None), ("acknowledged", "", None))
    third = desks()
    third.tick()
    assert third.actions.stops == 0, "a stop is obeyed once"


def test_a_drain_holds_over_starts_until_the_job_has_finished(desks: Any) -> None:
    drain = desks().send("drain")
    second = desks()
    second.tick()
    assert second.drains == 0 and second.rows(drain) == [], "the coordinator knows of it from the start"
    second.bench.query.commit(second.offset(drain.sequence, ended=True))
    second.comes(drain, ("applied", "q", 0))


def test_checkpoints_and_savepoints_are_followed_to_their_end(desk: Desk) -> None:
    taken, failed = desk.send("checkpoint"), desk.send("savepoint", value={"path": "/x"})
    desk.until(lambda: len(desk.actions.asked) == 2, "both requests")
    for one in desk.actions.asked:
        if one.folder is None:
            one.complete(4)
        else:
            one.fail(CheckpointError("the disk is full"))
    desk.comes(taken, ("applied", "", None), ("acknowledged", "", None))
    desk.comes(failed, ("applied", "", None), ("failed", "", None))
    assert desk.why(failed) == "the disk is full"


def test_a_savepoint_asked_for_over_http_must_be_below_a_root(desk: Desk) -> None:
    asked = desk.send("savepoint", value={"path": "/etc/x"}, origin="rest 127.0.0.1")
    desk.comes(asked, ("rejected", "", None))
    assert desk.why(asked) == "it is not below a root"


def test_a_dump_that_takes_long_delays_no_other_order(desk: Desk) -> None:
    desk.actions.dumped.clear()
    dump = desk.send("dump", value={"heap": True})
    desk.comes(desk.send("dump", value={"scope": "driver"}), ("applied", "", None), ("acknowledged", "", None))
    desk.comes(dump, ("applied", "", None))
    desk.actions.dumped.set()
    desk.comes(dump, ("applied", "", None), ("acknowledged", "", None))
    desk.comes(desk.send("dump", value={}), ("applied", "", None), ("acknowledged", "", None))
    rows = desk.ledger.table(ControlTransitionRow).rows([("event_id", "=", dump.event_id)])
    assert max(rows, key=lambda row: row.at).result == {"path": f"/dumps/{dump.event_id}/heap"}


def test_standing_orders_of_the_driver_hold_after_a_start(desks: Any) -> None:
    first = desks()
    first.send("log_level", value={"level": "debug"})
    first.send("checkpoint_config", value={"checkpoint_interval": "1 s"})
    first.until(lambda: first.actions.settings, "the settings")
    assert first.actions.settings == [{"checkpoint_interval": 1000}]
    second = desks()
    until(lambda: bool(second.actions.levels), "the levels")
    assert second.actions.levels == [{"": "DEBUG"}] and second.actions.settings == [{"checkpoint_interval": 1000}]
    second.send("checkpoint_config")
    second.until(lambda: len(second.actions.settings) == 2, "the end of the settings")
    assert second.actions.settings[-1] == {}


def test_an_order_of_the_driver_past_its_time_is_expired(desk: Desk) -> None:
    soon = datetime.now(timezone.utc) + timedelta(seconds=2)
    event = desk.send("checkpoint", expires_at=soon)
    until(lambda: datetime.now(timezone.utc) > soon, "its time")
    desk.comes(event, ("expired", "", None))
    assert desk.actions.asked == []


def log_of(desk: Desk) -> list[tuple[str, Any]]:
    """What the driver has added because of aligned events: kind, and checkpoint, void and withdrawn."""
    rows = sorted(desk.ledger.table(ControlEventRow).rows(), key=lambda row: row.sequence)
    found = [(row.kind, row.value) for row in rows if row.kind in ("align", "release")]
    return [(kind, (one["checkpoint"], *(key for key in ("void", "withdrawn") if key in one))) for kind, one in found]


def prepared(desk: Any, attempt: int, number: int) -> Any:
    """The checkpoint of an aligned event, as it is triggered under a number."""
    desk.until(lambda: len(desk.aligned) == attempt, "the request of a checkpoint")
    prepare, checkpoint = desk.aligned[-1]
    wanted: list[bool] = []
    prepare(number, wanted.append)
    desk.until(lambda: wanted == [True], "its event")
    checkpoint.number = number
    return checkpoint


def test_an_aligned_event_is_released_behind_its_barrier(desk: Desk) -> None:
    event = desk.send_aligned()
    checkpoint = prepared(desk, 1, 9)
    desk.bench.query.commit(desk.offset(event.sequence, held=event))
    desk.tick()
    assert desk.rows(event) == [] and log_of(desk) == [("align", (9,))], "it takes effect behind the barrier"
    checkpoint.done.set()
    desk.until(lambda: log_of(desk)[1:] == [("release", (9,))], "the release")
    desk.bench.query.commit(desk.offset(event.sequence + 2))
    desk.comes(event, ("applied", "q", 1), ("acknowledged", "", None))
    assert len(desk.aligned) == 1


def test_aligned_events_that_wait_share_a_barrier(desk: Desk) -> None:
    for key in "abc":
        desk.send_aligned(key)
    checkpoint = prepared(desk, 1, 9)
    late = desk.send_aligned("d")
    checkpoint.done.set()
    desk.until(lambda: len(log_of(desk)) == 4, "the releases")
    assert log_of(desk) == [("align", (9,)), *[("release", (9,))] * 3]
    log = ControlLog(Ledger(desk.ledger.uri))
    assert log.configuration().user("q") == {"a": 1, "b": 1, "c": 1}
    assert log.configuration().aligned.keys() == {str(late.sequence)}
    prepared(desk, 2, 10).done.set()
    desk.until(lambda: log.configuration().user("q").keys() == {*"abcd"}, "the last one")


def test_no_barrier_is_asked_for_while_a_query_is_being_started(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be refused, as often as it is asked for."""
    with monkeypatch.context() as failed:
        failed.setattr(type(desk.run), "state", State.RESTARTING)
        event = desk.send_aligned()
        desk.until(lambda: event.event_id in desk.controller._open, "a look")
        desk.tick()
        assert desk.aligned == []
    prepared(desk, 1, 9)


def test_queries_go_on_when_nothing_comes_of_a_barriers_event(desk: Desk) -> None:
    """The query that it is addressed to has ended meanwhile."""
    event = desk.send_aligned()
    checkpoint = prepared(desk, 1, 9)
    desk.controller._close_event(event, Step("rejected", reason="nobody is left"))
    checkpoint.done.set()
    desk.until(lambda: log_of(desk)[1:] == [("release", (9, "withdrawn"))], "the release")
    log = ControlLog(Ledger(desk.ledger.uri)).configuration()
    assert log.user("q") == {} and not log.aligned


def test_a_release_is_written_once_the_ledger_is_writable_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.send_aligned()
    checkpoint = prepared(desk, 1, 9)
    with monkeypatch.context() as away:
        tried = []

        def fails(requests: Any) -> Any:
            tried.append(requests)
            raise OSError("the disk cannot be reached")

        away.setattr(desk.control, "accept", fails)
        checkpoint.done.set()
        desk.until(lambda: len(tried) > 1, "two attempts")
    desk.until(lambda: log_of(desk)[1:] == [("release", (9,))], "the release")


def test_a_start_gives_an_aligned_event_another_barrier(desks: Any) -> None:
    """The earlier start has ended before it was known what came of the first one."""
    first = desks()
    event = first.send_aligned()
    prepared(first, 1, 9)
    second = desks()
    prepared(second, 1, 10).done.set()
    wanted = [("align", (9,)), ("align", (10,)), ("release", (10,))]
    second.until(lambda: log_of(second) == wanted, "the release")
    assert ControlLog(Ledger(second.ledger.uri)).configuration().user("q") == {"a": 1}
    assert second.rows(event) == []


def test_a_start_finds_where_an_aligned_event_took_effect(desks: Any) -> None:
    """The earlier start had released it, and ended before it could say so."""
    first = desks()
    event = first.send_aligned()
    prepared(first, 1, 9).done.set()
    first.until(lambda: len(log_of(first)) == 2, "the release")
    first.bench.query.commit(first.offset(event.sequence, held=event))
    first.bench.query.commit(first.offset(event.sequence + 2))
    first.bench.query.commit(first.offset(event.sequence + 2))
    second = desks()
    second.run.restore(("fake-id", 2))
    second.comes(event, ("applied", "q", 1), ("acknowledged", "", None))


def test_an_event_of_aborted_checkpoints_waits_and_then_fails(desk: Desk) -> None:
    event = desk.send_aligned()
    for number in range(3):
        checkpoint = prepared(desk, number + 1, 9 + number)
        checkpoint.failure = CheckpointError("query 'q' was stopped")
        checkpoint.done.set()
    desk.comes(event, ("failed", "", None))
    assert "query 'q' was stopped" in desk.why(event)
    log = ControlLog(Ledger(desk.ledger.uri))
    desk.until(lambda: not log.configuration().aligned, "it is not waited for any more")
    assert log.configuration().user("q") == {}
    outcomes = [one for kind, one in log_of(desk) if kind == "release"]
    assert outcomes == [(9, "void"), (10, "void"), (11, "void"), (0, "withdrawn")]


@pytest.mark.parametrize(("took", "every"), [(0.0, 0.0), (0.02, 0.2), (0.1, 1.0), (30.0, 1.0)], ids=str)
def test_polls_take_a_tenth_of_the_time_at_most(took: float, every: float) -> None:
    assert poll_pace(took) == pytest.approx(every)
