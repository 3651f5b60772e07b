"""Rows that do not parse, fit or pass a check."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


@case("data.csv_failfast", type="USER_DATA", origin="spark", decision="stop")
def csv_failfast(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.csv").write_text("1,2.5\nthree,4.5\n")
    rows = spark.readStream.schema("id int, price double").option("mode", "FAILFAST").csv(str(folder / "in"))
    into_noop(rows)


@case("data.json_failfast", type="USER_DATA", origin="spark", decision="stop")
def json_failfast(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.json").write_text('{"id": 1}\n{"id": 2\n')
    into_noop(spark.readStream.schema("id int").option("mode", "FAILFAST").json(str(folder / "in")))


@case("data.check_constraint", type="USER_DATA", origin="library", decision="stop")
def check_constraint(spark: SparkSession, folder: Path) -> None:
    table = f"delta.`{folder}/table`"
    spark.sql(f"CREATE TABLE {table} (value long) USING delta")
    spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT positive CHECK (value > 0)")
    writer = numbers(spark).select("value").writeStream.format("delta")
    fails(writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "table")))


@case("data.not_null", type="USER_DATA", origin="library", decision="stop")
def not_null(spark: SparkSession, folder: Path) -> None:
    spark.sql(f"CREATE TABLE delta.`{folder}/table` (value long NOT NULL) USING delta")
    rows = numbers(spark).select(F.nullif("value", F.lit(2)).alias("value"))
    writer = rows.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
    fails(writer.option("path", str(folder / "table")))


@case("data.char_length", type="USER_DATA", origin="library", decision="stop")
def char_length(spark: SparkSession, folder: Path) -> None:
    spark.sql(f"CREATE TABLE delta.`{folder}/table` (name varchar(5)) USING delta")
    rows = numbers(spark).select(F.concat(F.lit("number "), "value").alias("name"))
    writer = rows.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
    fails(writer.option("path", str(folder / "table")))


@case("data.merge_duplicates", type="USER_DATA", origin="dependency", decision="stop", line="batch.sparkSession.sql(")
def merge_duplicates(spark: SparkSession, folder: Path) -> None:
    spark.range(4).write.format("delta").save(str(folder / "table"))

    def upsert(batch: DataFrame, epoch: int) -> None:
        batch.selectExpr("value % 2 AS id").createOrReplaceTempView("failing_updates")
        batch.sparkSession.sql(
            f"MERGE INTO delta.`{folder}/table` t USING failing_updates u ON t.id = u.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    fails(numbers(spark).writeStream.foreachBatch(upsert))


@case("data.unique_key", type="USER_DATA", origin="dependency", decision="stop", line="jdbc(database")
def unique_key(spark: SparkSession, folder: Path) -> None:
    database = f"jdbc:derby:memory:{folder.name};create=true"
    manager = spark._jvm.java.sql.DriverManager  # type: ignore[union-attr]
    connection = manager.getConnection(database)
    connection.createStatement().execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
    connection.createStatement().execute("INSERT INTO orders VALUES 2")
    connection.close()

    def insert(batch: DataFrame, epoch: int) -> None:
        batch.selectExpr("value AS id").write.mode("append").jdbc(database, "orders")

    fails(numbers(spark).writeStream.foreachBatch(insert))


@case("data.json_text", type="USER_DATA", origin="user", decision="stop", line="json.loads(text)")
def json_text(spark: SparkSession, folder: Path) -> None:
    @F.udf("string")
    def customer(text: str) -> str:
        return str(json.loads(text)["customer"])

    into_noop(numbers(spark).select(customer(F.concat(F.lit('{"customer": '), "value"))))


@case("data.unicode_bytes", type="USER_DATA", origin="user", decision="stop", line='decode("utf-8")')
def unicode_bytes(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("string")
    def text(values: pd.Series) -> pd.Series:
        return values.map(lambda value: bytes(value).decode("utf-8"))

    into_noop(numbers(spark).select(text(F.expr("X'ff41'"))))


@case("data.zlib_bytes", type="USER_DATA", origin="user", decision="stop", line="zlib.decompress")
def zlib_bytes(spark: SparkSession, folder: Path) -> None:
    @F.udf("binary")
    def unpacked(body: bytes) -> bytes:
        return zlib.decompress(body)

    into_noop(numbers(spark).select(unpacked(F.col("value").cast("string").cast("binary"))))


@case("data.base64_text", type="USER_DATA", origin="user", decision="stop", line="base64.b64decode")
def base64_text(spark: SparkSession, folder: Path) -> None:
    def decode(batch: DataFrame, epoch: int) -> None:
        for row in batch.selectExpr("concat('abc', value, '=x') AS body").collect():
            base64.b64decode(row.body, validate=True)

    fails(numbers(spark).writeStream.foreachBatch(decode))


@case("data.files_row", type="USER_DATA", origin="library", decision="stop")
def files_row(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.csv").write_text("1,2.5\ntwo,4.5\n")
    rows = spark.readStream.format("files").option("uid", "prices").option("path", str(folder / "in"))
    into_noop(rows.schema("id int, price double").load())


@case("data.files_text", type="USER_DATA", origin="library", decision="stop")
def files_text(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.json").write_bytes(b'{"name": "M\xfcller"}\n')
    rows = spark.readStream.format("files").option("uid", "names").option("path", str(folder / "in"))
    into_noop(rows.schema("name string").load())


@case("data.generated_column", type="USER_DATA", origin="library", decision="stop")
def generated_column(spark: SparkSession, folder: Path) -> None:
    columns = "id long, day date GENERATED ALWAYS AS (date '2024-01-01')"
    spark.sql(f"CREATE TABLE delta.`{folder}/table` ({columns}) USING delta")
    rows = numbers(spark).selectExpr("value AS id", "date '2024-01-02' AS day")
    writer = rows.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
    fails(writer.option("path", str(folder / "table")))
