"""Exceptions of users whose messages say something else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

import spark_ext as sx
from tests.failures.building import add_java
from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers

OUT_OF_MEMORY = """java.lang.OutOfMemoryError: Java heap space
\tat java.base/java.util.Arrays.copyOf(Arrays.java:3537)
\tat org.apache.spark.unsafe.types.UTF8String.concat(UTF8String.java:871)
Caused by: java.lang.OutOfMemoryError: GC overhead limit exceeded
\t... 12 more"""

CHAINED = """could not be priced

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/requests/adapters.py", line 700, in send
    raise ConnectionError(e, request=request)
requests.exceptions.ConnectionError: HTTPSConnectionPool(host='shop', port=443): Max retries exceeded
"""

STATE = (
    "[CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS] An error occurred during loading state. "
    "Error reading delta file /state/0/0/2.delta: /state/0/0/2.delta does not exist. SQLSTATE: 58030"
)

FENCED = """[FENCED] incarnation 4 of the job has claimed the table; this is incarnation 3
  at:   job 'shop', query 'load', sink 'orders-table'
  kept: everything that was committed; this incarnation adds nothing
  do:   nothing: the newer start of the job continues; make sure that only one is started"""


def _raises(spark: SparkSession, words: str) -> None:
    @F.udf("long")
    def refuse(value: int) -> int:
        raise ValueError(words)

    into_noop(numbers(spark).select(refuse("value")))


@case("lies.out_of_memory", type="USER_CODE", origin="user", decision="stop", line="raise ValueError(words)")
def out_of_memory(spark: SparkSession, folder: Path) -> None:
    _raises(spark, OUT_OF_MEMORY)


@case("lies.chained_traceback", type="USER_CODE", origin="user", decision="stop", line="raise ValueError(words)")
def chained_traceback(spark: SparkSession, folder: Path) -> None:
    _raises(spark, CHAINED)


@case("lies.during_handling", type="USER_CODE", origin="user", decision="stop", line="raise RuntimeError(")
def during_handling(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("long")
    def refuse(values: pd.Series) -> pd.Series:
        raise RuntimeError(
            "MemoryError\n\nDuring handling of the above exception, another exception occurred:\n\n"
            'Traceback (most recent call last):\n  File "<stdin>", line 1, in <module>\nOSError: [Errno 28] No space'
            " left"
        )

    into_noop(numbers(spark).select(refuse("value")))


@case("lies.state_store", type="USER_CODE", origin="user", decision="stop", line="raise LookupError(STATE)")
def state_store(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        raise LookupError(STATE)

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("lies.state_store_sql", type="USER_CODE", origin="user", decision="stop")
def state_store_sql(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).select(F.when(F.col("value") > 2, F.raise_error(F.lit(STATE))).otherwise("fine")))


@case("lies.fenced", type="USER_CODE", origin="user", decision="stop", line="raise PermissionError(FENCED)")
def fenced(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        raise PermissionError(FENCED)

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("lies.fenced_in_worker", type="USER_CODE", origin="user", decision="stop", line="raise ValueError(words)")
def fenced_in_worker(spark: SparkSession, folder: Path) -> None:
    _raises(spark, f"spark_ext.errors.FencedError: {FENCED}")


@case("lies.class_of_spark_ext", type="USER_CODE", origin="user", decision="stop", line="raise FencedError(")
def class_of_spark_ext(spark: SparkSession, folder: Path) -> None:
    class FencedError(Exception):
        code = "FENCED"

    @F.udf("long")
    def refuse(value: int) -> int:
        raise FencedError("the garden is fenced")

    into_noop(numbers(spark).select(refuse("value")))


@case("lies.class_name", type="USER_CODE", origin="user", decision="stop", line="raise MemoryError(")
def class_name(spark: SparkSession, folder: Path) -> None:
    class MemoryError(Exception):
        """Nothing was memorized."""

    @F.udf("long")
    def refuse(value: int) -> int:
        raise MemoryError("nobody remembers this customer")

    into_noop(numbers(spark).select(refuse("value")))


@case("lies.connection_refused", type="USER_CODE", origin="user", decision="stop", line="raise KeyError(")
def connection_refused(spark: SparkSession, folder: Path) -> None:
    async def look_up(row: Row) -> tuple[int]:
        raise KeyError("ConnectionRefusedError: [Errno 111] Connection refused")

    into_noop(sx.async_map(numbers(spark), look_up, "value long"))


@case("lies.proxy", type="USER_CODE", origin="user", decision="stop", line="assert batch.isEmpty()")
def proxy(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        assert batch.isEmpty(), (
            "py4j.protocol.Py4JJavaError: An error occurred while calling o42.save.\n"
            ": org.apache.spark.SparkException: Job aborted due to stage failure: ExecutorLostFailure (executor 1 "
            "exited caused by one of the running tasks) Reason: Container killed on request. Exit code is 137"
        )

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("lies.cancelled", type="USER_CODE", origin="user", decision="stop", line="raise OSError(")
def cancelled(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def refuse(value: int) -> int:
        raise OSError("[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job group nightly SQLSTATE: XXKDA")

    into_noop(numbers(spark).select(refuse("value")))


@case("lies.kept_words", type="USER_DATA", origin="user", decision="stop", line='cast("int")')
def kept_words(spark: SparkSession, folder: Path) -> None:
    texts = numbers(spark).select(F.concat(F.lit("java.io.IOException: No space left on device "), "value").alias("t"))
    into_noop(texts.select(F.col("t").cast("int")))


@case("lies.json", type="USER_DATA", origin="user", decision="stop", line="json.loads(text)")
def json_of_errors(spark: SparkSession, folder: Path) -> None:
    @F.udf("string")
    def status(text: str) -> str:
        return str(json.loads(text))

    into_noop(numbers(spark).select(status(F.lit(f'{{"error": "{OUT_OF_MEMORY.splitlines()[0]}"'))))


@case("lies.source", type="SOURCE", origin="user", decision="restart once", line="raise ValueError(FENCED)")
def source(spark: SparkSession, folder: Path) -> None:
    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"n": 0}

        def latestOffset(self) -> dict[str, int]:
            raise ValueError(FENCED)

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return []

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            return iter(())

    class Liar(DataSource):
        @classmethod
        def name(cls) -> str:
            return "failing_liar"

        def schema(self) -> str:
            return "value int"

        def streamReader(self, schema: object) -> DataSourceStreamReader:
            return Reader()

    spark.dataSource.register(Liar)
    into_noop(spark.readStream.format("failing_liar").load())


@case("lies.java", type="USER_CODE", origin="user", decision="stop")
def java(spark: SparkSession, folder: Path) -> None:
    add_java(
        spark,
        "shop.Polite",
        """public class Polite implements org.apache.spark.sql.api.java.UDF1<Long, Long> {
          public Long call(Long value) {
            throw new IllegalStateException(
              "java.net.ConnectException: Connection refused\\n\\tat java.net.Socket.x(S.java)");
          }
        }""",
    )
    spark.udf.registerJavaFunction("failing_polite", "shop.Polite", "long")
    into_noop(numbers(spark).selectExpr("failing_polite(value)"))


@case("lies.number", type="USER_CODE", origin="user", decision="stop", line="raise ApplicationError(")
def number(spark: SparkSession, folder: Path) -> None:
    class ApplicationError(Exception):
        errno = 28

        def __str__(self) -> str:
            return f"[Errno {self.errno}] article 28 is not for sale"

    @F.udf("long")
    def refuse(value: int) -> int:
        raise ApplicationError(value)

    into_noop(numbers(spark).select(refuse("value")))


@case("lies.parsed", type="USER_CODE", origin="user", decision="stop", line="raise ValueError(")
def parsed(spark: SparkSession, folder: Path) -> None:
    @F.udf("long")
    def refuse(value: int) -> int:
        raise ValueError("time data 'in spring' does not match format 'in %B'")

    into_noop(numbers(spark).select(refuse("value")))


@case("lies.threads", type="USER_CODE", origin="user", decision="stop", line="raise RuntimeError(")
def threads(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        raise RuntimeError("can't start new thread of conversation")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("lies.group", type="USER_CODE", origin="user", decision="stop", line="raise LookupError(")
def group(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        raise LookupError(
            "\n\nDuring handling of the above exception, another exception occurred:\n\n  + Exception Group Traceback "
            "(most recent call last):\n  | ExceptionGroup: all (1 sub-exception)\n  +-+---------------- 1 ------------"
            "----\n    | MemoryError: no\n    +------------------------------------"
        )

    fails(numbers(spark).writeStream.foreachBatch(write))
