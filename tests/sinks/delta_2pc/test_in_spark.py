"""`delta_2pc` and Spark: what Spark's own reader makes of the tables, and real streaming queries."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_ext.testing.every_type import EVERY_TYPE, UTC, empty, moment, row
from tests.sinks.delta_2pc.delta_kit import Driver, data_files, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def plain(value: Any) -> Any:
    """A row of Spark's as plain Python values."""
    if isinstance(value, T.Row):
        return {name: plain(item) for name, item in value.asDict().items()}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return bytes(value) if isinstance(value, bytearray) else value


def read(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("delta").load(str(path))


def test_every_type_is_read_back_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t", EVERY_TYPE)
    values = [row(n) for n in range(1, 400, 7)] + [empty(-1)]
    driver.run(0, values)
    # Times as their microseconds: Python's own times would be turned into the zone of this machine.
    found = (
        read(spark, tmp_path / "t")
        .withColumn("at", F.unix_micros("at"))
        .withColumn(
            "nested", F.col("nested").withField("times", F.transform("nested.times", lambda time: F.unix_micros(time)))
        )
        .orderBy("long")
        .collect()
    )

    def micros(value: datetime.datetime | None) -> int | None:
        if value is None:
            return None
        return (value - datetime.datetime(1970, 1, 1, tzinfo=UTC)) // datetime.timedelta(microseconds=1)

    expected = []
    for one in sorted(values, key=lambda one: int(one["long"])):
        nested = one["nested"] and {**one["nested"], "times": [micros(time) for time in one["nested"]["times"]]}
        expected.append({**one, "at": micros(one["at"]), "nested": nested})
    assert [plain(one) for one in found] == expected


FILTERS = [
    "int > 150000",
    "short <= -300",
    "float = 25.0",
    "double < -100.5",
    "small between 1.00 and 1.50",
    "large >= 30000",
    "text < 'ä2'",
    "text > 'ä3'",
    "text = '" + "ä7€\U0001f600" * 9 + "'",
    "text like 'ä39%'",
    "day < '1510-01-01'",
    "at > timestamp'1890-01-31 05:15:00.123455Z'",
    "at <= timestamp'1507-01-31 05:15:00.123456Z'",
    "local = timestamp_ntz'1600-01-31 05:15:00.123456'",
    "nested.a > 380",
    "nested.b.c < 0.0010",
    "nested is null",
    "map is null or list is null",
    "text is not null and bool",
    "nan = double('NaN')",
    "nan > 1e300",
    "nan < 5",
    "not (nan <= 200)",
]


def test_data_skipping_gives_what_reading_all_gives(spark: SparkSession, tmp_path: Path) -> None:
    """Many small files, each filter against a read that cannot skip."""
    schema = T.StructType([*EVERY_TYPE.fields, T.StructField("nan", T.DoubleType())])
    driver = Driver(tmp_path / "t", schema, options={"row_group_rows": "7", "indexed_columns": "-1"})
    chance = random.Random(1)
    for epoch in range(12):
        rows_ = [
            {**(empty(n) if chance.random() < 0.1 else row(n)), "nan": chance.choice([float("nan"), n * 1.0, None])}
            for n in range(epoch * 33, epoch * 33 + 33)
        ]
        driver.run(epoch, rows_)
    frame = read(spark, tmp_path / "t")
    # Not cached: Spark's cache skips by bounds too.
    unskipped = spark.createDataFrame(frame.collect(), frame.schema)
    skipped = [frame.where(text).select(F.lit(text).alias("filter"), "long") for text in FILTERS]
    whole = [unskipped.where(text).select(F.lit(text).alias("filter"), "long") for text in FILTERS]

    def answers(frames: list[DataFrame]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {text: [] for text in FILTERS}
        together = frames[0]
        for one in frames[1:]:
            together = together.unionAll(one)
        for one_row in together.collect():
            found[one_row["filter"]].append(one_row["long"])
        return {text: sorted(numbers) for text, numbers in found.items()}

    expected = answers(whole)
    assert answers(skipped) == expected
    assert all(expected.values()), "a filter that finds nothing proves nothing"


@pytest.mark.parametrize("condition", ["id = 150", "name = 'n0150'", "day = '2013-01-02' and id > 0"])
def test_files_are_really_skipped(spark: SparkSession, tmp_path: Path, condition: str) -> None:
    """The other files are broken, and nobody notices."""
    schema = ddl("id long, name string, day date")
    driver = Driver(tmp_path / "t", schema, options={"partition_by": "day"} if "day" in condition else {})
    for epoch in range(3):
        day = datetime.date(2013, 1, 1 + epoch)
        driver.run(epoch, [{"id": n, "name": f"n{n:04}", "day": day} for n in range(epoch * 100, epoch * 100 + 100)])
        if epoch != 1:
            for name in data_files(tmp_path / "t"):
                if f"-e{epoch}-" in name:
                    (tmp_path / "t" / name).write_bytes(b"broken")
    expected = 100 if "day" in condition else 1
    assert read(spark, tmp_path / "t").where(condition).count() == expected


def test_partition_values_are_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    names = ["text", "number", "money", "day", "at", "local", "bool", "real"]
    kinds = [
        T.StringType(),
        T.LongType(),
        T.DecimalType(12, 2),
        T.DateType(),
        T.TimestampType(),
        T.TimestampNTZType(),
        T.BooleanType(),
        T.FloatType(),
    ]
    schema = T.StructType(
        [T.StructField(name, kind) for name, kind in zip(names, kinds, strict=True)]
        + [T.StructField("id", T.LongType())]
    )
    values = [
        ("a/b:c=%ü ~", -7, Decimal("-1.50"), datetime.date(2013, 1, 31), moment(2013, 7), moment(2013, 7), True, 0.1),
        (" ", 0, Decimal("0.00"), datetime.date(1, 1, 1), moment(1600, 0), moment(1600, 0), False, float("inf")),
        (None,) * 8,
    ]
    rows_: list[dict[str, Any]] = [{**dict(zip(names, value, strict=True)), "id": n} for n, value in enumerate(values)]
    for one in rows_:
        one["local"] = one["local"] and one["local"].replace(tzinfo=None)
    driver = Driver(tmp_path / "t", schema, options={"partition_by": ",".join(names)})
    driver.run(0, rows_)
    found = read(spark, tmp_path / "t").withColumn("at", F.unix_micros("at")).orderBy("id").collect()
    for one in rows_:
        one["real"] = one["real"] and T.Row(x=one["real"]).x
        one["at"] = one["at"] and int(
            (one["at"] - datetime.datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
        ) * 10**6 + (one["at"].microsecond)
    expected_real = [found[n]["real"] for n in range(3)]
    assert expected_real[0] == pytest.approx(0.1, abs=1e-7) and expected_real[1:] == [float("inf"), None]
    for one in rows_:
        one.pop("real")
    assert [{key: value for key, value in one.asDict().items() if key != "real"} for one in found] == rows_


def test_a_streaming_query_writes_each_epoch_once(spark: SparkSession, tmp_path: Path) -> None:
    """A real query, partitioned, in a session zone that is not UTC; the last epoch is repeated as after a crash."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    base = spark.range(0, 3000, 1, 4).select(
        "id", (F.col("id") % 3).cast("string").alias("p"), F.timestamp_seconds(F.col("id") * 60).alias("at")
    )
    for part in range(3):
        base.where(f"id div 1000 = {part}").write.parquet(f"{tmp_path}/in/{part}")

    def run() -> None:
        stream = (
            spark.readStream.schema(base.schema)
            .option("recursiveFileLookup", "true")
            .option("maxFilesPerTrigger", "1")
            .parquet(f"{tmp_path}/in")
        )
        query = (
            stream.writeStream.format("delta_2pc")
            .option("uid", "out")
            .option("path", f"{tmp_path}/t")
            .option("partition_by", "p")
            .option("checkpointLocation", f"{tmp_path}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(commits) >= 3
    commits[-1].unlink()
    (tmp_path / "checkpoint" / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    run()
    found = read(spark, tmp_path / "t")
    assert found.count() == 3000
    assert found.exceptAll(base).count() == 0 and base.exceptAll(found).count() == 0
    assert found.where("at = timestamp'1970-01-01 00:10:00Z'").select("id").collect()[0].id == 10
