"""Failures of the state of queries."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StatefulProcessor, StatefulProcessorHandle

from tests.failures.corpus import case
from tests.failures.running import fails, numbers

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_ON_HEAP = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


def _counts(spark: SparkSession, key: str = "value % 2", *more: Column) -> DataFrame:
    return numbers(spark).groupBy(F.expr(key).alias("key")).agg(F.count("*").alias("n"), *more)


def _into(folder: Path, frame: DataFrame, mode: str = "complete") -> DataStreamWriter:
    return frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(folder / "checkpoint"))


def _run(writer: DataStreamWriter) -> None:
    """Some epochs, without a failure."""
    query = writer.start()
    try:
        while (query.lastProgress or {"batchId": 0})["batchId"] < 2 and query.isActive:
            query.awaitTermination(0.1)
    finally:
        query.stop()


@case("states.deleted_files", type="STATE", origin="spark", decision="restore")
def deleted_files(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, _counts(spark)))
    for file in (folder / "checkpoint" / "state" / "0").glob("[0-9]*/*"):
        if file.is_file():
            file.unlink()
    fails(_into(folder, _counts(spark)))


@case("states.damaged_files", type="STATE", origin="spark", decision="restore")
def damaged_files(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, _counts(spark)))
    for file in (folder / "checkpoint" / "state" / "0").glob("[0-9]*/*"):
        if file.is_file():
            file.write_bytes(b"damaged by a bad disk")
    for checksum in (folder / "checkpoint" / "state").rglob(".*.crc"):
        checksum.unlink()
    fails(_into(folder, _counts(spark)))


def _on_heap(spark: SparkSession, folder: Path, damage: bytes | None) -> None:
    before, version = spark.conf.get(_PROVIDER), spark.conf.get(_VERSION)
    spark.conf.set(_PROVIDER, _ON_HEAP)
    spark.conf.set(_VERSION, "1")
    try:
        _run(_into(folder, _counts(spark)))
        spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # type: ignore[union-attr]
        for file in (folder / "checkpoint" / "state" / "0").glob("[0-9]*/*.delta"):
            if damage is None:
                file.unlink()
            else:
                file.write_bytes(damage)
                file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        fails(_into(folder, _counts(spark)))
    finally:
        spark.conf.set(_PROVIDER, before)
        spark.conf.set(_VERSION, version)


@case("states.deleted_delta", type="STATE", origin="spark", decision="restore")
def deleted_delta(spark: SparkSession, folder: Path) -> None:
    _on_heap(spark, folder, None)


@case("states.damaged_delta", type="STATE", origin="spark", decision="restore")
def damaged_delta(spark: SparkSession, folder: Path) -> None:
    _on_heap(spark, folder, b"damaged by a bad disk, and long enough to be read")


@case("states.key_type", type="STATE", origin="spark", decision="ask")
def key_type(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, _counts(spark)))
    fails(_into(folder, _counts(spark, "cast(value % 2 AS string)")))


@case("states.value_columns", type="STATE", origin="spark", decision="ask")
def value_columns(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, _counts(spark)))
    fails(_into(folder, _counts(spark, "value % 2", F.avg("value").alias("mean"))))


@case("states.operators", type="STATE", origin="spark", decision="ask")
def operators(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, numbers(spark).dropDuplicates(["value"]), "append"))
    twice = numbers(spark).dropDuplicates(["value"]).dropDuplicates(["timestamp"])
    fails(_into(folder, twice, "append"))


@case("states.partitions", type="STATE", origin="spark", decision="restore")
def partitions(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, numbers(spark).dropDuplicates(["value"]), "append"))
    shutil.rmtree(folder / "checkpoint" / "state" / "0" / "1")
    fails(_into(folder, numbers(spark).dropDuplicates(["value"]), "append"))


class _Totals(StatefulProcessor):
    """Keeps a total of the type that it is made with."""

    def __init__(self, schema: str) -> None:
        self.schema = schema

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", self.schema)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.total.update((sum(1 for _ in rows),))
        yield Row(key=key[0])

    def close(self) -> None:
        pass


def _totals(spark: SparkSession, schema: str) -> DataFrame:
    groups = numbers(spark).withColumn("key", F.col("value") % 2).groupBy("key")
    return groups.transformWithState(_Totals(schema), "key long", "append", "none")


@case("states.variable_type", type="STATE", origin="spark", decision="ask")
def variable_type(spark: SparkSession, folder: Path) -> None:
    _run(_into(folder, _totals(spark, "total long"), "append"))
    fails(_into(folder, _totals(spark, "total string"), "append"))


@case("states.late_variable", type="USER_CODE", origin="user", decision="stop", line='getValueState("late"')
def late_variable(spark: SparkSession, folder: Path) -> None:
    class Late(_Totals):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.handle = handle

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            self.handle.getValueState("late", "n long").update((1,))
            yield Row(key=key[0])

    groups = numbers(spark).withColumn("key", F.col("value") % 2).groupBy("key")
    fails(_into(folder, groups.transformWithState(Late(""), "key long", "append", "none"), "append"))
