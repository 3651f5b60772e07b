"""Listeners: each has a queue, a thread and a limit of its own, and none can harm the job or another one."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from spark_ext import masking
from spark_ext.errors import ConfigurationError
from spark_ext.incidents.dispatch import Deliveries, Dispatcher, Outlet
from spark_ext.incidents.loading import listeners_of
from spark_ext.incidents.registry import ListenerEntry, Registry, read_registry
from spark_ext.incidents.types import EventKind, IncidentChange, LifecycleEvent, MetricsContext, Notice, Severity
from spark_ext.listeners.contract import IncidentListener, JobStateListener
from tests.incidents.made import OPEN, RESOLVED, change, event
from tests.support.waiting import until

CONTEXT = MetricsContext(job="shop", incarnation=3, query="q", epoch=7)


class Recorder(IncidentListener):
    def __init__(self, first: Callable[[IncidentChange], object] = lambda _: None) -> None:
        self.first = first
        self.got: list[tuple[IncidentChange, MetricsContext]] = []
        self.digests: list[int] = []
        self.closed = threading.Event()

    def changed(self, change: IncidentChange, context: MetricsContext) -> None:
        self.first(change)
        self.got.append((change, context))

    def digest(self, notices: Sequence[Notice]) -> None:
        self.digests.append(len(notices))
        super().digest(notices)

    def close(self) -> None:
        self.closed.set()

    @property
    def ids(self) -> list[str]:
        return [one.incident.incident_id for one, _ in self.got]


def outlet(listener: IncidentListener, name: str = "pager", **fields: Any) -> Outlet:
    entry = ListenerEntry(use=name, **fields)
    return Outlet(name, listener, entry, lambda _: 60.0, lambda _: CONTEXT, entry.digest)


@contextmanager
def dispatching(listener: IncidentListener, **fields: Any) -> Iterator[Dispatcher]:
    dispatcher = Dispatcher([outlet(listener, **fields)], Deliveries())
    yield dispatcher
    dispatcher.close(10)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Lets listeners that hang go, at the end of a test too."""
    gate = threading.Event()
    yield gate
    gate.set()


def hanging(gate: threading.Event) -> Callable[[object], None]:
    def hang(_: object) -> None:
        assert gate.wait(20)

    return hang


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("spark-ext-incidents")}


def test_a_change_comes_with_its_context_and_in_order() -> None:
    listener = Recorder()
    with dispatching(listener) as dispatcher:
        for number in range(20):
            dispatcher.put(change(f"i{number:02}"))
    assert listener.ids == [f"i{number:02}" for number in range(20)]
    assert {context for _, context in listener.got} == {CONTEXT}
    assert listener.closed.is_set()
    dispatcher.put(change("after the end"))
    assert (dispatcher.figures["pager"].delivered, dispatcher.figures["pager"].dropped) == (20, 1)
    assert len(listener.got) == 20


def test_without_a_change_there_is_no_thread() -> None:
    before = threads()
    dispatcher = Dispatcher([outlet(Recorder())], Deliveries())
    assert threads() == before
    dispatcher.close(10)
    assert Dispatcher.of(Registry({}), [], lambda _: CONTEXT) is None


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({}, ["info", "late", "crit"]), ({"severity": "WARNING"}, ["late", "crit"]),
        ({"types": ["noted", "told"]}, ["info", "crit"]),
        ({"types": ["noted", "told"], "severity": "ERROR"}, ["crit"]), ({"types": "broken"}, []),
    ],
)  # fmt: skip
def test_types_and_severity(fields: dict[str, Any], ids: list[str]) -> None:
    listener = Recorder()
    with dispatching(listener, **fields) as dispatcher:
        dispatcher.put(change("info", severity=Severity.INFO, type_="noted"))
        dispatcher.put(change("late", severity=Severity.WARNING))
        dispatcher.put(change("crit", severity=Severity.CRITICAL, type_="told"))
        dispatcher.put(change("crit", OPEN, OPEN, severity=Severity.CRITICAL, type_="told", count=2))  # only counted
    assert listener.ids == ids


