"""`delta_2pc` and Spark: what Spark's own reader makes of the tables, and real streaming queries."""

import datetime
import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import spark_ext as sx
from spark_ext.delta.optimize import Optimize, run
from spark_ext.model.commits import Task
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.schemas.ddl import columns
from spark_ext.testing.every_type import EVERY_TYPE, UTC, empty, moment, row
from tests.sinks.delta_2pc.delta_kit import Driver, data_files, ddl
from tests.support.versions import needs_delta


def micros(value: datetime.datetime | None) -> int | None:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=UTC)
    return None if value is None else (value - epoch) // datetime.timedelta(microseconds=1)


def read(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("delta").load(str(path))


@needs_delta
def test_every_type_is_read_back_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t", EVERY_TYPE)
    values = [row(n) for n in range(1, 400, 7)] + [empty(-1)]
    driver.run(0, values)
    # Times as their microseconds: Python's own times would be turned into the zone of this machine.
    times = F.transform("nested.times", lambda time: F.unix_micros(time))
    frame = read(spark, tmp_path / "t").withColumn("at", F.unix_micros("at"))
    found = frame.withColumn("nested", F.col("nested").withField("times", times)).orderBy("long").collect()
    expected = []
    for one in sorted(values, key=lambda one: int(one["long"])):
        nested = one["nested"] and {**one["nested"], "times": [micros(time) for time in one["nested"]["times"]]}
        expected.append({**one, "at": micros(one["at"]), "nested": nested})
    assert [one.asDict(recursive=True) for one in found] == expected


FILTERS = [
    "int > 150000", "short <= -300", "float = 25.0", "double < -100.5", "small between 1.00 and 1.50",
    "large >= 30000", "text < 'ä2'", "text > 'ä3'", "text = '" + "ä7€\U0001f600" * 9 + "'", "text like 'ä39%'",
    "day < '1510-01-01'", "at > timestamp'1890-01-31 05:15:00.123455Z'",
    "at <= timestamp'1507-01-31 05:15:00.123456Z'", "local = timestamp_ntz'1600-01-31 05:15:00.123456'",
    "nested.a > 380", "nested.b.c < 0.0010", "nested is null", "map is null or list is null",
    "text is not null and bool", "nan = double('NaN')", "nan > 1e300", "nan < 5", "not (nan <= 200)",
]  # fmt: skip


@needs_delta
def test_data_skipping_gives_what_reading_all_gives(spark: SparkSession, tmp_path: Path) -> None:
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


@needs_delta
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


@needs_delta
def test_partition_values_are_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    schema = columns(
        "text string, number bigint, money decimal(12,2), day date, at timestamp, local timestamp_ntz, bool boolean, "
        "real float, id bigint"
    )
    names = schema.names[:-1]
    values = [
        ("a/b:c=%ü ~", -7, Decimal("-1.50"), datetime.date(2013, 1, 31), moment(2013, 7), moment(2013, 7), True, 0.1),
        (" ", 0, Decimal("0.00"), datetime.date(1, 1, 1), moment(1600, 0), moment(1600, 0), False, float("inf")),
        (None,) * 8,
    ]
    rows_: list[dict[str, Any]] = [{**dict(zip(names, value, strict=True)), "id": n} for n, value in enumerate(values)]
    for one in rows_:
        one["local"] = one["local"] and one["local"].replace(tzinfo=None)
    Driver(tmp_path / "t", schema, options={"partition_by": ",".join(names)}).run(0, rows_)
    found = read(spark, tmp_path / "t").withColumn("at", F.unix_micros("at")).orderBy("id").collect()
    assert [row["real"] for row in found] == [pytest.approx(0.1, abs=1e-7), float("inf"), None]
    for one in rows_:
        one["at"] = micros(one["at"])
        del one["real"]
    assert [{key: value for key, value in one.asDict().items() if key != "real"} for one in found] == rows_


DAY = datetime.datetime(2024, 1, 1)


@pytest.mark.core
def test_a_job_of_upserts(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def job(**options: str) -> sx.Job:
        rows = (
            spark.readStream.format("datagen")
            .options(uid="rows", rows="300", max_rows_per_epoch="100", channels="2")
            .load()
            .selectExpr("id % 70 AS id", "id * 37 % 307 AS at", "ts", "value", "value < 0.2 AS gone")
        )
        rule = {"mode": "upsert", "key": "id", "newest_by": "at", "deleted_if": "gone", "tombstones": "keep"}
        given = {name: value for name, value in {**rule, **options}.items() if value}
        made = sx.Job(spark, "upserts", state=tmp_path / "state")
        return made.add("q", rows.writeStream.format("delta_2pc").options(uid="out", path=f"{tmp_path}/t", **given))

    assert job().run(progress=False).finished
    raw = DeltaTable(tmp_path / "t").to_pandas()
    whole = sx.sources.datagen.DataGen({"uid": "x", "rows": "300", "channels": "2"})
    expected = pd.concat([batch.to_pandas() for one in whole.discover() for batch in whole.read(one, 0, 150)])
    expected["at"], expected["id"] = expected["id"] * 37 % 307, expected["id"] % 70
    newest = expected.sort_values("at").drop_duplicates("id", keep="last").sort_values("id")
    found = raw.sort_values("id")
    assert found["id"].tolist() == newest["id"].tolist() and found["value"].tolist() == newest["value"].tolist()
    assert found["gone"].tolist() == (newest["value"] < 0.2).tolist()
    caplog.clear()
    job(key="id,value").run(progress=False)
    assert "option 'key' of sink 'out' was 'id', and is 'id,value'" in caplog.text
    assert len(DeltaTable(tmp_path / "t").to_pandas()) == 70, "nothing of it was started"


@needs_delta
def test_a_table_of_sparks_with_deletion_vectors_and_change_data(spark: SparkSession, tmp_path: Path) -> None:
    place = f"delta.`{tmp_path}/t`"
    spark.sql(
        f"CREATE TABLE {place} (id BIGINT, at TIMESTAMP_NTZ, v STRING) USING delta "
        "TBLPROPERTIES('delta.enableDeletionVectors'='true', 'delta.enableChangeDataFeed'='true')"
    )
    schema = ddl("id long, at timestamp_ntz, v string")
    driver = Driver(tmp_path / "t", schema, options={"mode": "upsert", "key": "id,at"}).claim()
    rows = [{"id": number, "at": DAY + datetime.timedelta(microseconds=number), "v": "old"} for number in range(20)]
    driver.run(0, rows[:10])
    driver.run(1, rows[10:])
    spark.sql(f"DELETE FROM {place} WHERE id IN (3, 13)")
    assert pa.table(DeltaTable(tmp_path / "t").deletion_vectors().read_all()).num_rows >= 1
    second = Driver(tmp_path / "t", schema, incarnation=2, options={"mode": "upsert", "key": "id,at"}).claim()
    second.run(2, [{**rows[3], "v": "again"}, {**rows[5], "v": "new"}])
    run(second.sink().location, Optimize(1), 2**42)
    found = {row.id: row.v for row in spark.table(place).collect()}
    assert found == {number: "old" for number in range(20) if number != 13} | {3: "again", 5: "new"}
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
    kinds = sorted(row._change_type for row in feed.load(f"{tmp_path}/t").where("v != 'old'").collect())
    assert kinds == ["insert", "update_postimage"]
    spark.sql(f"DELETE FROM {place} WHERE id = 7")
    for file in (tmp_path / "t").glob("*.*"):
        os.utime(file, (1, 1))
    run(second.sink().location, Optimize(1, vacuum_after=168 * 3_600_000), 2**43)
    spark.catalog.refreshByPath(f"{tmp_path}/t")
    assert {row.id for row in spark.table(place).collect()} == found.keys() - {7}, "its deletion vector is still there"


@needs_delta
def test_spark_reads_what_the_sink_merges_without_delta_rs(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    schema = ddl("id long, at timestamp, n decimal, x double, s string, d date")
    options = {
        "mode": "upsert",
        "key": "id",
        "partition_by": "at,n,x,s",
        "table_properties": '{"delta.enableChangeDataFeed": "true"}',
    }
    driver = Driver(tmp_path / "t", schema, options=options)
    at, far = datetime.datetime(2013, 7, 1, 23, 59, 59, 5, tzinfo=datetime.timezone.utc), 2_932_897
    odd = [1, at, Decimal("-1.25"), 5e-324, "é" * 100, far]
    plain = [2, at + datetime.timedelta(days=1), Decimal("7.50"), 1.5, "a b/c%20=x", 0]
    for epoch, rows in enumerate([[odd, plain], [[2, *odd[1:5], 1], [3, *plain[1:5], far]]]):
        columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), PLAIN, strict=True)]
        batch = pa.RecordBatch.from_arrays(columns, names=schema.names).cast(arrow_schema(schema))
        driver.commit(epoch, driver.sink().write(schema, iter([batch]), Task("out", "q", epoch, 0, 0, 1, 0)))
    read = "id", "CAST(at AS double) AS at", "n", "x", "s", "unix_date(d) AS d"
    found = sorted(map(list, spark.read.format("delta").load(f"{tmp_path}/t").selectExpr(*read).collect()))
    seconds = at.timestamp()
    assert found == [[1, seconds, *odd[2:]], [2, seconds, *odd[2:5], 1], [3, seconds + 86_400, *plain[2:5], far]]
    version = DeltaTable(tmp_path / "t").version()
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version)
    changes = feed.load(f"{tmp_path}/t").selectExpr("id", "CAST(at AS double)", "s", "_change_type").collect()
    assert sorted(map(list, changes)) == [
        [2, seconds, "é" * 100, "insert"],
        [2, seconds + 86_400, "a b/c%20=x", "delete"],
        [3, seconds + 86_400, "a b/c%20=x", "insert"],
    ]


PLAIN = [pa.int64(), pa.timestamp("us", "UTC"), pa.decimal128(12, 2), pa.float64(), pa.string(), pa.int32()]
