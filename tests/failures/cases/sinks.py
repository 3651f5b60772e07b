"""Failures of sinks."""

from __future__ import annotations

import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

from tests.failures.corpus import case
from tests.failures.running import fails, numbers


class _Sink(DataSource):
    """A sink of the user's own."""

    def schema(self) -> str:
        return "timestamp timestamp, value long"


class _Writer(DataSourceStreamWriter):
    """Counts rows."""

    def write(self, rows: Iterator[Row]) -> WriterCommitMessage:
        list(rows)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


def _into(spark: SparkSession, folder: Path, sink: type[DataSource]) -> None:
    spark.dataSource.register(sink)
    writer = numbers(spark).writeStream.format(sink.name())
    fails(writer.option("checkpointLocation", str(folder / "checkpoint")))


@case("sinks.own_write", type="SINK", origin="user", decision="restart once", line="row.amount * 2")
def own_write(spark: SparkSession, folder: Path) -> None:
    class Writer(_Writer):
        def write(self, rows: Iterator[Row]) -> WriterCommitMessage:
            for row in rows:
                print(row.amount * 2)
            return WriterCommitMessage()

    class Shop(_Sink):
        @classmethod
        def name(cls) -> str:
            return "failing_shop_write"

        def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamWriter:
            return Writer()

    _into(spark, folder, Shop)


@case("sinks.own_commit", type="SINK", origin="user", decision="restart once", line="sum(messages)")
def own_commit(spark: SparkSession, folder: Path) -> None:
    class Writer(_Writer):
        def commit(self, messages: list[Any], batchId: int) -> None:
            print("rows", sum(messages))

    class Shop(_Sink):
        @classmethod
        def name(cls) -> str:
            return "failing_shop_commit"

        def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamWriter:
            return Writer()

    _into(spark, folder, Shop)


@case("sinks.own_message", type="SINK", origin="user", decision="restart once")
def own_message(spark: SparkSession, folder: Path) -> None:
    class Writer(_Writer):
        def write(self, rows: Iterator[Row]) -> Any:
            return {"rows": len(list(rows))}

    class Shop(_Sink):
        @classmethod
        def name(cls) -> str:
            return "failing_shop_message"

        def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamWriter:
            return Writer()

    _into(spark, folder, Shop)


@case("sinks.own_writer", type="SINK", origin="user", decision="restart once", line="self.target[0]")
def own_writer(spark: SparkSession, folder: Path) -> None:
    class Shop(_Sink):
        target = ""

        @classmethod
        def name(cls) -> str:
            return "failing_shop_writer"

        def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamWriter:
            if self.target[0] == "/":
                raise NotImplementedError
            return _Writer()

    _into(spark, folder, Shop)


@case("sinks.own_batch", type="SINK", origin="user", decision="restart once", line='row["customer"]')
def own_batch(spark: SparkSession, folder: Path) -> None:
    class Writer(DataSourceWriter):
        def write(self, rows: Iterator[Row]) -> WriterCommitMessage:
            print([row.asDict()["customer"] for row in rows] or [row["customer"] for row in rows])
            return WriterCommitMessage()

    class Shop(_Sink):
        @classmethod
        def name(cls) -> str:
            return "failing_shop_batch"

        def writer(self, schema: object, overwrite: bool) -> DataSourceWriter:
            return Writer()

    spark.dataSource.register(Shop)

    def write(batch: DataFrame, epoch: int) -> None:
        batch.write.format("failing_shop_batch").mode("append").save()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("sinks.delta_conflict", type="SINK", origin="library", decision="restart")
def delta_conflict(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")
    spark.range(4).selectExpr("id AS value").coalesce(1).write.format("delta").save(table)

    @F.udf("long")
    def meanwhile(value: int) -> int:
        import deltalake

        if value == 0:  # another writer, in the middle of the transaction
            deltalake.DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
        return value

    writer = numbers(spark).select(meanwhile("value").alias("value")).writeStream.format("delta")
    fails(writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", table))


@case("sinks.delta_vanished", type="SINK", origin="library", decision="restart")
def delta_vanished(spark: SparkSession, folder: Path) -> None:
    table = folder / "table"
    spark.range(1).selectExpr("id AS value").write.format("delta").save(str(table))

    @F.udf("long")
    def disturbed(value: int) -> int:
        if value > 4 and table.is_dir():
            shutil.rmtree(table)
            table.write_text("a file has taken the place of the table")
        return value

    rows = numbers(spark).select(disturbed("value").alias("value"))
    writer = rows.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
    fails(writer.option("path", str(table)))


@case("sinks.file_log", type="SINK", origin="spark", decision="restart")
def file_log(spark: SparkSession, folder: Path) -> None:
    out = folder / "out"

    @F.udf("long")
    def disturbed(value: int) -> int:
        if value >= 8:
            shutil.rmtree(out / "_spark_metadata", ignore_errors=True)
        return value

    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "4")
    try:
        writer = numbers(spark).select(disturbed("value").alias("value")).writeStream.format("parquet")
        fails(writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(out)))
    finally:
        spark.conf.unset("spark.sql.streaming.fileSink.log.compactInterval")


class _Receiver(http.server.BaseHTTPRequestHandler):
    status = 500

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@case("sinks.http_500", type="SINK", origin="library", decision="restart")
def http_500(spark: SparkSession, folder: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Receiver) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            writer = numbers(spark).select("value").writeStream.format("http_2pc").option("uid", "shop")
            writer = writer.option("url", f"http://127.0.0.1:{server.server_port}/").option(
                "outbox", str(folder / "out")
            )
            writer = writer.option("commit_attempts", "2").option("checkpointLocation", str(folder / "checkpoint"))
            fails(writer)
        finally:
            server.shutdown()
