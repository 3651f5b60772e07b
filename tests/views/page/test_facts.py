"""What was added to a ledger is read, as if all of it were read anew."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_ext.ledger import Ledger
from spark_ext.ledger.heartbeat import Heartbeat
from spark_ext.ledger.schema import EpochRow, FinishedRow, IncidentRow, Row
from spark_ext.ledger.tables import LedgerTable
from spark_ext.views.page.facts import Facts, FactsReader, Resets, finished_channels
from tests.control.states import State
from tests.incidents.made import T0
from tests.ledger.rows import epoch, flag, incident, latency, state


def same(one: Facts, other: Facts) -> bool:
    names = [name for name in vars(one) if name != "epochs"]
    arrays = [name for name in vars(one.epochs) if name != "queries"]
    return all(getattr(one, name) == getattr(other, name) for name in names) and all(
        np.array_equal(getattr(one.epochs, name), getattr(other.epochs, name)) for name in arrays
    )


def read_all_but(*row_types: type[Row]) -> Callable[..., pa.Table]:
    read = LedgerTable.read

    def found(table: LedgerTable[Any], *arguments: Any, **options: Any) -> pa.Table:
        assert table.row_type not in row_types
        return read(table, *arguments, **options)

    return found


def test_latencies_are_the_last_ones_of_the_newest_start(tmp_path: Path) -> None:
    made = State(tmp_path / "state")
    reader = FactsReader(Ledger(made.path))
    assert reader.read().latencies == {}
    number = made.writer.incarnation.number
    made.writer.append([latency(250, incarnation=number), latency(90, markers=4, incarnation=number)])
    made.writer.append([latency(7, incarnation=number + 1, markers=9)])
    found = reader.read()
    assert [(one.source, one.ms) for one in found.latencies["q"]] == [("s", 90)]
    assert reader.read() is found


def test_only_what_is_new_is_read_and_nothing_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = State(tmp_path / "state")
    reader = FactsReader(Ledger(made.path))
    first = reader.read()
    assert len(first.epochs) == 0 and first.incidents == () and reader.read() is first
    for number in range(5):
        made.writer.append(epoch(number, "q"))
        made.writer.append(epoch(number, "r"))
    found = reader.read()
    assert len(found.epochs) == 10 and found.offsets["q"] == [{"uid": "s", "at": 4}]
    assert len(first.epochs) == 0
    for row in (replace(epoch(5, "q"), offsets=None), state("RUNNING", "q"), incident(1)):
        made.writer.append(row)
    # Of the epochs the new ones are enough.
    monkeypatch.setattr(LedgerTable, "read", read_all_but(EpochRow))
    later = reader.read()
    assert later.epochs.epoch.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4]
    assert [row["incident_id"] for row in later.incidents] == ["i1"] and later.states[0]["state"] == "RUNNING"
    assert later.incidents[0]["labels"] == {"type": "USER_CODE"}
    assert later.offsets["q"] == [{"uid": "s", "at": 4}]  # Spark had deleted those of the newest epoch
    assert reader.read() is later


def test_of_flags_and_incidents_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = State(tmp_path / "state")
    made.writer.append([flag(1), flag(2), incident(1)])
    reader = FactsReader(Ledger(made.path))
    first = reader.read()
    monkeypatch.setattr(LedgerTable, "read", read_all_but(FinishedRow, IncidentRow))
    made.writer.append([flag(2), flag(3, lineage=2), flag(0, kind="source"), incident(2)])
    later = reader.read()
    assert [row["incident_id"] for row in later.incidents] == ["i1", "i2"]
    assert [(row["kind"], row["source"]) for row in later.finished] == [("source", "s")]
    assert later.channels == {("q", "s", 1): {"c1": (1, False), "c2": (1, False)}, ("q", "s", 2): {"c3": (1, False)}}
    assert first.channels == {("q", "s", 1): {"c1": (1, False), "c2": (1, False)}} and first.finished == ()
    resets = Resets({"q": {"lineage": 2}})
    assert finished_channels(later, resets) == {("q", "s"): {"c3": (1, False)}}
    assert finished_channels(later, Resets({}))["q", "s"].keys() == {"c1", "c2", "c3"}
    monkeypatch.undo()
    afresh = FactsReader(Ledger(made.path)).read()
    ordered = sorted(afresh.incidents, key=lambda row: str(row["incident_id"]))
    assert same(later, replace(afresh, incidents=tuple(ordered)))


@pytest.mark.slow(1, "seventy commits to a Delta log")
def test_a_table_compacted_or_with_many_new_commits_is_reread(tmp_path: Path) -> None:
    made = State(tmp_path / "state")
    reader = FactsReader(Ledger(made.path))
    made.writer.append(epoch(0))
    reader.read()
    for number in range(1, 70):
        made.ledger.table(EpochRow).append([epoch(number)])
    with made.ledger.table(EpochRow).opened() as table:
        assert table is not None
        table.optimize.compact()
    made.ledger.table(EpochRow).append([epoch(70)])
    assert same(reader.read(), FactsReader(Ledger(made.path)).read())
    assert reader.read().epochs.epoch.tolist() == list(range(71))


def test_a_ledger_without_newer_tables(tmp_path: Path) -> None:
    made = State(tmp_path / "state")
    for name in ("incidents", "exchanges", "definitions"):
        shutil.rmtree(tmp_path / "state" / "ledger" / name)
    found = FactsReader(Ledger(made.path)).read()
    assert found.changes == found.incidents == found.definitions == () and found.alive is True


def test_a_heartbeat_is_read_although_the_ledger_has_not_changed(tmp_path: Path) -> None:
    made = State(tmp_path / "state")
    reader = FactsReader(Ledger(made.path))
    heartbeat = Heartbeat(made.path, made.incarnation)
    for at in (T0, T0 + timedelta(seconds=5)):
        heartbeat.beat(at)
        found = reader.read()
        assert found.beats == {1: at} and reader.read() is found


def test_a_driver_that_dies_writes_nothing_and_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = FactsReader(Ledger(State(tmp_path / "state").path))
    first = reader.read()
    monkeypatch.setattr("spark_ext.views.page.facts.driver_alive", lambda row: False)
    later = reader.read()
    assert (first.alive, later.alive) == (True, False) and reader.read() is later
