"""A third set: functions, rows, and what cannot be pickled."""

from __future__ import annotations

import logging
import socket
import ssl
import weakref
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import psycopg
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from tests.failures.building import add_java
from tests.failures.cases.third_b import database
from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


@case("third.list_state", type="USER_CODE", origin="user", decision="stop", line='item["price"]')
def list_state(spark: SparkSession, folder: Path) -> None:
    class Baskets(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.items = handle.getListState("items", "name string, price double")

        def handleInputRows(self, key: Any, frames: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
            self.items.appendValue(("pear", 1.5))
            yield pd.DataFrame({"total": [sum(item["price"] for item in self.items.get())]})

        def close(self) -> None:
            pass

    baskets = numbers(spark).withColumn("basket", F.col("value") % 2).groupBy("basket")
    into_noop(baskets.transformWithStateInPandas(Baskets(), "total double", "append", "none"))


@case("third.best_offer", type="USER_CODE", origin="dependency", decision="stop", line="frame.iloc[")
def best_offer(spark: SparkSession, folder: Path) -> None:
    def tenth(frame: pd.DataFrame) -> pd.DataFrame:
        best = frame.iloc[[9]]
        return best[["value"]]

    def write(batch: DataFrame, epoch: int) -> None:
        offers = batch.groupBy(F.col("value") % 2).applyInPandas(tenth, "value long")
        offers.write.mode("append").parquet(f"{folder}/offers")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.writer_close", type="USER_CODE", origin="user", decision="stop", line="self.outbox.flush")
def writer_close(spark: SparkSession, folder: Path) -> None:
    class Writer:
        outbox: Any = None

        def open(self, partition: int, epoch: int) -> bool:
            return True

        def process(self, row: Row) -> None:
            pass

        def close(self, error: Exception | None) -> None:
            self.outbox.flush()

    fails(numbers(spark).writeStream.foreach(Writer()))


@case("third.java_names", type="USER_CODE", origin="user", decision="stop")
def java_names(spark: SparkSession, folder: Path) -> None:
    add_java(
        spark,
        "shop.Shelf",
        """public class Shelf implements org.apache.spark.sql.api.java.UDF1<Long, String> {
          private static final String[] NAMES = {"fruit", "bread"};
          public String call(Long shelf) { return NAMES[shelf.intValue()].trim(); }
        }""",
    )
    spark.udf.registerJavaFunction("third_shelf", "shop.Shelf", "string")
    into_noop(numbers(spark).selectExpr("third_shelf(value)"))


@case("third.next_name", type="USER_CODE", origin="user", decision="stop", line="next(")
def next_name(spark: SparkSession, folder: Path) -> None:
    @F.udf("string")
    def first_match(value: int) -> str:
        return next(name for name in ("Ann", "Bob") if len(name) == value + 3)

    into_noop(numbers(spark).select(first_match("value")))


@case("third.parse", type="USER_CODE", origin="user", decision="stop", line="selectExpr(rule)")
def parse(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        rule = "CASE WHEN value > 2 THEN 'large' ELSE 'small' AS size"
        batch.selectExpr(rule).write.mode("append").parquet(f"{folder}/sizes")

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.unprintable", type="USER_CODE", origin="user", decision="stop", line="raise PriceError(")
def unprintable(spark: SparkSession, folder: Path) -> None:
    class PriceError(Exception):
        def __str__(self) -> str:
            return f"no price for {self.article}"

    @F.udf("double")
    def price(value: int) -> float:
        raise PriceError(value)

    into_noop(numbers(spark).select(price("value")))


@case(
    "third.own_conflict", type="USER_CODE", origin="user", decision="stop",
    line="raise ConcurrentAppendException(",
)  # fmt: skip
def own_conflict(spark: SparkSession, folder: Path) -> None:
    class ConcurrentAppendException(Exception):
        """Two orders of a customer in one batch."""

    def write(batch: DataFrame, epoch: int) -> None:
        if batch.groupBy(F.col("value") % 2).count().filter("count > 1").take(1):
            raise ConcurrentAppendException(
                "[DELTA_CONCURRENT_APPEND] io.delta.exceptions.ConcurrentAppendException: Files were added to the root "
                "of the table by a concurrent update. SQLSTATE: 2D521"
            )

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.own_sqlstate", type="USER_CODE", origin="user", decision="stop", line="raise DiskFull(")
def own_sqlstate(spark: SparkSession, folder: Path) -> None:
    class DiskFull(RuntimeError):
        """The shelf that articles lie on, which is called a disk in this shop."""

        sqlstate = "53100"
        errno = 28

    @F.pandas_udf("long")
    def placed(values: pd.Series) -> pd.Series:
        if len(values) > 2:
            raise DiskFull('could not extend file "base/5/16384": No space left on device')
        return values

    into_noop(numbers(spark).select(placed("value")))


@case("third.comma", type="USER_DATA", origin="user", decision="stop", line="Decimal(text)")
def comma(spark: SparkSession, folder: Path) -> None:
    @F.udf("decimal(10,2)")
    def amount(text: str) -> Decimal:
        return Decimal(text).quantize(Decimal("0.01"))

    into_noop(numbers(spark).select(amount(F.concat("value", F.lit(",50")))))


@case("third.iso_day", type="USER_DATA", origin="user", decision="stop", line="datetime.fromisoformat")
def iso_day(spark: SparkSession, folder: Path) -> None:
    @F.udf("timestamp")
    def placed(text: str) -> datetime:
        return datetime.fromisoformat(text)

    into_noop(numbers(spark).select(placed(F.concat(F.lit("2024-02-30T0"), "value", F.lit(":00:00")))))


@case(
    "third.pandas_days", type="USER_DATA", origin="dependency", decision="stop", line="pd.to_datetime("
)  # fmt: skip
def pandas_days(spark: SparkSession, folder: Path) -> None:
    def days(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            frame["day"] = pd.to_datetime(frame["text"], format="%d.%m.%Y")
            yield frame[["day"]]

    texts = numbers(spark).select(F.concat("value", F.lit(".2.n/a")).alias("text"))
    into_noop(texts.mapInPandas(days, "day timestamp"))


@case(
    "third.order_schema", type="USER_DATA", origin="dependency", decision="stop",
    line="jsonschema.validate(",
)  # fmt: skip
def order_schema(spark: SparkSession, folder: Path) -> None:
    schema = {"type": "object", "properties": {"pieces": {"type": "integer", "minimum": 1}}}

    def write(batch: DataFrame, epoch: int) -> None:
        for row in batch.collect():
            jsonschema.validate({"pieces": row.value}, schema)

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.remainder", type="USER_DATA", origin="user", decision="stop", line="mod(100, value)")
def remainder(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).selectExpr("value", "mod(100, value) AS rest"))


@case("third.variant", type="USER_DATA", origin="spark", decision="stop")
def variant(spark: SparkSession, folder: Path) -> None:
    bodies = numbers(spark).select(F.concat(F.lit('{"order": '), "value", F.lit(", items: []}")).alias("body"))
    into_noop(bodies.selectExpr("variant_get(parse_json(body), '$.order', 'long') AS number"))


@case("third.map_keys", type="USER_DATA", origin="spark", decision="stop")
def map_keys(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).selectExpr("map_from_arrays(array(value, value % 2), array('new', 'old')) AS versions"))


@case(
    "third.negative_stock", type="USER_DATA", origin="dependency", decision="stop",
    line="target.execute(",
)  # fmt: skip
def negative_stock(spark: SparkSession, folder: Path) -> None:
    shop = database()
    shop.run("CREATE TABLE stock (id bigint, pieces bigint CHECK (pieces >= 0))")

    def write(batch: DataFrame, epoch: int) -> None:
        with psycopg.connect(shop.dsn) as target:
            for row in batch.collect():
                target.execute("INSERT INTO stock VALUES (%s, %s)", (row.value, 2 - row.value))

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("third.long_name", type="USER_DATA", origin="library", decision="stop")
def long_name(spark: SparkSession, folder: Path) -> None:
    shop = database()
    shop.run("CREATE TABLE names (name varchar(6))")
    names = numbers(spark).select(F.concat(F.lit("customer "), "value").alias("name"))
    writer = names.writeStream.format("postgres_2pc").options(uid="names", dsn=shop.dsn, table="names")
    fails(writer.option("checkpointLocation", f"{folder}/checkpoint"))


@case(
    "third.log_handler", type="SERIALIZATION", origin="user", decision="stop",
    subject="_thread.RLock",
)  # fmt: skip
def log_handler(spark: SparkSession, folder: Path) -> None:
    class Writer:
        def __init__(self) -> None:
            self.handler = logging.StreamHandler()

        def process(self, row: Row) -> None:
            self.handler.handle(logging.makeLogRecord({"msg": str(row.value)}))

    fails(numbers(spark).writeStream.foreach(Writer()))


@case("third.tls_context", type="SERIALIZATION", origin="user", decision="stop", subject="SSLContext")
def tls_context(spark: SparkSession, folder: Path) -> None:
    context = ssl.create_default_context()

    @F.pandas_udf("long")
    def trusted(values: pd.Series) -> pd.Series:
        return values + len(context.get_ca_certs())

    into_noop(numbers(spark).select(trusted("value")))


@case("third.socket_kept", type="SERIALIZATION", origin="user", decision="stop", subject="socket")
def socket_kept(spark: SparkSession, folder: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as collector:

        def counted(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            for frame in frames:
                collector.sendto(b"%d" % len(frame), ("127.0.0.1", 9125))
                yield frame

        into_noop(numbers(spark).select("value").mapInPandas(counted, "value long"))


@case("third.weak_cache", type="SERIALIZATION", origin="user", decision="stop", subject="weakref")
def weak_cache(spark: SparkSession, folder: Path) -> None:
    class Tariff:
        rate = 0.19

    class Totals(StatefulProcessor):
        def __init__(self, tariff: Tariff) -> None:
            self.tariff: Any = weakref.ref(tariff)

        def init(self, handle: StatefulProcessorHandle) -> None:
            self.total = handle.getValueState("total", "total double")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            self.total.update((sum(row.value * self.tariff().rate for row in rows),))
            yield Row(id=key[0])

        def close(self) -> None:
            pass

    tariff = Tariff()
    groups = numbers(spark).withColumn("id", F.col("value") % 2).groupBy("id")
    into_noop(groups.transformWithState(Totals(tariff), "id long", "append", "none"))


@case(
    "third.java_client", type="SERIALIZATION", origin="user", decision="stop",
    subject="HttpClientFacade",
)  # fmt: skip
def java_client(spark: SparkSession, folder: Path) -> None:
    add_java(
        spark,
        "shop.Asking",
        """public class Asking implements org.apache.spark.sql.api.java.UDF1<Long, String> {
          private final java.net.http.HttpClient client = java.net.http.HttpClient.newHttpClient();
          public String call(Long value) { return client.version() + " " + value; }
        }""",
    )
    spark.udf.registerJavaFunction("third_asking", "shop.Asking", "string")
    into_noop(numbers(spark).selectExpr("third_asking(value)"))


@case("third.get_state", type="SERIALIZATION", origin="user", decision="stop", line="raise TypeError(")
def get_state(spark: SparkSession, folder: Path) -> None:
    class Secrets:
        password = "pear"

        def __getstate__(self) -> dict[str, str]:
            raise TypeError("secrets must not leave the driver")

    secrets = Secrets()

    @F.udf("string")
    def sealed(value: int) -> str:
        return f"{value}{secrets.password}"

    into_noop(numbers(spark).select(sealed("value")))
