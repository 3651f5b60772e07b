"""Failures for wrong or missing settings."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path

import requests
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


@case("configuration.missing_table", type="CONFIGURATION", origin="user", decision="stop")
def missing_table(spark: SparkSession, folder: Path) -> None:
    into_noop(spark.readStream.table("no_such_orders"))


@case("configuration.missing_path", type="CONFIGURATION", origin="user", decision="stop")
def missing_path(spark: SparkSession, folder: Path) -> None:
    into_noop(spark.readStream.schema("id long").parquet(str(folder / "nothing")))


@case("configuration.unknown_format", type="CONFIGURATION", origin="user", decision="stop")
def unknown_format(spark: SparkSession, folder: Path) -> None:
    into_noop(spark.readStream.format("kinesis").option("stream", "clicks").load())


@case("configuration.kafka_jar", type="CONFIGURATION", origin="user", decision="stop")
def kafka_jar(spark: SparkSession, folder: Path) -> None:
    clicks = spark.readStream.format("kafka").option("subscribe", "clicks")
    into_noop(clicks.option("kafka.bootstrap.servers", "127.0.0.1:1").load())


@case("configuration.no_checkpoint", type="CONFIGURATION", origin="user", decision="stop")
def no_checkpoint(spark: SparkSession, folder: Path) -> None:
    fails(numbers(spark).writeStream.format("delta").option("path", str(folder / "table")))


@case("configuration.option_value", type="CONFIGURATION", origin="spark", decision="stop")
def option_value(spark: SparkSession, folder: Path) -> None:
    into_noop(spark.readStream.format("text").option("maxFilesPerTrigger", "many").load(str(folder)))


@case("configuration.no_schema", type="CONFIGURATION", origin="user", decision="stop")
def no_schema(spark: SparkSession, folder: Path) -> None:
    (folder / "a.json").write_text('{"id": 1}\n')
    into_noop(spark.readStream.json(str(folder)))


@case("configuration.delta_schema", type="CONFIGURATION", origin="library", decision="stop")
def delta_schema(spark: SparkSession, folder: Path) -> None:
    spark.range(1).selectExpr("date '2024-01-01' AS value").write.format("delta").save(str(folder / "table"))
    writer = numbers(spark).select("value").writeStream.format("delta").option("path", str(folder / "table"))
    fails(writer.option("checkpointLocation", str(folder / "checkpoint")))


@case("configuration.no_uid", type="CONFIGURATION", origin="library", decision="stop")
def no_uid(spark: SparkSession, folder: Path) -> None:
    into_noop(spark.readStream.format("files").option("path", str(folder)).schema("id long").load())


@case("configuration.delta_2pc_column", type="CONFIGURATION", origin="library", decision="stop")
def delta_2pc_column(spark: SparkSession, folder: Path) -> None:
    import deltalake
    import pyarrow as pa

    deltalake.write_deltalake(str(folder / "table"), pa.table({"value": ["text"]}))
    writer = numbers(spark).select("value").writeStream.format("delta_2pc").option("uid", "table")
    fails(writer.option("path", str(folder / "table")).option("checkpointLocation", str(folder / "checkpoint")))


@case("configuration.module", type="CONFIGURATION", origin="user", decision="stop", line="import shop_prices")
def module(spark: SparkSession, folder: Path) -> None:
    @F.udf("double")
    def price(value: int) -> float:
        import shop_prices  # type: ignore[import-not-found]

        return float(shop_prices.of(value))

    into_noop(numbers(spark).select(price("value")))


@case("configuration.added_module", type="CONFIGURATION", origin="user", decision="stop")
def added_module(spark: SparkSession, folder: Path) -> None:
    (folder / "failing_prices.py").write_text("import failing_tariffs\n\n\ndef price(value):\n    return value\n")
    spark.addArtifacts(str(folder / "failing_prices.py"), pyfile=True)

    @F.udf("long")
    def price(value: int) -> int:
        from failing_prices import price as found  # type: ignore[import-not-found]

        return int(found(value))

    into_noop(numbers(spark).select(price("value")))


@case("configuration.missing_file", type="CONFIGURATION", origin="user", decision="stop", line="open(rates)")
def missing_file(spark: SparkSession, folder: Path) -> None:
    rates = "/etc/shop/rates.csv"

    @F.udf("double")
    def rate(value: int) -> float:
        with open(rates) as lines:
            return float(next(lines))

    into_noop(numbers(spark).select(rate("value")))


@case("configuration.jdbc_driver", type="CONFIGURATION", origin="user", decision="stop", line="batch.write.jdbc")
def jdbc_driver(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        batch.write.jdbc("jdbc:postgresql://127.0.0.1/shop", "orders", properties={"driver": "org.postgresql.Driver"})

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("configuration.java_class", type="CONFIGURATION", origin="user", decision="stop")
def java_class(spark: SparkSession, folder: Path) -> None:
    spark.udf.registerJavaFunction("failing_absent", "shop.AbsentDiscount", "long")
    into_noop(numbers(spark).selectExpr("failing_absent(value)"))


@case("configuration.file_system", type="CONFIGURATION", origin="user", decision="stop")
def file_system(spark: SparkSession, folder: Path) -> None:
    into_noop(spark.readStream.schema("id long").parquet("s3a://shop/orders"))


@case("configuration.state_store", type="CONFIGURATION", origin="spark", decision="stop")
def state_store(spark: SparkSession, folder: Path) -> None:
    key = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(key)
    spark.conf.set(key, "shop.state.FastStateStoreProvider")
    try:
        fails(numbers(spark).groupBy("value").count().writeStream.format("noop").outputMode("complete"))
    finally:
        spark.conf.set(key, before)


@case("configuration.output_mode", type="CONFIGURATION", origin="user", decision="stop")
def output_mode(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).groupBy("value").count())


class _Refuses(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@case("configuration.password", type="CONFIGURATION", origin="dependency", decision="stop", line="raise_for_status()")
def password(spark: SparkSession, folder: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Refuses) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/"

        @F.udf("string")
        def customer(value: int) -> str:
            answer = requests.get(url, auth=("shop", "old password"), timeout=5)
            answer.raise_for_status()
            return answer.text

        try:
            into_noop(numbers(spark).select(customer("value")))
        finally:
            server.shutdown()
