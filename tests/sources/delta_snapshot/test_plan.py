"""`delta_snapshot` at the level of its contract, on tables written by delta-rs."""

import json
import os
import random
import shutil
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.errors import ConfigurationError, DataError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import Channel, Limit
from spark_ext.sources.delta_snapshot.commits import parse
from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from spark_ext.testing.source_kit import drive
from tests.sources.files.files_kit import read_all


def options(path: Path, **more: str) -> dict[str, str]:
    return {"uid": "delta-test", "path": str(path), **more}


def source(path: Path, schema: str | None = None, **more: str) -> DeltaSnapshot:
    made = DeltaSnapshot(options(path, **more))
    made.declared = columns(schema) if schema else made.schema()
    return made


def ids(made: DeltaSnapshot) -> list[int]:
    return sorted(row["id"] for row in read_all(made))


def append(path: Path, first: int, rows: int, mode: Literal["append", "overwrite"] = "append") -> None:
    write_deltalake(path, pa.table({"id": pa.array(range(first, first + rows), pa.int64())}), mode=mode)


@given(files=st.lists(st.integers(1, 40), min_size=1, max_size=5), seed=st.integers(0, 2**32))
@settings(max_examples=8, deadline=None)
def test_the_pinned_version_once_while_the_table_grows(
    tmp_path_factory: pytest.TempPathFactory, files: list[int], seed: int
) -> None:
    table = tmp_path_factory.mktemp("t") / "table"
    for index, rows in enumerate(files):
        append(table, index * 100, rows)

    def grow(epoch: int) -> None:
        if epoch and epoch % 3 == 0:
            append(table, 1_000_000 + epoch, 1)

    trace = drive(DeltaSnapshot, options(table), rng=random.Random(seed), between=grow)
    assert sorted(trace.all_rows()["id"].to_pylist()) == [
        index * 100 + n for index, rows in enumerate(files) for n in range(rows)
    ]
    assert {name.split("/")[0] for name in trace.finished} == {f"v{len(files) - 1}"}


def test_version_and_timestamp(tmp_path: Path) -> None:
    base = 1_700_000_000_000
    for version in range(3):
        append(tmp_path, version * 10, 2)
        dated(tmp_path, version, base + version * 1000)
    assert ids(source(tmp_path, version="1")) == [0, 1, 10, 11]
    for at, versions in [(base, 1), (base + 999, 1), (base + 1000, 2), (base + 2000, 3)]:
        assert len(ids(source(tmp_path, timestamp=iso(at)))) == versions * 2, at
    assert len(ids(source(tmp_path, timestamp="2999-01-01"))) == 6
    for more, message in [
        ({"version": "9"}, "version 9"),
        ({"timestamp": iso(base - 1)}, "no commit at or before .* the oldest is version 0 of 2023-11-14 22:13:20Z"),
        ({"timestamp": "yesterday"}, "is not a timestamp"),
        ({"timestamp": "2001-01-01", "version": "1"}, "exclude"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            DeltaSnapshot(options(tmp_path, **more)).schema()
    with pytest.raises(ConfigurationError, match="is not a Delta table"):
        DeltaSnapshot(options(tmp_path / "absent")).schema()


def test_a_version_forgotten_by_the_log_is_no_missing_table(tmp_path: Path) -> None:
    for version in range(3):
        append(tmp_path, version, 1)
    begun = list(source(tmp_path, version="1").discover())
    DeltaTable(tmp_path).create_checkpoint()
    for version in range(2):
        (tmp_path / f"_delta_log/{version:020}.json").unlink()
    with pytest.raises(ConfigurationError, match=r"version 1 of the Delta table .* cannot be loaded"):
        DeltaSnapshot(options(tmp_path, version="1")).schema()
    with pytest.raises(DataError, match=r"version 1 of .*, which this source reads, can no longer be loaded"):
        later = source(tmp_path)
        later.resume([Channel(begun[0].id, 0, begun[0].data)], frozenset())
        list(later.discover())
    assert ids(source(tmp_path, version="2")) == [0, 1, 2]


@pytest.mark.parametrize("path", ["../a.parquet", "p=1/%2E%2E/%2e%2e/a.parquet", "file:///t/../../etc/a.parquet"])
def test_a_file_that_the_log_names_outside_the_table_is_refused(tmp_path: Path, path: str) -> None:
    append(tmp_path / "t", 0, 1)
    entry = tmp_path / "t" / f"_delta_log/{0:020}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["path"] = path
    entry.write_text("\n".join(map(json.dumps, actions)))
    shutil.copy(next((tmp_path / "t").glob("*.parquet")), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"damaged at version 0: it names the file .*, and a path in a table has no"):
        source(tmp_path / "t").discover()
    with pytest.raises(ValueError, match="a path in a table has no"):
        parse(0, entry.read_text())


def test_partition_values_are_columns_of_their_type(tmp_path: Path) -> None:
    stamp = datetime(2024, 1, 1, 10, 11, 12, 500_000, timezone.utc)
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()), "s": ["a b/c%é", None], "d": pa.array([date(2024, 1, 1), None]),
            "t": pa.array([stamp, None], pa.timestamp("us", "UTC")),
            "c": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)), "b": [True, None],
        }
    )  # fmt: skip
    write_deltalake(tmp_path, rows, partition_by=["s", "d", "t", "c", "b"])
    assert sorted(read_all(source(tmp_path)), key=lambda row: row["id"]) == rows.to_pylist()


