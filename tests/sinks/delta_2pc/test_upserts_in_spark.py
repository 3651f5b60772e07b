"""Upserts of `delta_2pc` in Spark: real jobs, and tables that Spark has made, read and changed."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import spark_ext as sx
from spark_ext.delta.optimize import Optimize, run
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
