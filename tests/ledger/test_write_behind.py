"""Rows on their way to the ledger: in order, by one thread at a time, without anybody waiting who has no need to."""

import threading
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from spark_ext.control.job_events import acknowledge, in_force, request
from spark_ext.errors import FencedError, StorageError
from spark_ext.ledger.schema import Row
from spark_ext.ledger.write_behind import WriteBehind
from tests.queries.fakes import FakeControlLog, FakeLedger, FakeWriter
from tests.support.waiting import until


class SlowWriter(FakeWriter):
    """A storage that answers when a test lets it."""

    def __init__(self) -> None:
        super().__init__(FakeLedger())
        self.gate = threading.Event()
        self.entered = threading.Event()

    def append(self, rows: Sequence[Row]) -> None:
        self.entered.set()
        assert self.gate.wait(10)
        super().append(rows)


@pytest.fixture
def writer() -> SlowWriter:
    return SlowWriter()


@pytest.fixture
def rows(writer: SlowWriter) -> Iterator[WriteBehind]:
    behind = WriteBehind(writer, "lab")  # type: ignore[arg-type]
    yield behind
    writer.gate.set()
    behind.close()


def test_whoever_puts_rows_never_waits_for_the_storage(writer: SlowWriter, rows: WriteBehind) -> None:
    rows.start(lambda: None)
    rows.put_soon("first")
    assert writer.entered.wait(10), "the thread writes what is due"
    rows.put_soon("second")
    rows.state("q", "RUNNING")
    assert writer.ledger.rows == []
    writer.gate.set()
    until(lambda: len(writer.ledger.rows) == 3, "the rows", 10)
    assert list[object](writer.ledger.rows[:2]) == ["first", "second"]


def test_a_state_begins_after_the_one_before_it(writer: SlowWriter, rows: WriteBehind) -> None:
    writer.gate.set()
    rows.start(lambda: None)
    first_look = datetime.now(timezone.utc)
    rows.state("q", "RUNNING")
    rows.state("q", "SCHEDULING", since=first_look)
    rows.state("other", "SCHEDULING", since=first_look)
    until(lambda: len(writer.ledger.rows) == 3, "the rows", 10)
    running, waiting, other = list[Any](writer.ledger.rows)
    assert running.since < waiting.since < running.since + timedelta(seconds=1) and other.since == first_look


def test_rows_written_now_do_not_overtake_those_under_way(writer: SlowWriter, rows: WriteBehind) -> None:
    rows.start(lambda: None)
    rows.put_soon("first")
    assert writer.entered.wait(10)
    now = threading.Thread(target=rows.write_now, args=(["now"],))
    now.start()
    rows.put("later")
    writer.gate.set()
    now.join(10)
    assert list[object](writer.ledger.rows) == ["first", "later", "now"]


def test_what_prevents_a_write_is_raised_where_it_is_asked_for(writer: SlowWriter, rows: WriteBehind) -> None:
    writer.gate.set()
    wake = threading.Event()
    rows.start(wake.set)
    writer.failures = [StorageError("full"), FencedError("taken over")]
    rows.put_soon("first")
    assert wake.wait(10)
    with pytest.raises(FencedError):
        rows.check()


def test_an_event_is_in_force_until_it_is_acknowledged() -> None:
    ledger = FakeLedger()
    behind = WriteBehind(FakeWriter(ledger), "lab")  # type: ignore[arg-type]
    request(FakeControlLog(ledger), "job", "drain")
    request(FakeControlLog(ledger), "source:in", "final_epoch", 1)
    assert [row.sequence for row in in_force(ledger.open_control_events(), "drain")] == [1]
    acknowledge(behind, "drain")
    behind.flush()
    left = ledger.open_control_events()
    assert in_force(left, "drain") == [] and len(in_force(left, "final_epoch")) == 1
