"""Failures of the user's own functions."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import spark_ext as sx
from tests.failures.building import add_java
from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


@case("functions.zero_division", type="USER_CODE", origin="user", decision="stop", line="1 // (value - value)")
def zero_division(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def inverse(value: int) -> int:
        return 1 // (value - value)

    into_noop(numbers(spark).select(inverse("value")))


@case("functions.refused_connection", type="NETWORK", origin="user", decision="restart", line="create_connection")
def refused_connection(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def look_up(value: int) -> int:
        with socket.create_connection(("127.0.0.1", 1), timeout=5):
            return value

    into_noop(numbers(spark).select(look_up("value")))


@case("functions.pandas_key", type="USER_CODE", origin="dependency", decision="stop", line='frame["nothing"]')
def pandas_key(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("long")
    def absent(values: pd.Series) -> pd.Series:
        frame = pd.DataFrame({"value": values})
        return frame["nothing"]

    into_noop(numbers(spark).select(absent("value")))


@case("functions.foreach_batch", type="USER_CODE", origin="user", decision="stop", line="raise KeyError")
def foreach_batch(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        raise KeyError("no such customer")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("functions.lying_message", type="USER_CODE", origin="user", decision="stop", line="raise ValueError(words)")
def lying_message(spark: SparkSession, folder: Path) -> None:
    words = (
        "late\nCaused by: java.io.IOException: No space left on device\n\tat java.io.FileOutputStream.write(F.java:3)"
    )

    @F.udf("long")
    def refuse(value: int) -> int:
        raise ValueError(words)

    into_noop(numbers(spark).select(refuse("value")))


@case("functions.none_attribute", type="USER_CODE", origin="user", decision="stop", line="name.strip()")
def none_attribute(spark: SparkSession, folder: Path) -> None:
    def cleaned(name: Any) -> str:
        return str(name.strip().lower())

    @F.udf("string")
    def customer(value: int) -> str:
        return cleaned("Ann" if value < 2 else None)

    into_noop(numbers(spark).select(customer("value")))


@case("functions.recursion", type="USER_CODE", origin="user", decision="stop", line="depth(value + 1)")
def recursion(spark: SparkSession, folder: Path) -> None:
    def depth(value: int) -> int:
        return 1 + depth(value + 1)

    into_noop(numbers(spark).select(F.udf(depth, "long")("value")))


@case("functions.assertion", type="USER_CODE", origin="user", decision="stop", line="assert values.max()")
def assertion(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("long")
    def checked(values: pd.Series) -> pd.Series:
        assert values.max() < 3, "too large"
        return values

    into_noop(numbers(spark).select(checked("value")))


@case("functions.chained", type="USER_CODE", origin="user", decision="stop", line="raise UnknownCustomerError(")
def chained(spark: SparkSession, folder: Path) -> None:
    class UnknownCustomerError(Exception):
        pass

    @F.udf("string")
    def customer(value: int) -> str:
        try:
            return {0: "Ann"}[value]
        except KeyError as missing:
            raise UnknownCustomerError(f"customer {value}") from missing

    into_noop(numbers(spark).select(customer("value")))


@case("functions.arity", type="USER_CODE", origin="user", decision="stop")
def arity(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def both(one: int, other: int) -> int:
        return one + other

    into_noop(numbers(spark).select(both("value")))


@case("functions.wrong_type", type="USER_CODE", origin="user", decision="stop")
def wrong_type(spark: SparkSession, folder: Path) -> None:
    @F.udf("array<long>")
    def parts(value: int) -> Any:
        return {"part": value}

    into_noop(numbers(spark).select(parts("value")))


@case("functions.wrong_length", type="USER_CODE", origin="user", decision="stop")
def wrong_length(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("long")
    def positive(values: pd.Series) -> pd.Series:
        return values[values > 0]

    into_noop(numbers(spark).select(positive("value")))


@case("functions.wrong_columns", type="USER_CODE", origin="user", decision="stop")
def wrong_columns(spark: SparkSession, folder: Path) -> None:
    def renamed(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame.rename(columns={"value": "number"})

    into_noop(numbers(spark).select("value").mapInPandas(renamed, "value long"))


@case("functions.map_in_arrow", type="USER_CODE", origin="dependency", decision="stop", line='batch.column("total")')
def map_in_arrow(spark: SparkSession, folder: Path) -> None:
    def totals(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([batch.column("total")], names=["value"])

    into_noop(numbers(spark).select("value").mapInArrow(totals, "value long"))


@case("functions.apply_in_pandas", type="USER_CODE", origin="user", decision="stop", line='key["parity"]')
def apply_in_pandas(spark: SparkSession, folder: Path) -> None:
    def total(key: Any, frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"parity": [key["parity"]], "total": [frame.value.sum()]})

    def write(batch: DataFrame, epoch: int) -> None:
        parities = batch.selectExpr("value % 2 AS parity", "value").groupBy("parity")
        parities.applyInPandas(total, "parity long, total long").collect()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("functions.state_in_pandas", type="USER_CODE", origin="user", decision="stop", line="state.get[0]")
def state_in_pandas(spark: SparkSession, folder: Path) -> None:
    def count(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        before = state.get[0] if state.exists else state.get[0] + 1
        state.update((before + sum(len(frame) for frame in frames),))
        yield pd.DataFrame({"id": [key[0]], "n": [before]})

    groups = numbers(spark).withColumn("id", F.col("value") % 2).groupBy("id")
    schemas = ("id long, n long", "n long")
    into_noop(groups.applyInPandasWithState(count, *schemas, "append", GroupStateTimeout.NoTimeout))


@case("functions.processor", type="USER_CODE", origin="user", decision="stop", line='row["amount"]')
def processor(spark: SparkSession, folder: Path) -> None:
    class Totals(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.total = handle.getValueState("total", "total long")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            self.total.update((sum(row["amount"] for row in rows),))
            yield Row(id=key[0])

        def close(self) -> None:
            pass

    groups = numbers(spark).withColumn("id", F.col("value") % 2).groupBy("id")
    fails(groups.transformWithState(Totals(), "id long", "append", "none").writeStream.format("noop"))


@case("functions.processor_in_pandas", type="USER_CODE", origin="user", decision="stop", line="len(frames)")
def processor_in_pandas(spark: SparkSession, folder: Path) -> None:
    class Counts(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.count = handle.getValueState("count", "count long")

        def handleInputRows(self, key: Any, frames: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
            self.count.update((len(frames),))
            yield pd.DataFrame({"id": [key[0]]})

        def close(self) -> None:
            pass

    groups = numbers(spark).withColumn("id", F.col("value") % 2).groupBy("id")
    into_noop(groups.transformWithStateInPandas(Counts(), "id long", "append", "none"))


@case("functions.foreach_writer", type="USER_CODE", origin="user", decision="stop", line="self.lines.append")
def foreach_writer(spark: SparkSession, folder: Path) -> None:
    class Writer:
        def open(self, partition: int, epoch: int) -> bool:
            return True

        def process(self, row: Row) -> None:
            self.lines.append(row.value)  # type: ignore[attr-defined]

    fails(numbers(spark).writeStream.foreach(Writer()))


@case("functions.foreach_row", type="USER_CODE", origin="user", decision="stop", line="row.customer")
def foreach_row(spark: SparkSession, folder: Path) -> None:
    def show(row: Row) -> None:
        print(row.customer)

    fails(numbers(spark).writeStream.foreach(show))


@case("functions.table_function", type="USER_CODE", origin="user", decision="stop", line="limits[")
def table_function(spark: SparkSession, folder: Path) -> None:
    limits = (1, 2)

    class Repeated:
        def eval(self, value: int) -> Iterator[tuple[int]]:
            for number in range(limits[value]):
                yield (number,)

    spark.udtf.register("failing_repeated", F.udtf(Repeated, returnType="number int"))  # type: ignore[arg-type]
    numbers(spark).createOrReplaceTempView("failing_numbers")
    into_noop(spark.sql("SELECT value, number FROM failing_numbers, LATERAL failing_repeated(value)"))


@case("functions.java", type="USER_CODE", origin="user", decision="stop")
def java(spark: SparkSession, folder: Path) -> None:
    add_java(
        spark,
        "shop.Discount",
        """public class Discount implements org.apache.spark.sql.api.java.UDF1<Long, Long> {
          private static Long rate(Long value) { return value < 2 ? value : null; }
          public Long call(Long value) { return 100 - rate(value); }
        }""",
    )
    spark.udf.registerJavaFunction("failing_discount", "shop.Discount", "long")
    into_noop(numbers(spark).selectExpr("failing_discount(value)"))


@case("functions.async_map", type="USER_CODE", origin="user", decision="stop", line='row["customer"]')
def async_map(spark: SparkSession, folder: Path) -> None:
    async def look_up(row: Row) -> tuple[str]:
        return (row["customer"],)

    into_noop(sx.async_map(numbers(spark), look_up, "customer string"))


@case("functions.in_foreach_batch", type="USER_CODE", origin="user", decision="stop", line="rates[currency]")
def in_foreach_batch(spark: SparkSession, folder: Path) -> None:
    rates = {"EUR": 1.0}

    @F.udf("double")
    def rate(currency: str) -> float:
        return rates[currency]

    def write(batch: DataFrame, epoch: int) -> None:
        batch.select(rate(F.lit("USD"))).write.mode("append").parquet(str(folder / "rates"))

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("functions.join_of_batch", type="USER_CODE", origin="user", decision="stop", line="raise RuntimeError(")
def join_of_batch(spark: SparkSession, folder: Path) -> None:
    names = spark.createDataFrame([(0, "Ann")], "value long, name string")

    def write(batch: DataFrame, epoch: int) -> None:
        try:
            missing = batch.join(names, "value", "left_anti").count()
            assert missing == 0
        except AssertionError:
            raise RuntimeError("customers without a name")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("functions.into_python_sink", type="USER_CODE", origin="user", decision="stop", line='{"EUR": 1.0}[currency]')
def into_python_sink(spark: SparkSession, folder: Path) -> None:
    @F.udf("double")
    def rate(currency: str) -> float:
        return {"EUR": 1.0}[currency]

    rows = spark.readStream.format("datagen").option("uid", "in").option("rows", 4).load()
    target = rows.select(rate(F.lit("USD")).alias("rate")).writeStream.format("delta_2pc").option("uid", "out")
    fails(target.option("path", str(folder / "out")).option("checkpointLocation", str(folder / "checkpoint")))
