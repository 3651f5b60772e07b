"""What a start says of a driver that was lost before it, and how the heartbeat bounds its end."""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.heartbeat import FOLDER, Heartbeat, last_beat
from spark_ext.ledger.identity import Incarnation
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.schema import ExecutionStateRow, IncidentRow
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.observing.job_incidents import record_lost_driver
from spark_ext.testing.waiting import until
from spark_ext.views import status

T0 = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def started(ledger: Ledger, seconds: float) -> Incarnation:
    return start_incarnation(ledger, "shop", takeover=True, now=T0 + timedelta(seconds=seconds))


def lost(ledger: Ledger, incarnation: Incarnation) -> None:
    """As if the process had gone: nothing is left that could record its end."""
    forget(ledger.uri, incarnation.number)


def found_by(ledger: Ledger, seconds: float) -> list[IncidentRow]:
    incarnation = started(ledger, seconds)
    behind = WriteBehind(LedgerWriter(ledger, incarnation), "shop")
    record_lost_driver(ledger, incarnation, behind)
    behind.flush()
    rows = [row for row in ledger.table(IncidentRow).rows() if row.incarnation == incarnation.number]
    lost(ledger, incarnation)
    return rows


def test_a_lost_driver_is_an_incident_with_its_last_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ext.views.page.facts.driver_alive", lambda started: False)  # this process stands for it
    ledger = Ledger(str(tmp_path / "state"))
    first = started(ledger, 0)
    LedgerWriter(ledger, first).append(
        [ExecutionStateRow(operator="", state="RUNNING", since=T0 + timedelta(seconds=1), incarnation=1, reason="")]
    )
    seen = T0 + timedelta(hours=1)
    Heartbeat(ledger.uri, first).beat(seen)
    lost(ledger, first)
    assert status.status_of(ledger).timeline.spans[0].until == seen, "also before the next start"
    (row,) = found_by(ledger, 3610)
    assert (row.type, row.operator, row.action) == ("driver_lost", "job 'shop'", "continued by incarnation 2")
    assert row.labels == {"type": "SYSTEM", "origin": "spark"}
    assert (row.evidence["incarnation"], row.evidence["last_seen"]) == (1, seen.isoformat())
    assert not list((tmp_path / "state" / FOLDER).iterdir())
    (down,) = status.status_of(ledger).timeline.downs
    assert (down.since, down.until) == (seen, T0 + timedelta(seconds=3610))


def test_without_a_heartbeat_the_last_row_counts(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "state"))
    first = started(ledger, 0)
    seen = T0 + timedelta(seconds=7)
    LedgerWriter(ledger, first).append(
        [ExecutionStateRow(operator="", state="RUNNING", since=seen, incarnation=1, reason="")]
    )
    lost(ledger, first)
    (row,) = found_by(ledger, 60)
    assert row.evidence["last_seen"] == seen.isoformat()


def test_an_end_in_order_is_no_loss(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "state"))
    LedgerWriter(ledger, started(ledger, 0)).end("CANCELED")
    assert found_by(ledger, 60) == []


def test_a_driver_that_may_still_run_is_taken_over_and_not_lost(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "state"))
    started(ledger, 0)
    assert found_by(ledger, 60) == []


def test_a_copied_states_heartbeat_is_not_that_of_the_original(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "state"))
    first = started(ledger, 0)
    Heartbeat(ledger.uri, first).beat(T0)
    assert last_beat(ledger.uri, first.number, first.start) == T0
    assert last_beat(ledger.uri, first.number, first.start + 1) is None
    assert last_beat(ledger.uri, first.number, None) is None


def test_a_damaged_heartbeat_is_none(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "state"))
    first = started(ledger, 0)
    Heartbeat(ledger.uri, first).beat(T0)
    (file,) = (tmp_path / "state" / FOLDER).iterdir()
    for content in ("", "{}", json.dumps({"at": "noon"})):
        file.write_text(content)
        assert last_beat(ledger.uri, first.number, first.start) is None


def test_the_thread_of_history_beats_until_the_end(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "state"))
    first = started(ledger, 0)
    behind = WriteBehind(LedgerWriter(ledger, first), "shop", Heartbeat(ledger.uri, first), every=0.01)
    behind.start(lambda: None)

    def beat() -> datetime | None:
        return last_beat(ledger.uri, first.number, first.start)

    one = until(beat, "a beat")
    until(lambda: (now := beat()) is not None and now > one, "a further beat")
    behind.close()
    behind.end("CANCELED")
    assert beat() is None


def test_without_a_heartbeat_there_is_no_file(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "state"))
    behind = WriteBehind(LedgerWriter(ledger, started(ledger, 0)), "shop")
    behind.start(lambda: None)
    behind.close()
    behind.end("CANCELED")
    assert not (tmp_path / "state" / FOLDER).exists()
