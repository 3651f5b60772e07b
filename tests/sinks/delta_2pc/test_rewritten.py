"""Files that delta-rs makes, in merges and compactions: what the log says of them holds, and keys are found in them."""

import json
import math
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from pyspark.sql import types as spark

from spark_ext.delta.optimize import Optimize, run
from spark_ext.errors import ConfigurationError, DataError, UnsupportedTableError
from spark_ext.model.commits import Task
from tests.sinks.delta_2pc.delta_kit import Driver, ddl, table

LARGE = 10**37
FAR = 2_932_897  # The first day of the year 10000
TASK = Task("out", "q", 0, 0, 0, 1, 0)


def _keyed(kind: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField("k", kind), spark.StructField("v", spark.LongType())])


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (spark.DecimalType(38, 0), [LARGE, LARGE + 1, -LARGE - 1]),
        (spark.DecimalType(18, 3), [Decimal("123456789012345.678"), Decimal("999999999999999.999")]),
        (spark.DecimalType(16, 0), [10**16 - 1, 10**16 - 3]),
        (spark.DecimalType(15, 15), [Decimal("0.999999999999999"), Decimal("-0.100000000000001")]),
        (spark.DecimalType(15, 0), [10**15 - 1, 1 - 10**15]),
    ],
)
def test_decimal_keys_are_found(tmp_path: Path, kind: spark.DecimalType, keys: list[int | Decimal]) -> None:
    driver = Driver(tmp_path / "t", _keyed(kind), options={"mode": "upsert", "key": "k"})
    rows = [{"k": Decimal(key), "v": 0} for key in keys]
    for epoch, row in enumerate([*rows, *rows]):
        driver.run(epoch, [{**row, "v": epoch}])
    assert sorted(table(tmp_path / "t").column("v").to_pylist()) == list(range(len(rows), 2 * len(rows)))
    DeltaTable(tmp_path / "t").optimize.compact()
    driver.run(9, [{**row, "v": 9} for row in rows])
    assert table(tmp_path / "t").column("v").to_pylist() == [9] * len(rows)


def test_a_decimal_key_is_found_in_a_file_of_delta_rs(tmp_path: Path) -> None:
    """The bounds that it has noted are those of the greatest integer of 64 bits."""
    schema = pa.schema([("k", pa.decimal128(38, 0)), ("v", pa.int64())])
    write_deltalake(tmp_path / "t", pa.Table.from_pylist([{"k": Decimal(LARGE), "v": 1}], schema=schema))
    Driver(tmp_path / "t", _keyed(spark.DecimalType(38, 0)), options={"mode": "upsert", "key": "k"}).run(
        0, [{"k": Decimal(LARGE), "v": 2}]
    )
    assert table(tmp_path / "t").to_pylist() == [{"k": Decimal(LARGE), "v": 2}]


FIELDS = (("d", spark.DecimalType(38, 2)), ("e", spark.DecimalType(15, 2)), ("f", spark.DoubleType()))
INNER = spark.StructType([spark.StructField(name, kind) for name, kind in FIELDS])
FLAT = spark.StructType([spark.StructField("id", spark.LongType()), *INNER.fields])
NESTED = spark.StructType([spark.StructField("id", spark.LongType()), spark.StructField("s", INNER)])


