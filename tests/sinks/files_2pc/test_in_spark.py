"""`files_2pc` and Spark: what Spark's readers make of the files, by the log and without it."""

import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_ext.schemas.ddl import columns
from spark_ext.sinks.files_2pc.sink import read
from spark_ext.testing import every_type
from spark_ext.testing.sink_driver import NUMBERS, Driver, numbered
from tests.sinks.files_2pc.files_target import FilesTarget

# Texts that readers of csv and json stumble over, the empty one among them.
UGLY = [
    "", " padded ", 'quote " and ""', "comma, and; more", "line\nbreak", "cr\rlf\r\n", "back\\slash\\", "\\N",
    "ä€\U0001f600",
]  # fmt: skip


def written(path: Path, kind: str, schema: T.StructType, rows: list[dict[str, Any]], **options: str) -> None:
    Driver(FilesTarget(path, kind), schema=schema, options=options).claim().run(0, rows, partitions=2)


def found(spark: SparkSession, path: Path) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in read(spark, path).collect()]


def micros(value: datetime | None) -> int | None:
    return None if value is None else (value - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_spark_reads_back_every_type(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Times as their microseconds: Python's own times would be turned into the zone of this machine."""
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    schema = FilesTarget(tmp_path, kind).types
    names = schema.fieldNames()
    values = [every_type.row(number) for number in range(1, 400, 7)] + [every_type.empty(-1)]
    rows = [{name: row[name] for name in names} for row in values]
    written(tmp_path / "t", kind, schema, rows)
    frame = read(spark, tmp_path / "t")
    assert frame.schema.simpleString() == schema.simpleString()
    frame = frame.withColumn("at", F.unix_micros("at")).orderBy("long")
    if "nested" in names:
        times = F.transform("nested.times", lambda time: F.unix_micros(time))
        frame = frame.withColumn("nested", F.col("nested").withField("times", times))
    for row in rows:
        row["at"] = micros(row["at"])
        if row.get("nested"):
            row["nested"] = {**row["nested"], "times": list(map(micros, row["nested"]["times"]))}
    assert [row.asDict(recursive=True) for row in frame.collect()] == sorted(rows, key=lambda row: row["long"])


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_spark_reads_back_ugly_texts_and_numbers(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    numbers = [0.1, -0.0, math.inf, -math.inf, math.nan, 1e300, 5e-324, None, 1.0]
    rows = [{"id": n, "text": text, "x": x} for n, (text, x) in enumerate(zip(UGLY, numbers, strict=True))]
    rows.append({"id": 99, "text": None, "x": None})
    written(tmp_path / "t", kind, columns("id bigint, text string, x double"), rows)
    assert sorted(map(repr, found(spark, tmp_path / "t"))) == sorted(map(repr, rows))


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_spark_reads_back_partition_values(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    texts = ["a b", "a/b=c%", "ä€", "7", None, 'q"#:?\\']
    rows = [{"id": n, "x": n, "day": date(2024, 1, 1 + n % 2), "v": text} for n, text in enumerate(texts)]
    schema = columns("id bigint, x bigint, day date, v string")
    written(tmp_path / "t", kind, schema, rows, partition_by="day,v")
    assert sorted(found(spark, tmp_path / "t"), key=lambda row: row["id"]) == rows
    if kind == "parquet":
        linked = spark.read.schema(schema).parquet(str(tmp_path / "t")).select("id", "x", "day", "v").collect()
        assert sorted((row.asDict() for row in linked), key=lambda row: row["id"]) == rows


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_partition_values_of_other_types(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    schema = columns("id bigint, x bigint, at timestamp, flag boolean, amount decimal(9,2), local timestamp_ntz")
    rows: list[dict[str, Any]] = [
        {
            "id": n, "x": n, "at": every_type.moment(2024) + timedelta(hours=n % 2), "flag": n % 3 == 0,
            "amount": None if n == 4 else Decimal(n).scaleb(-2), "local": datetime(2024, 1, 31, 5, n),
        }
        for n in range(6)
    ]  # fmt: skip
    written(tmp_path / "t", kind, schema, rows, partition_by="at,flag,amount,local")
    for zone in ("UTC", "Asia/Kathmandu"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        frame = read(spark, tmp_path / "t").withColumn("at", F.unix_micros("at")).orderBy("id")
        assert [row.asDict() for row in frame.collect()] == [{**row, "at": micros(row["at"])} for row in rows]


def test_readers_that_know_no_log_see_what_is_committed(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    driver = Driver(FilesTarget(path, "parquet")).claim()
    driver.write(7, numbered(900, 950))
    for epoch in range(3):
        driver.run(epoch, numbered(epoch * 5, epoch * 5 + 5))
    assert sorted(row["id"] for row in spark.read.parquet(str(path)).collect()) == list(range(15))
    seen: list[int] = []
    stream = spark.readStream.schema(NUMBERS).parquet(str(path)).writeStream
    stream = stream.foreachBatch(lambda rows, epoch: seen.extend(row["id"] for row in rows.collect()))
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    stream.start().awaitTermination()
    assert sorted(seen) == list(range(15))


def test_a_folder_without_epochs_has_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    Driver(FilesTarget(tmp_path, "json"), schema=columns("id bigint, at timestamp")).claim()
    frame = read(spark, tmp_path)
    assert frame.schema.simpleString() == "struct<id:bigint,at:timestamp>"
    assert frame.count() == 0


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_paths_are_not_patterns(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    ids = {"a[b]": 1, "ab": 2, "a{b,c}": 3, "a\\b": 4, "a*": 5, "a%20b ?": 6}
    # In CSV the only other column could be an empty line.
    options = {} if kind == "csv" else {"partition_by": "id"}
    for name, number in ids.items():
        path = tmp_path / name
        written(path, kind, NUMBERS, numbered(number, number + 1), **options)
        assert [row["id"] for row in found(spark, path)] == [number]
