"""What often fails, unseen by the rules: functions, rows, what cannot be pickled."""

from __future__ import annotations

import io
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deltalake
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import tenacity
from dateutil import parser  # type: ignore[import-untyped]
from pydantic import BaseModel, Field
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from tests.failures.cases.fourth_a import database
from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers

# Functions and expressions.


@case(
    "fifth.word_pairs", held_out=True, type="USER_CODE", origin="user", decision="stop", line="in Counter(text.split())"
)
def word_pairs(spark: SparkSession, folder: Path) -> None:
    class Words:
        def eval(self, text: str) -> Iterator[tuple[str, int]]:
            for word, count in Counter(text.split()):  # type: ignore[str-unpack]
                yield word, int(count)

    spark.udtf.register("fifth_words", F.udtf(Words, returnType="word string, n int"))
    numbers(spark).selectExpr("concat('order number ', value) AS text").createOrReplaceTempView("fifth_texts")
    into_noop(spark.sql("SELECT words.* FROM fifth_texts, LATERAL fifth_words(text) AS words"))


@case(
    "fifth.truth_of_series", held_out=True, type="USER_CODE", origin="dependency", decision="stop",
    line="if amounts > 100",
)  # fmt: skip
def truth_of_series(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("double")
    def fee(amounts: pd.Series) -> pd.Series:
        return amounts * 0.02 if amounts > 100 else amounts * 0.03

    into_noop(numbers(spark).select(fee("value")))


@case("fifth.no_kernel", held_out=True, type="USER_CODE", origin="dependency", decision="stop", line="pc.multiply(")
def no_kernel(spark: SparkSession, folder: Path) -> None:
    @F.arrow_udf("double")
    def total(prices: pa.Array, quantities: pa.Array) -> pa.Array:
        return pc.multiply(prices, quantities)

    into_noop(numbers(spark).select(total("value", F.col("value").cast("string"))))


@case("fifth.merge_types", held_out=True, type="USER_CODE", origin="dependency", decision="stop", line="frame.merge(")
def merge_types(spark: SparkSession, folder: Path) -> None:
    prices = pd.DataFrame({"sku": ["0", "1", "2"], "price": [1.5, 2.5, 3.5]})

    def priced(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame.merge(prices, on="sku", how="left")

    skus = numbers(spark).selectExpr("value AS sku")
    into_noop(skus.mapInPandas(priced, "sku long, price double"))


@case(
    "fifth.state_not_tuple", held_out=True, type="USER_CODE", origin="user", decision="stop", line="self.rows.update("
)
def state_not_tuple(spark: SparkSession, folder: Path) -> None:
    class Rows(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.rows = handle.getValueState("rows", "n int")

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
            n = sum(len(frame) for frame in rows)
            self.rows.update(n)  # type: ignore[arg-type]
            yield pd.DataFrame({"id": [key[0]], "n": [n]})

        def close(self) -> None:
            pass

    groups = numbers(spark).withColumn("id", F.col("value") % 2).groupBy("id")
    into_noop(groups.transformWithStateInPandas(Rows(), "id long, n long", "append", "none"))


@case(
    "fifth.column_as_bool", held_out=True, type="USER_CODE", origin="user", decision="stop", line="if batch.value > 3"
)
def column_as_bool(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        if batch.value > 3:
            batch.write.parquet(str(folder / "late"), mode="append")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("fifth.opened_nothing", held_out=True, type="USER_CODE", origin="user", decision="stop", line="self.file.write(")
def opened_nothing(spark: SparkSession, folder: Path) -> None:
    class Audit:
        file: io.TextIOBase

        def open(self, partition: int, epoch: int) -> bool:
            return True

        def process(self, row: Row) -> None:
            self.file.write(f"{row.value}\n")

    fails(numbers(spark).writeStream.foreach(Audit()))


@case("fifth.retried_fault", held_out=True, type="USER_CODE", origin="user", decision="stop", line='prices.get("EUR")')
def retried_fault(spark: SparkSession, folder: Path) -> None:
    prices = {"USD": 1.1}

    @F.udf("double")
    @tenacity.retry(stop=tenacity.stop_after_attempt(3))
    def converted(value: int) -> float:
        return value * prices.get("EUR")  # type: ignore[operator]

    into_noop(numbers(spark).select(converted("value")))


@case(
    "fifth.where_sum", held_out=True, type="USER_CODE", origin="user", decision="stop", line='.where("sum(value) > 1")'
)
def where_sum(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        large = batch.select("value").where("sum(value) > 1")
        large.write.format("noop").mode("append").save()

    fails(numbers(spark).writeStream.foreachBatch(write))


# Rows.


@case("fifth.order_model", held_out=True, type="USER_DATA", origin="dependency", decision="stop", line="Order(**")
def order_model(spark: SparkSession, folder: Path) -> None:
    class Order(BaseModel):
        value: int = Field(gt=0)

    def write(batch: DataFrame, epoch: int) -> None:
        print([Order(**row.asDict()) for row in batch.select("value").collect()])

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("fifth.csv_payload", held_out=True, type="USER_DATA", origin="dependency", decision="stop", line="pd.read_csv(")
def csv_payload(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def pieces(body: str) -> int:
        return int(pd.read_csv(io.StringIO(body))["pieces"].sum())

    bodies = numbers(spark).selectExpr("concat('sku,pieces\\nA,1\\nB,', value, ',5\\n') AS body")
    into_noop(bodies.select(pieces("body")))


@case("fifth.session_uuid", held_out=True, type="USER_DATA", origin="user", decision="stop", line="uuid.UUID(session)")
def session_uuid(spark: SparkSession, folder: Path) -> None:
    @F.udf("int")
    def version(session: str) -> Any:
        return uuid.UUID(session).version

    into_noop(numbers(spark).select(version(F.expr("concat('guest-', value)"))))


@case(
    "fifth.unknown_customer", held_out=True, type="USER_DATA", origin="dependency", decision="stop",
    line='connection.execute("INSERT',
)  # fmt: skip
def unknown_customer(spark: SparkSession, folder: Path) -> None:
    with database() as shop:
        shop.run("CREATE TABLE customers (id bigint PRIMARY KEY)", "INSERT INTO customers VALUES (0), (1)")
        shop.run("CREATE TABLE orders (customer bigint REFERENCES customers)")

        def write(batch: DataFrame, epoch: int) -> None:
            with shop.connect() as connection:
                for row in batch.collect():
                    connection.execute("INSERT INTO orders VALUES (%s)", [row.value])

        fails(numbers(spark).writeStream.foreachBatch(write))


@case("fifth.negative_amount", held_out=True, type="USER_DATA", origin="dependency", decision="stop", line=".save(")
def negative_amount(spark: SparkSession, folder: Path) -> None:
    spark.sql(f"CREATE TABLE delta.`{folder}/payments` (amount LONG) USING delta")
    spark.sql(f"ALTER TABLE delta.`{folder}/payments` ADD CONSTRAINT paid CHECK (amount >= 0)")

    def write(batch: DataFrame, epoch: int) -> None:
        amounts = batch.selectExpr("2 - value AS amount")
        amounts.write.format("delta").mode("append").save(f"{folder}/payments")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("fifth.price_format", held_out=True, type="USER_DATA", origin="spark", decision="stop")
def price_format(spark: SparkSession, folder: Path) -> None:
    texts = numbers(spark).selectExpr("if(value = 3, '3,50', concat(value, '.50')) AS text")
    into_noop(texts.select(F.to_number("text", F.lit("999.99"))))


@case(
    "fifth.free_date", held_out=True, type="USER_DATA", origin="dependency", decision="stop", line="parser.parse(text)"
)
def free_date(spark: SparkSession, folder: Path) -> None:
    @F.udf("timestamp")
    def written(text: str) -> Any:
        return parser.parse(text)

    into_noop(numbers(spark).select(written(F.expr("concat(value + 28, ' Feb 2023')"))))


# What cannot be pickled.


@case("fifth.held_pool", held_out=True, type="SERIALIZATION", origin="user", decision="stop", subject="SimpleQueue")
def held_pool(spark: SparkSession, folder: Path) -> None:
    pool = ThreadPoolExecutor(4)

    @F.pandas_udf("string")
    def names(values: pd.Series) -> pd.Series:
        return pd.Series(list(pool.map(hex, values)))

    into_noop(numbers(spark).select(names("value")))


@case("fifth.match_result", held_out=True, type="SERIALIZATION", origin="user", decision="stop", subject="re.Match")
def match_result(spark: SparkSession, folder: Path) -> None:
    @F.udf("string", useArrow=False)
    def number(text: str) -> Any:
        return re.search(r"\d+", text)

    into_noop(numbers(spark).select(number(F.expr("concat('order ', value)"))))


@case(
    "fifth.path_result", held_out=True, type="SERIALIZATION", origin="user", decision="stop",
    subject="pathlib.PosixPath",
)  # fmt: skip
def path_result(spark: SparkSession, folder: Path) -> None:
    @F.udf("string", useArrow=False)
    def packed(name: str) -> Any:
        return Path(name).with_suffix(".gz")

    into_noop(numbers(spark).select(packed(F.expr("concat('orders-', value, '.csv')"))))


@case("fifth.rust_table", held_out=True, type="SERIALIZATION", origin="user", decision="stop", subject="RawDeltaTable")
def rust_table(spark: SparkSession, folder: Path) -> None:
    spark.range(3).write.format("delta").save(f"{folder}/rates")
    rates = deltalake.DeltaTable(f"{folder}/rates")

    def valid(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known = rates.to_pyarrow_table().column("id")
        for batch in batches:
            yield batch.filter(pc.is_in(batch.column("value"), known))

    into_noop(numbers(spark).select("value").mapInArrow(valid, "value long"))