def test_one_that_hangs_delays_no_other(gate: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    stuck, good = Recorder(hanging(gate)), Recorder()
    late = outlet(stuck, "stuck", timeout=20, queue=2)
    dispatcher = Dispatcher([late, outlet(good)], Deliveries())
    with caplog.at_level(logging.WARNING):
        dispatcher.put(change("first"))
        until(lambda: late.figures.late == 1, "the time limit", 10)
        for number in range(10):
            dispatcher.put(change(f"i{number}"))
        until(lambda: len(good.got) == 11, "the changes for the other listener", 10)
        assert stuck.got == [] and late.figures.dropped == 8
        dispatcher.close(0.05)
    lines = [record.getMessage() for record in caplog.records]
    full, left = "its queue of 2 changes is full", "'stuck' was notified of 0 changes; 10 were dropped"
    for said in ("did not return within 0.02 s", full, left):
        assert sum(said in line for line in lines) == 1
    # It comes back when the job has ended: nothing more is given to it.
    gate.set()
    until(lambda: len(stuck.got) == 1, "its return", 10)
    until(lambda: not any("stuck" in name for name in threads()), "the end of its threads", 10)
    assert stuck.ids == ["first"] and not stuck.closed.is_set()


def test_one_that_comes_back_gets_what_has_waited(gate: threading.Event) -> None:
    listener = Recorder(hanging(gate))
    slow = outlet(listener, timeout=20)
    dispatcher = Dispatcher([slow], Deliveries())
    for name in ("a", "b", "c"):
        dispatcher.put(change(name))
    until(lambda: slow.figures.late == 1, "the time limit", 10)
    gate.set()
    dispatcher.close(10)
    assert listener.ids == ["a", "b", "c"]
    assert (slow.figures.delivered, slow.figures.late, slow.figures.dropped) == (2, 1, 0)


@pytest.mark.parametrize("problem", [ValueError("no such channel"), SystemExit(3)])
def test_one_that_raises_is_counted_and_logged_once(problem: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    def raises(one: IncidentChange) -> None:
        if one.incident.incident_id != "good":
            raise problem

    listener = Recorder(raises)
    with caplog.at_level(logging.WARNING), dispatching(listener) as dispatcher:
        for name in ("a", "b", "good", "c"):
            dispatcher.put(change(name))
    assert listener.ids == ["good"] and listener.closed.is_set()
    assert dispatcher.figures["pager"].failed == 3
    assert sum(f"{type(problem).__name__}: {problem}" in record.getMessage() for record in caplog.records) == 1


def test_a_digest_is_one_call_after_its_time() -> None:
    listener = Recorder()
    with dispatching(listener, digest="1 hour") as dispatcher:
        for number in range(100):
            dispatcher.put(change(f"i{number}"))
        assert listener.digests == []
    assert listener.digests == [100]
    listener = Recorder()
    with dispatching(listener, digest=50) as dispatcher:
        dispatcher.put(change("a"))
        until(lambda: listener.digests == [1], "the digest", 10)


def test_a_listeners_digest_holds_unless_configured_otherwise() -> None:
    class Patient(Recorder):
        digest_ms = 3_600_000

    for more, calls in (("", [2]), (", digest: 0", [])):
        registry, listener = read_registry(f"listeners: [{{use: 'x:Patient'{more}}}]", "shop.yaml"), Patient()
        dispatcher = Dispatcher.of(registry, [listener], lambda _: CONTEXT)
        assert dispatcher is not None
        for name in ("a", "b"):
            dispatcher.put(change(name))
        dispatcher.close(10)
        assert listener.digests == calls and listener.ids == ["a", "b"]


def test_a_held_resolution_is_told_at_the_end() -> None:
    listener = Recorder()
    with dispatching(listener) as dispatcher:
        for new, old in ((OPEN, None), (RESOLVED, OPEN), (OPEN, RESOLVED), (RESOLVED, OPEN)):
            dispatcher.put(change("a", new, old))
        until(lambda: len(listener.got) == 3, "all but the last", 10)
    assert [one.new for one, _ in listener.got] == [OPEN, RESOLVED, OPEN, RESOLVED]


def test_secrets_are_masked() -> None:
    masking.remember("hunter2-hunter2")
    listener = Recorder()
    secret = "hunter2-hunter2"
    with dispatching(listener) as dispatcher:
        dispatcher.put(change("a", what=f"with {secret}", action=secret, labels={"url": secret}))
    assert "hunter2" not in str(listener.got)
    assert listener.got[0][0].incident.labels == {"url": "***"}


def test_a_context_that_cannot_be_made_keeps_nothing_back() -> None:
    def broken(_: object) -> MetricsContext:
        raise KeyError("q")

    listener = Recorder()
    dispatcher = Dispatcher([Outlet("x", listener, ListenerEntry(use="x"), lambda _: 60.0, broken, 0)], Deliveries())
    dispatcher.put(change("a"))
    dispatcher.close(10)
    assert listener.got[0][1] == MetricsContext()


class States(JobStateListener):
    def __init__(self, first: Callable[[LifecycleEvent], object] = lambda _: None) -> None:
        self.first = first
        self.got: list[str] = []

    def happened(self, event: LifecycleEvent, context: MetricsContext) -> None:
        self.first(event)
        assert context == CONTEXT
        self.got.append(f"{event.old} -> {event.new}: {event.cause}")


class Misled(JobStateListener):
    events = ("incident",)

    def happened(self, event: LifecycleEvent, context: MetricsContext) -> None: ...


def test_a_change_is_told_once_all_that_want_it_have_taken_it() -> None:
    def refuse(_: IncidentChange) -> object:
        raise OSError("no")

    told: list[tuple[str, str]] = []
    deliveries = Deliveries(lambda change: told.append((change.incident.incident_id, change.new.value)))

    def of(first: Callable[[IncidentChange], object] = lambda _: None, **fields: Any) -> Outlet:
        entry = ListenerEntry(use="x", **fields)
        return Outlet("x", Recorder(first), entry, lambda _: 0.0, lambda _: CONTEXT, entry.digest, deliveries.delivered)

    dispatcher = Dispatcher([of(), of(digest="10 ms"), of(refuse, severity=Severity.ERROR)], deliveries)
    dispatcher.put(change("a"))
    dispatcher.put(change("b", severity=Severity.CRITICAL))
    dispatcher.put(change("a", RESOLVED, OPEN, seconds=1))
    dispatcher.close(10)
    assert told == [("a", "OPEN"), ("a", "RESOLVED")], "one has not taken b"


def test_events_come_in_order_to_those_who_ask_for_their_kind() -> None:
    by_class, by_file, pager = States(), States(), Recorder()
    outlets = [outlet(by_class), outlet(by_file, "narrow", events=["checkpoint"]), outlet(pager, "incidents")]
    dispatcher = Dispatcher(outlets, Deliveries())
    assert dispatcher.wanted == {EventKind.STATE, EventKind.SOURCE, EventKind.CHECKPOINT, EventKind.JOB}
    masking.remember("hunter2-hunter2")
    for number in range(20):
        dispatcher.tell(event("RUNNING", old="RESTARTING", cause=f"{number} hunter2-hunter2"))
    dispatcher.tell(event("COMPLETED", EventKind.CHECKPOINT, cause="last"))
    dispatcher.tell(event("committed", EventKind.EPOCH))
    dispatcher.put(change("a"))
    dispatcher.close(10)
    assert by_class.got == [f"RESTARTING -> RUNNING: {number} ***" for number in range(20)] + [
        "None -> COMPLETED: last"
    ]
    assert by_file.got == ["None -> COMPLETED: last"] and pager.ids == ["a"]
    assert Dispatcher([outlet(Recorder())], Deliveries()).wanted == frozenset()


def test_a_listener_of_states_harms_nobody(gate: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    stuck, raising, good = States(hanging(gate)), States(lambda _: 1 / 0), States()
    late = outlet(stuck, "stuck", timeout=20, queue=2)
    dispatcher = Dispatcher([late, outlet(raising, "raising"), outlet(good)], Deliveries())
    with caplog.at_level(logging.WARNING):
        dispatcher.tell(event("RUNNING"))
        until(lambda: late.figures.late == 1, "the time limit", 10)
        for _ in range(10):
            dispatcher.tell(event("PAUSED"))
        until(lambda: len(good.got) == 11, "the events for the other listener", 10)
        assert late.figures.dropped == 8
        gate.set()
        dispatcher.close(10)
    assert dispatcher.figures["raising"].failed == 11
    assert sum("ZeroDivisionError" in record.getMessage() for record in caplog.records) == 1


def test_a_digest_has_changes_and_events_in_their_order() -> None:
    class Both(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.order: list[str] = []

        def changed(self, change: IncidentChange, context: MetricsContext) -> None:
            self.order.append(change.new.value)

        def happened(self, event: LifecycleEvent, context: MetricsContext) -> None:
            self.order.append(event.new)

    listener = Both()
    with dispatching(listener, digest="1 hour", events="state") as dispatcher:
        dispatcher.tell(event("RESTARTING"))
        dispatcher.put(change("a"))
        dispatcher.tell(event("RUNNING"))
    assert listener.order == ["RESTARTING", "OPEN", "RUNNING"] and listener.digests == [3]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("use: log\n    events: [stat]", "line 3: .*'state'"),
        ("use: log\n    events: [incident]", "chosen by 'types'"),
        (f"use: '{__name__}:Misled'", "chosen by 'types'"),
    ],
)
def test_unknown_kinds_are_refused(entry: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        listeners_of(read_registry(f"listeners:\n  - {entry}\n", "shop.yaml"))


@pytest.mark.parametrize(
    "bad", [("Bad-Name", 1.0, ""), ("late", -1.0, ""), ("late", float("nan"), ""), ("late", 1.0, "x" * 201)]
)
def test_a_metric_without_a_bound_is_refused(bad: tuple[str, float, str]) -> None:
    got: list[tuple[str, float, str, bool]] = []
    context = MetricsContext(reports=lambda *given: got.append(given))
    context.count("late", label="a")
    context.gauge("late", -2)
    with pytest.raises(ValueError, match=r"late|Bad-Name"):
        context.count(bad[0], bad[1], label=bad[2])
    assert got == [("late", 1.0, "a", True), ("late", -2.0, "", False)]
    MetricsContext().count("late")  # the job is not measured
