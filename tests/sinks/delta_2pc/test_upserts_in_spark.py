"""Upserts of `delta_2pc` in Spark: real jobs, and tables that Spark has made, read and changed."""

from __future__ import annotations

import datetime
import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import spark_ext as sx
from spark_ext.delta.optimize import Optimize, run
from spark_ext.model.commits import Task
from spark_ext.schemas.arrow import arrow_schema
from tests.sinks.delta_2pc.delta_kit import Driver, ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = datetime.datetime(2024, 1, 1)


@pytest.mark.core
def test_a_job_of_upserts_and_a_start_with_another_key(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Three epochs with rows of the same keys; the table is what pandas says. With another key it is another sink."""

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
    raw = spark.read.format("delta").load(f"{tmp_path}/t").drop("ts").toPandas()
    whole = sx.sources.datagen.DataGen({"uid": "x", "rows": "300", "channels": "2"})
    tables = [batch.to_pandas() for one in whole.discover() for batch in whole.read(one, 0, 150)]
    expected = pd.concat(tables)
    expected["at"], expected["id"] = expected["id"] * 37 % 307, expected["id"] % 70
    newest = expected.sort_values("at").drop_duplicates("id", keep="last").sort_values("id")
    found = raw.sort_values("id")
    assert found["id"].tolist() == newest["id"].tolist() and found["value"].tolist() == newest["value"].tolist()
    assert found["gone"].tolist() == (newest["value"] < 0.2).tolist()
    caplog.clear()
    job(key="id,value").run(progress=False)
    assert "option 'key' of sink 'out' was 'id', and is 'id,value'" in caplog.text
    assert spark.read.format("delta").load(f"{tmp_path}/t").count() == 70, "nothing of it was started"


def test_a_table_of_sparks_with_deletion_vectors_and_change_data(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that Spark has marked as deleted stay so; times without a zone are keys; Spark reads the changes."""
    place = f"delta.`{tmp_path}/t`"
    spark.sql(
        f"CREATE TABLE {place} (id BIGINT, at TIMESTAMP_NTZ, v STRING) USING delta "
        "TBLPROPERTIES('delta.enableDeletionVectors'='true', 'delta.enableChangeDataFeed'='true')"
    )
    schema = ddl("id long, at timestamp_ntz, v string")
    driver = Driver(tmp_path / "t", schema, options={"mode": "upsert", "key": "id,at"})
    driver.claim()
    rows = [{"id": number, "at": DAY + datetime.timedelta(microseconds=number), "v": "old"} for number in range(20)]
    driver.run(0, rows[:10])
    driver.run(1, rows[10:])
    spark.sql(f"DELETE FROM {place} WHERE id IN (3, 13)")
    assert pa.table(DeltaTable(tmp_path / "t").deletion_vectors().read_all()).num_rows >= 1
    second = Driver(tmp_path / "t", schema, incarnation=2, options={"mode": "upsert", "key": "id,at"})
    second.claim()
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


def test_spark_reads_what_the_sink_merges_without_delta_rs(spark: SparkSession, tmp_path: Path) -> None:
    """Values of partitions whatever the session's zone, a date of the year 10000, and the changes."""
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
        task = Task("out", "q", epoch, 0, 0, 1, 0)
        driver.commit(epoch, driver.sink().write(schema, iter([batch]), task))
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
