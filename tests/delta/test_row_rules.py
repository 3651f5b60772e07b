"""Columns that may not be null, asked for again and again, and texts of `char(n)` and `varchar(n)`."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import ArrayType, PrimitiveType
from pyspark.sql.types import ArrayType as SparkArray
from pyspark.sql.types import StringType, StructType

from spark_ext.delta.fenced_log import FencedLog
from spark_ext.delta.row_rules import FRESH, LENGTH_NOTE, row_rules
from spark_ext.delta.sink_table import TargetErrors
from spark_ext.errors import DataError, StorageError, UnsupportedTableError
from spark_ext.storage import Location
from spark_ext.testing.sink_bad_rows import BadRowsKit
from spark_ext.testing.sink_driver import STATES
from tests.conformance.test_commit_delta import DeltaTarget
from tests.sinks.delta_2pc.delta_kit import Driver, ddl, ids

Opened = list[str]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    seen: Opened = []
    reopen = FencedLog.reopen

    def noted(log: FencedLog) -> None:
        seen.append(log.uri)
        reopen(log)

    monkeypatch.setattr(FencedLog, "reopen", noted)
    yield seen


class Clock:
    def __init__(self) -> None:
        self.now, self.stopped = 0.0, False

    def __call__(self) -> float:
        self.now += 0.0 if self.stopped else 2 * FRESH
        return self.now


LATER = Clock()


def asked(path: Path, uid: str = "out", clock: Clock = LATER) -> frozenset[str]:
    return row_rules(Location.of(str(path), {}), TargetErrors(f"sink '{uid}'"), clock).not_null


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


def strict(path: Path) -> None:
    """A table with the columns `id`, `c char(3)`, `v varchar(3)` and `p varchar(2)`, as Spark declares them."""
    lengths = {"c": "char(3)", "v": "varchar(3)", "p": "varchar(2)"}
    texts = [Field(name, PrimitiveType("string"), metadata={LENGTH_NOTE: kind}) for name, kind in lengths.items()]
    DeltaTable.create(str(path), Schema([Field("id", PrimitiveType("long")), *texts]), partition_by=["p"])


FITS: Mapping[str, Any] = {"id": 0, "c": "äbc", "v": "漢字字", "p": None}
TOO_LONG = [{"c": "abcd"}, {"c": "ab  "}, {"v": "abcd"}, {"v": "abc "}, {"p": "abc"}]


@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "key": "id"}])
@pytest.mark.parametrize("bad", TOO_LONG)
def test_a_text_that_is_too_long_is_refused(tmp_path: Path, bad: Mapping[str, str], options: dict[str, str]) -> None:
    """As by Spark, spaces at its end included; a shorter one is stored as it is, as by Spark."""
    strict(tmp_path / "t")
    schema = ddl("id long, c string, v string, p string")
    driver = Driver(tmp_path / "t", schema, options={"partition_by": "p", **options}).claim()
    driver.run(0, [FITS, {**FITS, "id": 1, "c": "a", "v": ""}])
    (name,) = bad
    with pytest.raises(DataError, match=rf"column '{name}' is (var)?char\(\d\) in the table, and a text has \d"):
        driver.run(1, [{**FITS, "id": 2}, {**FITS, "id": 3, **bad}])
    assert ids(tmp_path / "t") == [0, 1]


def test_rows_that_are_too_long_are_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATES, str(tmp_path / "states"))
    strict(tmp_path / "t")
    kit = BadRowsKit(DeltaTarget(tmp_path / "t"), ddl("id long, c string, v string, p string"), partition_by="p")
    kit.driver().claim()
    kit.driver().run(0, [FITS, *({**FITS, "id": number + 1, **bad} for number, bad in enumerate(TOO_LONG))])
    kit.settle(0)
    assert (ids(tmp_path / "t"), kit.table()) == ([0], [1, 2, 3, 4, 5])


def test_lengths_inside_of_a_column_are_not_checked_and_refused(tmp_path: Path) -> None:
    kind = ArrayType(PrimitiveType("string"), contains_null=True)
    DeltaTable.create(str(tmp_path), Schema([Field("a", kind, metadata={LENGTH_NOTE: "array<varchar(3)>"})]))
    schema = StructType().add("a", SparkArray(StringType()))
    with pytest.raises(UnsupportedTableError, match=r"char\(n\) or varchar\(n\) inside of the column 'a'"):
        Driver(tmp_path, schema).claim()
