"""Further failures: functions and rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from delta import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


@case("more.second_batch", type="USER_CODE", origin="user", decision="stop", line="first, second =")
def second_batch(spark: SparkSession, folder: Path) -> None:
    def pairs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while True:
            first, second = next(batches), next(batches)
            yield pa.concat_batches([first, second])

    into_noop(numbers(spark).select("value").mapInArrow(pairs, "value long"))


@case("more.rate_limit", type="USER_CODE", origin="user", decision="stop", line="raise RateError(")
def rate_limit(spark: SparkSession, folder: Path) -> None:
    class RateError(RuntimeError):
        pass

    @F.pandas_udf("double")
    def converted(values: pd.Series) -> pd.Series:
        try:
            return values / {"EUR": 1.0}["USD"]
        except KeyError:
            raise RateError("HTTP 429 Too Many Requests: Connection reset by peer (errno 104)")

    into_noop(numbers(spark).select(converted("value")))


@case("more.pool", type="USER_CODE", origin="user", decision="stop", line="row.value.isoformat()")
def pool(spark: SparkSession, folder: Path) -> None:
    def sent(row: Row) -> str:
        return str(row.value.isoformat())

    def write(batch: DataFrame, epoch: int) -> None:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(sent, batch.collect()))

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("more.session_totals", type="USER_CODE", origin="user", decision="stop")
def session_totals(spark: SparkSession, folder: Path) -> None:
    def total(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[Any]:
        state.update((sum(int(frame["value"].sum()) for frame in frames),))
        yield (key[0], state.get[0])

    groups = numbers(spark).withColumn("id", F.col("value") % 2).groupBy("id")
    schemas = ("id long, total long", "total long")
    into_noop(groups.applyInPandasWithState(total, *schemas, "append", GroupStateTimeout.NoTimeout))


@case("more.cogroup", type="USER_CODE", origin="dependency", decision="stop", line='on="customer"')
def cogroup(spark: SparkSession, folder: Path) -> None:
    def joined(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return left.merge(right, on="customer")

    def write(batch: DataFrame, epoch: int) -> None:
        groups = batch.select("value").groupBy("value")
        groups.cogroup(groups).applyInPandas(joined, "value long").write.format("noop").mode("append").save()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("more.own_check", type="USER_CODE", origin="user", decision="stop")
def own_check(spark: SparkSession, folder: Path) -> None:
    refused = F.raise_error(F.lit("java.net.SocketTimeoutException: Read timed out"))
    into_noop(numbers(spark).select(F.when(F.col("value") > 2, refused).otherwise(F.lit("fine"))))


@case("more.order_number", type="USER_DATA", origin="user", decision="stop", line="cast")
def order_number(spark: SparkSession, folder: Path) -> None:
    number = F.concat(F.lit("A-"), F.col("value").cast("string"))
    into_noop(numbers(spark).select(number.cast("int")))


@case("more.xml", type="USER_DATA", origin="user", decision="stop", line="ElementTree.fromstring(")
def xml(spark: SparkSession, folder: Path) -> None:
    @F.udf("string")
    def tag(value: int) -> str:
        return ElementTree.fromstring(f"<order><id>{value}</order>").tag

    into_noop(numbers(spark).select(tag("value")))


@case("more.arrow_cast", type="USER_DATA", origin="dependency", decision="stop", line="pc.cast(")
def arrow_cast(spark: SparkSession, folder: Path) -> None:
    def amounts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"amount": pc.cast(batch.column("text"), pa.int64())})

    texts = numbers(spark).selectExpr("concat(value, ',00') AS text")
    into_noop(texts.mapInArrow(amounts, "amount long"))


@case("more.unique", type="USER_DATA", origin="user", decision="stop", line="INSERT INTO orders")
def unique(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        with sqlite3.connect(folder / "orders.db") as database:
            database.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")
            for row in batch.collect():
                database.execute("INSERT INTO orders VALUES (?)", (row.value % 3,))

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("more.merge", type="USER_DATA", origin="dependency", decision="stop", line=".execute()")
def merge(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")
    spark.range(2).write.format("delta").save(table)

    def write(batch: DataFrame, epoch: int) -> None:
        target = DeltaTable.forPath(batch.sparkSession, table).alias("t")
        source = batch.selectExpr("value % 2 AS id").alias("s")
        target.merge(source, "t.id = s.id").whenMatchedUpdate(set={"id": "s.id + 10"}).execute()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("more.day", type="USER_DATA", origin="spark", decision="stop")
def day(spark: SparkSession, folder: Path) -> None:
    days = numbers(spark).selectExpr("concat('2024-13-0', value + 1) AS day")
    into_noop(days.selectExpr("to_timestamp(day, 'yyyy-MM-dd') AS day"))


@case(
    "more.captured_database",
    type="SERIALIZATION",
    origin="user",
    decision="stop",
    subject="sqlite3.Connection",
)
def captured_database(spark: SparkSession, folder: Path) -> None:
    database = sqlite3.connect(folder / "names.db")

    @F.udf("string")
    def name(value: int) -> str:
        return str(database.execute("SELECT name FROM names WHERE id = ?", (value,)).fetchone()[0])

    into_noop(numbers(spark).select(name("value")))


@case("more.held_generator", type="SERIALIZATION", origin="user", decision="stop", subject="generator")
def held_generator(spark: SparkSession, folder: Path) -> None:
    class Writer:
        def __init__(self) -> None:
            self.numbers = (number for number in range(100))

        def process(self, row: Row) -> None:
            print(next(self.numbers), row.value)

    fails(numbers(spark).writeStream.foreach(Writer()))