def test_columns_added_later_are_null_in_older_files(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1], "s": pa.array([{"x": 1}], pa.struct([("x", pa.int32())]))}))
    wider = pa.struct([("x", pa.int32()), ("y", pa.string())])
    write_deltalake(
        tmp_path,
        pa.table({"id": [2], "s": pa.array([{"x": 2, "y": "b"}], wider), "n": [5]}),
        mode="append",
        schema_mode="merge",
    )
    assert sorted(read_all(source(tmp_path)), key=lambda row: row["id"]) == [
        {"id": 1, "s": {"x": 1, "y": None}, "n": None},
        {"id": 2, "s": {"x": 2, "y": "b"}, "n": 5},
    ]
    assert [set(row) for row in read_all(source(tmp_path, "n bigint, id bigint"))] == [{"n", "id"}] * 2
    with pytest.raises(ConfigurationError, match="'z' is declared as int, but is not in the table"):
        list(source(tmp_path, "z int").discover())
    with pytest.raises(ConfigurationError, match="'id' is declared as int, but has the type bigint"):
        list(source(tmp_path, "id int").discover())


def test_a_vacuumed_file_is_reported_as_such(tmp_path: Path) -> None:
    append(tmp_path, 0, 5)
    made = source(tmp_path)
    (channel,) = made.discover()
    step = made.advance(channel, 0, Limit())
    write_deltalake(tmp_path, pa.table({"id": pa.array([1], pa.int64())}), mode="overwrite")
    DeltaTable(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(DataError, match="no longer exists") as refused:
        list(made.read(channel, 0, step.end))
    assert "vacuum" in refused.value.do
    assert "version 0" in refused.value.do


def test_another_version_than_the_one_begun_is_refused(tmp_path: Path) -> None:
    append(tmp_path, 0, 1)
    append(tmp_path, 1, 1)
    made = source(tmp_path, version="1")
    with pytest.raises(ConfigurationError, match="is 1, but this source has begun with 0"):
        made.resume([], frozenset({"v0/part.parquet"}))


def test_an_empty_table_ends_at_once(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path, Schema.from_arrow(pa.schema([("id", pa.int64())])))
    trace = drive(DeltaSnapshot, options(tmp_path))
    assert (trace.ended, trace.epochs, trace.finished) == (True, 1, [])


def dated(table: Path, version: int, at: int) -> None:
    """Have a version's file in the log be of a time, in ms; what is beyond ms must not count."""
    os.utime(table / f"_delta_log/{version:020}.json", ns=(at * 1_000_000 + 999_999,) * 2)


def iso(at: int) -> str:
    """A time in ms as the option `timestamp` has it."""
    return datetime.fromtimestamp(at / 1000, timezone.utc).isoformat(timespec="milliseconds")
