"""Failures of SQL and DataFrame expressions."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


@case("expressions.raise_error", type="USER_CODE", origin="user", decision="stop")
def raise_error(spark: SparkSession, folder: Path) -> None:
    orders = numbers(spark)
    into_noop(
        orders.select(
            F.when(orders.value < 3, orders.value).otherwise(
                F.raise_error(F.concat(F.lit("order without a customer: "), orders.value.cast("string"))),
            )
        )
    )


@case("expressions.assert_true", type="USER_CODE", origin="user", decision="stop")
def assert_true(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).selectExpr("value", "assert_true(value < 2, 'value is too large') AS checked"))


@case("expressions.raise_error_sql", type="USER_CODE", origin="user", decision="stop")
def raise_error_sql(spark: SparkSession, folder: Path) -> None:
    numbers(spark).createOrReplaceTempView("failing_orders")
    into_noop(
        spark.sql(
            "SELECT CASE WHEN value < 2 THEN 'EUR' ELSE raise_error('unknown currency') END AS currency "
            "FROM failing_orders"
        )
    )


@case("expressions.division", type="USER_DATA", origin="user", decision="stop", line='/ F.col("value")')
def division(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).select((F.lit(100) / F.col("value")).alias("share")))


@case("expressions.division_sql", type="USER_DATA", origin="user", decision="stop", line="100 div value")
def division_sql(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).selectExpr("100 div value AS share"))


@case("expressions.cast", type="USER_DATA", origin="user", decision="stop", line='cast("int")')
def cast(spark: SparkSession, folder: Path) -> None:
    texts = numbers(spark).select(F.concat(F.lit("n/a "), "value").alias("amount"))
    into_noop(texts.select(F.col("amount").cast("int")))


@case("expressions.cast_overflow", type="USER_DATA", origin="spark", decision="stop")
def cast_overflow(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).selectExpr("CAST(value * 1000 AS tinyint) AS small"))


@case("expressions.arithmetic_overflow", type="USER_DATA", origin="user", decision="stop", line="9223372036854775807")
def arithmetic_overflow(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).select(F.col("value") + F.lit(9223372036854775807)))


@case("expressions.sum_overflow", type="USER_DATA", origin="spark", decision="stop")
def sum_overflow(spark: SparkSession, folder: Path) -> None:
    totals = (
        numbers(spark)
        .groupBy((F.col("value") % 1).alias("rest"))
        .agg(F.sum(F.col("value") * 0 + 9223372036854775807).alias("total"))
    )
    fails(totals.writeStream.format("noop").outputMode("complete"))


@case("expressions.decimal", type="USER_DATA", origin="user", decision="stop", line="decimal(3,2)")
def decimal(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).selectExpr("CAST(value * 10 AS decimal(3,2)) AS price"))


@case("expressions.array_index", type="USER_DATA", origin="user", decision="stop", line="[2]")
def array_index(spark: SparkSession, folder: Path) -> None:
    parts = numbers(spark).select(F.split(F.concat(F.lit("a-"), "value"), "-").alias("parts"))
    into_noop(parts.select(F.col("parts")[2]))


@case("expressions.timestamp", type="USER_DATA", origin="spark", decision="stop")
def timestamp(spark: SparkSession, folder: Path) -> None:
    into_noop(
        numbers(spark).select(
            F.to_timestamp(F.concat(F.lit("2024-13-4"), "value"), "yyyy-MM-dd"),
        )
    )


@case("expressions.date_part", type="USER_DATA", origin="spark", decision="stop")
def date_part(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).selectExpr("make_date(2024, 2, CAST(28 + value AS int)) AS day"))


@case("expressions.url", type="USER_DATA", origin="spark", decision="stop")
def url(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).selectExpr("url_decode(concat('page=%', value, '%zz')) AS page"))


@case("expressions.from_json", type="USER_DATA", origin="spark", decision="stop")
def from_json(spark: SparkSession, folder: Path) -> None:
    texts = numbers(spark).select(F.concat(F.lit('{"id": '), "value").alias("body"))
    into_noop(texts.select(F.from_json("body", "id long", {"mode": "FAILFAST"})))


@case("expressions.subquery_rows", type="USER_DATA", origin="user", decision="stop", line="named.collect()")
def subquery_rows(spark: SparkSession, folder: Path) -> None:
    spark.createDataFrame([(1, "a"), (1, "b")], "id long, name string").createOrReplaceTempView("failing_names")

    def write(batch: DataFrame, epoch: int) -> None:
        batch.createOrReplaceTempView("failing_batch")
        named = batch.sparkSession.sql("SELECT value, (SELECT name FROM failing_names WHERE id = 1) FROM failing_batch")
        named.collect()

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("expressions.unresolved_column", type="CONFIGURATION", origin="user", decision="stop", line='"custmer"')
def unresolved_column(spark: SparkSession, folder: Path) -> None:
    into_noop(numbers(spark).select("value", F.upper(F.col("custmer"))))


@case("expressions.datatype_mismatch", type="USER_CODE", origin="user", decision="stop", line="value + other")
def datatype_mismatch(spark: SparkSession, folder: Path) -> None:
    orders = numbers(spark)
    value, other = F.col("value"), F.array(F.lit(1))
    into_noop(orders.select(value + other))
