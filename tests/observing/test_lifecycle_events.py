"""What listeners of states are told at a start, and that no row harms what it comes from."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ext.incidents.dispatch import Deliveries, Dispatcher, Outlet
from spark_ext.incidents.registry import ListenerEntry
from spark_ext.incidents.types import LifecycleEvent, MetricsContext
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.identity import Incarnation
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.listeners.contract import JobStateListener
from spark_ext.model.latency import Hop, Marker
from spark_ext.observing.lifecycle_events import LifecycleEvents
from tests.ledger.rows import checkpoint, epoch, flag, state


class States(JobStateListener):
    events = ("job", "state", "source", "checkpoint", "latency", "epoch")

    def __init__(self) -> None:
        self.got: list[tuple[str, str, str]] = []

    def happened(self, event: LifecycleEvent, context: MetricsContext) -> None:
        self.got.append((event.kind.value, event.source or event.query, event.new))


def told(incarnation: Incarnation, listener: States) -> tuple[LifecycleEvents, Dispatcher]:
    outlet = Outlet("states", listener, ListenerEntry(use="states"), lambda _: 60.0, lambda _: MetricsContext(), 0)
    dispatcher = Dispatcher([outlet], Deliveries())
    watched: Any = lambda: [SimpleNamespace(uid="q", open_sources=frozenset({"s"}))]  # noqa: E731
    return LifecycleEvents(incarnation, dispatcher, watched), dispatcher


def test_a_start_tells_what_was_done_to_the_job_before_it(tmp_path: Path) -> None:
    ledger, listener = Ledger(str(tmp_path / "state")), States()
    LedgerWriter(ledger, start_incarnation(ledger, "lab")).end("FAILED")
    restore = LedgerWriter(ledger, start_incarnation(ledger, "lab", for_restore=True))
    restore.restored(2, 1, "savepoints/1", {})
    restore.end("restore")
    third = start_incarnation(ledger, "lab")
    writer = LedgerWriter(ledger, third)
    writer.new_lineage("q", "on request")
    events, dispatcher = told(third, listener)
    behind = WriteBehind(writer, "lab", tap=events.tap)
    events.begin(ledger.jobs())
    behind.state("q", "RUNNING")
    behind.write_now([checkpoint(1)])
    behind.end("FINISHED")
    dispatcher.close(10)
    jobs = [("", "started"), ("", "restored"), ("", "ended"), ("", "started"), ("q", "reset")]
    assert listener.got == [
        *(("job", query, new) for query, new in jobs), ("state", "q", "RUNNING"), ("source", "s", "RUNNING"),
        ("checkpoint", "", "COMPLETED"), ("job", "", "ended"),
    ]  # fmt: skip


def test_a_row_that_cannot_be_told_harms_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    listener = States()
    events, dispatcher = told(Incarnation("lab", "1", 1, 1), listener)
    broken: Any = SimpleNamespace()
    with caplog.at_level(logging.ERROR):
        for row in (broken, state("RUNNING"), epoch(1), flag(1), Marker("s", 0, (Hop("q", 5),))):
            events.tap(row)
        for _ in range(2):
            events._maker = broken
            events.tap(state("PAUSED"))
    dispatcher.close(10)
    assert [new for _, _, new in listener.got] == ["RUNNING", "committed", "arrived"]
    assert sum("no lifecycle event could be made" in one for one in caplog.messages) == 1
