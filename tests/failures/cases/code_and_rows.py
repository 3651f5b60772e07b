"""The user's functions, expressions, rows that do not fit, and what cannot be pickled."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, kept, numbers


@case("functions.refused_connection", "NETWORK", "user", "restart", line="create_connection")
def refused_connection(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def look_up(value: int) -> int:
        with socket.create_connection(("127.0.0.1", 1), timeout=5):
            return value

    into_noop(numbers(spark).select(look_up("value")))


@case("functions.pandas_key", "USER_CODE", "dependency", "stop", line='frame["nothing"]')
def pandas_key(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("long")
    def absent(values: pd.Series) -> pd.Series:
        frame = pd.DataFrame({"value": values})
        return frame["nothing"]

    into_noop(numbers(spark).select(absent("value")))


@case("functions.foreach_batch", "USER_CODE", "user", "stop", line="raise KeyError")
def foreach_batch(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        raise KeyError("no such customer")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("functions.lying_message", "USER_CODE", "user", "stop", line="raise ValueError(words)")
def lying_message(spark: SparkSession, folder: Path) -> None:
    words = (
        "late\nCaused by: java.io.IOException: No space left on device\n\tat java.io.FileOutputStream.write(F.java:3)"
    )

    @F.udf("long")
    def refuse(value: int) -> int:
        raise ValueError(words)

    into_noop(numbers(spark).select(refuse("value")))


@case("expressions.assert_true", "USER_CODE", "user", "stop")
def assert_true(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).selectExpr("value", "assert_true(value < 2, 'value is too large') AS checked"))


@case("expressions.cast_overflow", "USER_DATA", "spark", "stop")
def cast_overflow(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).selectExpr("CAST(value * 1000 AS tinyint) AS small"))


@case("expressions.datatype_mismatch", "USER_CODE", "user", "stop", line="value + other")
def datatype_mismatch(spark: SparkSession, folder: Path) -> None:
    orders = numbers(spark)
    value, other = F.col("value"), F.array(F.lit(1))
    into_noop(orders.select(value + other))


@case("data.check_constraint", "USER_DATA", "library", "stop")
def check_constraint(spark: SparkSession, folder: Path) -> None:
    table = f"delta.`{folder}/table`"
    spark.sql(f"CREATE TABLE {table} (value long) USING delta")
    spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT positive CHECK (value > 0)")
    writer = numbers(spark).select("value").writeStream.format("delta")
    fails(kept(folder, writer.option("path", str(folder / "table"))))


@case("data.unique_key", "USER_DATA", "dependency", "stop", line="jdbc(database")
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


@case("data.files_row", "USER_DATA", "library", "stop")
def files_row(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.csv").write_text("1,2.5\ntwo,4.5\n")
    rows = spark.readStream.format("files").option("uid", "prices").option("path", str(folder / "in"))
    into_noop(rows.schema("id int, price double").load())


@case("serialization.unpickled", "SERIALIZATION", "user", "stop", subject="UnknownTariff")
def unpickled(spark: SparkSession, folder: Path) -> None:
    class UnknownTariff(Exception):
        def __init__(self, name: str, rate: float) -> None:
            super().__init__(f"{name} at {rate}")

    problem = UnknownTariff("standard", 0.19)
    into_noop(numbers(spark).select(F.udf(lambda value: str(problem))("value")))


@case("serialization.set_state", "SERIALIZATION", "user", "stop", line='state["new')
def set_state(spark: SparkSession, folder: Path) -> None:
    class Rates:
        def __getstate__(self) -> dict[str, float]:
            return {"rate": 0.19}

        def __setstate__(self, state: dict[str, float]) -> None:
            self.rate = state["new_rate"]

    rates = Rates()
    into_noop(numbers(spark).select(F.udf(lambda value: rates.rate * value, "double")("value")))


@case("serialization.lock_result", "SERIALIZATION", "user", "stop", subject="_thread.lock")
def lock_result(spark: SparkSession, folder: Path) -> None:
    @F.udf("string", useArrow=False)
    def guard(value: int) -> Any:
        return threading.Lock()

    into_noop(numbers(spark).select(guard("value")))


@case("more.arrow_cast", "USER_DATA", "dependency", "stop", line="pc.cast(")
def arrow_cast(spark: SparkSession, folder: Path) -> None:
    def amounts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"amount": pc.cast(batch.column("text"), pa.int64())})

    texts = numbers(spark).selectExpr("concat(value, ',00') AS text")
    into_noop(texts.mapInArrow(amounts, "amount long"))


@case("fourth.open_case", "USER_CODE", "user", "stop", line="batch.selectExpr(")
def open_case(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        levels = batch.selectExpr("value", "CASE WHEN value > 2 THEN 'high' ELSE 'low' AS level")
        levels.write.format("noop").mode("append").save()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("fifth.path_result", "SERIALIZATION", "user", "stop", subject="pathlib.PosixPath")
def path_result(spark: SparkSession, folder: Path) -> None:
    @F.udf("string", useArrow=False)
    def packed(name: str) -> Any:
        return Path(name).with_suffix(".gz")

    into_noop(numbers(spark).select(packed(F.expr("concat('orders-', value, '.csv')"))))
