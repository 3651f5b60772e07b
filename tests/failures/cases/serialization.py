"""Things that cannot be pickled, unpickled or serialized."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource

from tests.failures.building import add_java
from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


@case("serialization.lock", type="SERIALIZATION", origin="user", decision="stop", subject="_thread.lock")
def lock(spark: SparkSession, folder: Path) -> None:
    one_at_a_time = threading.Lock()

    @F.udf("long")
    def guarded(value: int) -> int:
        with one_at_a_time:
            return value

    into_noop(numbers(spark).select(guarded("value")))


@case("serialization.session", type="SERIALIZATION", origin="user", decision="stop", subject="SparkContext")
def session(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def price(value: int) -> int:
        return int(spark.range(value).count())

    into_noop(numbers(spark).select(price("value")))


@case("serialization.frame", type="SERIALIZATION", origin="user", decision="stop", subject="SparkContext")
def frame(spark: SparkSession, folder: Path) -> None:
    prices = spark.range(4)

    def looked_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, prices.count())

    into_noop(numbers(spark).select("value").mapInArrow(looked_up, "value long"))


@case("serialization.open_file", type="SERIALIZATION", origin="user", decision="stop", subject="files")
def open_file(spark: SparkSession, folder: Path) -> None:
    with open(folder / "log.txt", "w") as log:

        @F.udf("long")
        def logged(value: int) -> int:
            print(value, file=log)
            return value

        into_noop(numbers(spark).select(logged("value")))


@case("serialization.generator", type="SERIALIZATION", origin="user", decision="stop", subject="generator")
def generator(spark: SparkSession, folder: Path) -> None:
    names = (f"name {number}" for number in range(10))

    @F.udf("string")
    def named(value: int) -> str:
        return next(names)

    into_noop(numbers(spark).select(named("value")))


@case("serialization.connection", type="SERIALIZATION", origin="user", decision="stop", subject="sqlite3.Connection")
def connection(spark: SparkSession, folder: Path) -> None:
    class Writer:
        def __init__(self) -> None:
            self.database = sqlite3.connect(folder / "orders.db")

        def process(self, row: Row) -> None:
            self.database.execute("INSERT INTO orders VALUES (?)", [row.value])

    fails(numbers(spark).writeStream.foreach(Writer()))


@case("serialization.broadcast", type="SERIALIZATION", origin="user", decision="stop", subject="_thread.RLock")
def broadcast(spark: SparkSession, folder: Path) -> None:
    shared = {"names": {1: "one"}, "guard": threading.RLock()}

    def write(batch: DataFrame, epoch: int) -> None:
        names = batch.sparkSession.sparkContext.broadcast(shared)
        batch.select(F.udf(lambda value: names.value["names"].get(value))("value")).collect()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("serialization.unpickled", type="SERIALIZATION", origin="user", decision="stop", subject="UnknownTariff")
def unpickled(spark: SparkSession, folder: Path) -> None:
    class UnknownTariff(Exception):
        def __init__(self, name: str, rate: float) -> None:
            super().__init__(f"{name} at {rate}")

    problem = UnknownTariff("standard", 0.19)
    into_noop(numbers(spark).select(F.udf(lambda value: str(problem))("value")))


@case("serialization.set_state", type="SERIALIZATION", origin="user", decision="stop", line='state["new')
def set_state(spark: SparkSession, folder: Path) -> None:
    class Rates:
        def __getstate__(self) -> dict[str, float]:
            return {"rate": 0.19}

        def __setstate__(self, state: dict[str, float]) -> None:
            self.rate = state["new_rate"]

    rates = Rates()
    into_noop(numbers(spark).select(F.udf(lambda value: rates.rate * value, "double")("value")))


@case("serialization.numpy_result", type="SERIALIZATION", origin="user", decision="stop", subject="numpy.dtype")
def numpy_result(spark: SparkSession, folder: Path) -> None:
    @F.udf("double", useArrow=False)
    def root(value: int) -> float:
        return np.sqrt(value)  # type: ignore[no-any-return]

    into_noop(numbers(spark).select(root("value")))


@case("serialization.lock_result", type="SERIALIZATION", origin="user", decision="stop", subject="_thread.lock")
def lock_result(spark: SparkSession, folder: Path) -> None:
    @F.udf("string", useArrow=False)
    def guard(value: int) -> Any:
        return threading.Lock()

    into_noop(numbers(spark).select(guard("value")))


@case("serialization.data_source", type="SERIALIZATION", origin="user", decision="stop", subject="_thread.lock")
def data_source(spark: SparkSession, folder: Path) -> None:
    class Locked(DataSource):
        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            self.guard = threading.Lock()

        @classmethod
        def name(cls) -> str:
            return "failing_locked"

        def schema(self) -> str:
            return "value int"

    spark.dataSource.register(Locked)
    into_noop(spark.readStream.format("failing_locked").load())


@case("serialization.java_function", type="SERIALIZATION", origin="user", decision="stop", subject="java.lang.Object")
def java_function(spark: SparkSession, folder: Path) -> None:
    add_java(
        spark,
        "shop.Guarded",
        "public class Guarded implements org.apache.spark.sql.api.java.UDF1<Long, Long> {\n"
        "  private final Object guard = new Object();\n"
        "  public Long call(Long value) { synchronized (guard) { return value; } }\n"
        "}\n",
    )
    spark.udf.registerJavaFunction("failing_guarded", "shop.Guarded", "long")
    into_noop(numbers(spark).selectExpr("failing_guarded(value)"))