@pytest.mark.parametrize("schema", [FLAT, NESTED])
@pytest.mark.parametrize("how", ["merge", "compact", "z-order"])
def test_values_are_within_the_bounds_that_readers_find(tmp_path: Path, schema: spark.StructType, how: str) -> None:
    driver = Driver(tmp_path / "t", schema, options={"mode": "upsert", "key": "id"} if how == "merge" else {})
    for epoch in range(5):
        inner = {"d": Decimal(LARGE // 100 + epoch), "e": Decimal("-0.07"), "f": math.nan if epoch == 2 else 1.0}
        rows = [{"id": number, **(inner if schema is FLAT else {"s": inner})} for number in (2 * epoch, 2 * epoch + 1)]
        driver.run(epoch, rows)
    if how != "merge":
        run(driver.sink().location, Optimize(1, z_order_by=("id",) if how == "z-order" else ()), 2**42)
        assert len(DeltaTable(tmp_path / "t").file_uris()) == 1
    seen = set()
    for add in _added(tmp_path / "t"):
        stats = json.loads(add["stats"], parse_float=Decimal)
        low, high = stats["minValues"], stats["maxValues"]
        with pq.ParquetFile(tmp_path / "t" / add["path"]) as file:
            rows = file.read().to_pylist()
            for column in range(file.metadata.num_columns):
                chunk = file.metadata.row_group(0).column(column)
                assert not chunk.path_in_schema.endswith("f") or chunk.statistics is None
        for row in rows:
            for name, value in (row if schema is FLAT else row["s"]).items():
                least, greatest = ((it if schema is FLAT else it.get("s", {})).get(name) for it in (low, high))
                assert least is None or least <= value, name
                assert greatest is None or value <= greatest, name
        seen |= low.keys()
    assert seen == ({"id", "e"} if schema is FLAT else {"id"}), "those that hold are noted"


def _added(path: Path) -> list[dict[str, Any]]:
    live = {Path(uri).name for uri in DeltaTable(path).file_uris()}
    logs = sorted((path / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    found = [action["add"] for action in actions if "add" in action and Path(action["add"]["path"]).name in live]
    assert {Path(one["path"]).name for one in found} == live
    return found


@pytest.mark.parametrize(
    "around", [lambda inner: inner, spark.ArrayType, lambda inner: spark.MapType(spark.StringType(), inner)]
)
def test_a_column_with_fewer_fields_than_the_tables_is_refused(tmp_path: Path, around: Any) -> None:
    def keyed(*names: str) -> spark.StructType:
        inner = spark.StructType([spark.StructField(name, spark.LongType()) for name in names])
        return spark.StructType([spark.StructField("id", spark.LongType()), spark.StructField("s", around(inner))])

    Driver(tmp_path / "t", keyed("a", "b")).claim()
    fewer = Driver(tmp_path / "t", keyed("b"), uid="other", options={"mode": "upsert", "key": "id"})
    with pytest.raises(ConfigurationError, match=r"field 's\.(element\.|value\.)?a' of the table is not in the query"):
        fewer.sink().validate(fewer.schema)
    Driver(tmp_path / "t", keyed("b"), uid="appends").sink().validate(keyed("b"))
    other = Driver(tmp_path / "t", keyed("b", "a"), uid="other", options={"mode": "upsert", "key": "id"})
    other.sink().validate(other.schema)


HOUR = {"optimize_interval": "1 h"}


@pytest.mark.parametrize("options", [HOUR, {**HOUR, "mode": "upsert", "key": "id"}])
@pytest.mark.parametrize(
    ("kind", "message"), [("decimal", r"decimal\(12,2\), and .* makes -1.25 into"), ("timestamp", "loses the zone")]
)
def test_partitions_that_a_compaction_changes(tmp_path: Path, options: dict[str, str], kind: str, message: str) -> None:
    schema = ddl(f"id long, p {kind}")
    driver = Driver(tmp_path / "t", schema, options={**options, "partition_by": "p"})
    with pytest.raises(ConfigurationError, match=message) as refused:
        driver.sink().validate(schema)
    assert "'p'" in str(refused.value) and not (tmp_path / "t").exists()
    Driver(tmp_path / "t", schema, options={"partition_by": "p"}).sink().validate(schema)
    Driver(tmp_path / "t", schema, options=options).sink().validate(schema)


def test_delta_rs_still_makes_such_a_table_unreadable(tmp_path: Path) -> None:
    """Why such partitions are not compacted, and merged without delta-rs. If this fails, both may be allowed."""
    driver = Driver(tmp_path / "t", ddl("id long, p decimal"), options={"partition_by": "p"})
    for epoch in range(2):
        driver.run(epoch, [{"id": epoch, "p": Decimal("-1.25")}])
    with pytest.raises(Exception, match=r"-1\.-25"):
        DeltaTable(tmp_path / "t").optimize.compact()
    with pytest.raises(Exception, match=r"-1\.-25"):
        DeltaTable(tmp_path / "t")


@pytest.mark.parametrize("options", [HOUR, {**HOUR, "mode": "upsert", "key": "id"}])
@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("string", "漢" * 29, "'p' makes the name of a folder 263 bytes long where files are rewritten"),
        ("double", 5e-324, "'p' makes the name of a folder 328 bytes long where files are rewritten"),
    ],
    ids=["string", "double"],
)
def test_folders_too_long(tmp_path: Path, options: dict[str, str], kind: str, value: Any, message: str) -> None:
    driver = Driver(tmp_path / "t", ddl(f"id long, p {kind}"), options={**options, "partition_by": "p"})
    with pytest.raises(DataError, match=message):
        driver.write(0, [{"id": 1, "p": value}])


def far_rows(values: list[tuple[int, int]]) -> pa.RecordBatch:
    ids, days = zip(*values, strict=True)
    return pa.record_batch({"id": pa.array(ids), "d": pa.array(days, pa.int32()).cast(pa.date32())})


def test_far_dates_are_refused_where_files_are_compacted(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t", ddl("id long, d date"), options=HOUR)
    with pytest.raises(DataError, match="column 'd' has a time outside the years 1 to 9999, where files are rewritten"):
        driver.sink().write(driver.schema, iter([far_rows([(1, FAR)])]), TASK)


def test_a_far_date_survives_later_merges_into_its_file(tmp_path: Path) -> None:
    """None of them has such a date. delta-rs would note it as a bound, by which it cannot read the table any more."""
    driver = Driver(tmp_path / "t", ddl("id long, d date"), options={"mode": "upsert", "key": "id"})
    for epoch, rows in enumerate([[(1, FAR), (2, 0)], [(2, 1)], [(2, 2), (3, 3)], [(3, 4)]]):
        driver.commit(epoch, driver.sink().write(driver.schema, iter([far_rows(rows)]), TASK))
    assert table(tmp_path / "t").sort_by("id")["d"].cast(pa.int32()).to_pylist() == [FAR, 2, 4]


ZONE = timezone(timedelta(hours=3))
# Values of partitions that delta-rs would change, or has no folders for, and others; each as it is in the log.
CHANGED: dict[str, list[tuple[Any, str]]] = {
    "timestamp": [
        (datetime(2013, 1, 31, 5, 15, 0, 5, tzinfo=ZONE), "2013-01-31T02:15:00.000005Z"),
        (datetime(1, 1, 2, tzinfo=timezone.utc), "0001-01-02T00:00:00.000000Z"),
    ],
    "decimal": [(Decimal("-1.25"), "-1.25"), (Decimal("7.50"), "7.50")],
    "double": [(5e-324, "5e-324"), (-1.5, "-1.5")],
    "string": [("é" * 100, "é" * 100), ("a b/c%20=x", "a b/c%20=x")],
}


@pytest.mark.parametrize("kind", CHANGED)
def test_a_merge_keeps_the_values_of_partitions(tmp_path: Path, kind: str) -> None:
    (odd, odd_text), (other, other_text) = CHANGED[kind]
    options = {"mode": "upsert", "key": "id", "partition_by": "p"}
    driver = Driver(tmp_path / "t", ddl(f"id long, p {kind}, v long"), options=options)
    driver.run(0, [{"id": 1, "p": odd, "v": 0}, {"id": 2, "p": other, "v": 0}, {"id": 3, "p": None, "v": 0}])
    driver.run(1, [{"id": 1, "p": other, "v": 1}, {"id": 4, "p": odd, "v": 1}])
    driver.run(2, [{"id": 3, "p": odd, "v": 2}, {"id": 5, "p": None, "v": 2}])
    found = pa.table(DeltaTable(tmp_path / "t").scan()).to_pylist()
    expected = {1: (other, 1), 2: (other, 0), 3: (odd, 2), 4: (odd, 1), 5: (None, 2)}
    assert {one["id"]: (one["p"], one["v"]) for one in found} == expected
    assert {add["partitionValues"]["p"] for add in _added(tmp_path / "t")} == {odd_text, other_text, None}


def test_deletion_vectors_are_refused_if_the_sink_writes_files(tmp_path: Path) -> None:
    """delta-rs removes no file with its vector by itself: rows that are replaced would stay."""
    made = DeltaTable.create(
        tmp_path / "t", pa.schema([("id", pa.int64()), ("p", pa.timestamp("us", "UTC"))]), partition_by=["p"]
    )
    made.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    options = {"mode": "upsert", "key": "id", "partition_by": "p"}
    driver = Driver(tmp_path / "t", ddl("id long, p timestamp"), options=options)
    with pytest.raises(UnsupportedTableError, match="deletion vectors"):
        driver.run(0, [{"id": 1, "p": datetime(2024, 1, 1, tzinfo=timezone.utc)}])
