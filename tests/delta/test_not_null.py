"""Columns that may not be null, asked for again and again: the table is opened once, and each answer is of now."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType

from spark_ext.datafiles.location import Location
from spark_ext.delta.fenced_log import FencedLog
from spark_ext.delta.not_null import FRESH, not_null
from spark_ext.delta.target_errors import TargetErrors
from spark_ext.errors import StorageError

Opened = list[str]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """The tables that are opened."""
    seen: Opened = []
    reopen = FencedLog.reopen

    def noted(log: FencedLog) -> None:
        seen.append(log.uri)
        reopen(log)

    monkeypatch.setattr(FencedLog, "reopen", noted)
    yield seen


class Clock:
    """Each reading is later than the previous answer expires, unless the clock is stopped."""

    def __init__(self) -> None:
        self.now, self.stopped = 0.0, False

    def __call__(self) -> float:
        self.now += 0.0 if self.stopped else 2 * FRESH
        return self.now


LATER = Clock()


def asked(path: Path, uid: str = "out", clock: Clock = LATER) -> frozenset[str]:
    return not_null(Location.of(str(path), {}), TargetErrors(f"sink '{uid}'"), clock)


def create(path: Path, **nullable: bool) -> None:
    fields = [Field(name, PrimitiveType("long"), nullable=may) for name, may in nullable.items()]
    DeltaTable.create(str(path), Schema(fields))


def append(path: Path) -> None:
    write_deltalake(str(path), pa.table({"id": pa.array([1], pa.int64())}), mode="append")


def test_one_table_is_opened_once(tmp_path: Path, opened: Opened) -> None:
    table = tmp_path / "table"
    assert asked(table) == frozenset()  # not there yet
    create(table, id=True, at=False, n=False)
    assert asked(table) == {"at", "n"}
    del opened[:]
    assert asked(table) == {"at", "n"}
    assert opened == []


def test_an_answer_holds_for_some_seconds(tmp_path: Path) -> None:
    table, clock = tmp_path / "table", Clock()
    clock.stopped = True
    assert asked(table, clock=clock) == frozenset()
    create(table, id=False)
    assert asked(table, clock=clock) == {"id"}, "that there is no table is no answer that holds"
    shutil.rmtree(table)
    create(table, id=True)
    clock.now += FRESH / 2
    assert asked(table, clock=clock) == {"id"}
    clock.now += FRESH
    assert asked(table, clock=clock) == frozenset()


def test_a_change_of_the_table_is_seen(tmp_path: Path, opened: Opened) -> None:
    table = tmp_path / "table"
    create(table, id=True)
    assert asked(table) == frozenset()
    append(table)
    DeltaTable(str(table)).alter.add_columns([Field("at", PrimitiveType("long"), nullable=True)])
    assert asked(table) == frozenset()
    assert len(opened) == 1

    shutil.rmtree(table)
    create(table, id=False)
    assert asked(table) == {"id"}

    shutil.rmtree(table)
    assert asked(table) == frozenset()


def test_an_error_names_the_sink_that_asks(tmp_path: Path) -> None:
    table = tmp_path / "table"
    create(table, id=False)
    assert asked(table, "first") == {"id"}
    for file in (table / "_delta_log").iterdir():
        file.write_text("not JSON")
    with pytest.raises(StorageError, match="sink 'second'"):
        asked(table, "second")
