"""What the state of a query depends on, as its analyzed plan says: what a start compares with the last one."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import LongType

from spark_ext.spark.backend.classic import CLASSIC
from spark_ext.spark.backend.plans import inlined
from tests.support.stateful import KINDS

WINDOW = "window(timestamp_seconds(t), 0 s, 20 s)"
# Written down, so that another process, and another release of Spark, has to find the same.
TEXTS = {
    "aggregation": ["aggregate sum(v) bigint, count(1) bigint by k bigint"],
    "aggregation-without-keys": ["aggregate sum(v) bigint"],
    "limit": ["limit"],
    "window": [f"aggregate count(1) bigint by {WINDOW}, k bigint"],
    "duplicates": ["dropDuplicates by k bigint"],
    "duplicates-watermark": ["dropDuplicatesWithinWatermark of timestamp_seconds(t) by k bigint"],
    "two-operators": [
        f"aggregate count(1) bigint by {WINDOW}, k bigint",
        "dropDuplicatesWithinWatermark of timestamp_seconds(t) by k bigint, v bigint",
    ],
    "flat-map-groups": ["applyInPandasWithState with NoTimeout by k bigint with struct<n:bigint>"],
    "transform-with-state": ["transformWithState in NoTime mode by k bigint"],
}

Build = Callable[["DataFrame"], "DataFrame"]


@pytest.mark.parametrize("name", TEXTS)
def test_each_kind_of_operator(spark: SparkSession, tmp_path: Path, name: str) -> None:
    assert CLASSIC.stateful_operators(KINDS[name].build(spark, tmp_path)) == tuple(TEXTS[name])


def rows(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load().selectExpr("value AS v", "value % 7 AS w", "timestamp AS t")


def sql(frame: DataFrame, text: str) -> DataFrame:
    return frame.sparkSession.sql(text, f=frame)


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def grouped(frame: DataFrame) -> DataFrame:
    def none(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        yield from ()

    return frame.groupBy("w").applyInPandasWithState(none, "k long", "n long", "append", "EventTimeTimeout")


def found(spark: SparkSession, build: Build) -> tuple[str, ...]:
    return CLASSIC.stateful_operators(build(rows(spark))) or ()


def joined(on: str, how: str = "inner") -> Build:
    def build(frame: DataFrame) -> DataFrame:
        left = frame.withWatermark("t", "1 minute").alias("a")
        return left.join(rows(frame.sparkSession).withWatermark("t", "1 minute").alias("b"), F.expr(on), how)

    return build


def long(last: str) -> str:
    return "concat_ws(',', " + ", ".join(f"v + {n}" for n in range(100)) + f", '{last}')"


def within(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("t", "1 minute").dropDuplicatesWithinWatermark(["v"])


def aggregated(*texts: str) -> Build:
    return lambda f: f.groupBy("w").agg(*map(F.expr, texts))


def counted(key: str) -> Build:
    return lambda f: f.groupBy(F.expr(key)).count()


def summed(of: Build) -> Build:
    return lambda f: of(f).groupBy("w").agg(F.sum("v"))


CHANGES: dict[str, tuple[Build, Build]] = {
    "max, min": (aggregated("max(v)"), aggregated("min(v)")),
    "factor": (aggregated("sum(v)"), aggregated("sum(10 * v)")),
    "factor below": (aggregated("sum(v)"), summed(lambda f: f.withColumn("v", 10 * F.col("v")))),
    "values of a pivot": (
        lambda f: f.groupBy("w").pivot("v", [1, 2]).sum("v"),
        lambda f: f.groupBy("w").pivot("v", [1, 3]).sum("v"),
    ),
    "order": (aggregated("max(v)", "min(v)"), aggregated("min(v)", "max(v)")),
    "filter": (aggregated("count(*) FILTER (WHERE v > 1)"), aggregated("count(*) FILTER (WHERE v > 2)")),
    "nulls": (aggregated("first(v)"), aggregated("first(v) IGNORE NULLS")),
    "nulls of any": (aggregated("any_value(v)"), aggregated("any_value(v) IGNORE NULLS")),
    "precision": (aggregated("approx_count_distinct(v)"), aggregated("approx_count_distinct(v, 0.051)")),
    "key": (counted("w"), counted("v")),
    "key below": (
        lambda f: f.withColumn("k", F.col("v") % 2).groupBy("k").count(),
        lambda f: f.withColumn("k", F.col("v") % 3).groupBy("k").count(),
    ),
    "key of a branch": (
        lambda f: f.select("v").union(f.selectExpr("v + 1")).groupBy("v").count(),
        lambda f: f.select("v").union(f.selectExpr("v + 2")).groupBy("v").count(),
    ),
    "key of a generator": (
        lambda f: f.select(F.explode(F.array("v", F.lit(1))).alias("k")).groupBy("k").count(),
        lambda f: f.select(F.explode(F.array("v", F.lit(2))).alias("k")).groupBy("k").count(),
    ),
    "column of a generator": (
        lambda f: f.select(F.explode(F.create_map("v", "w"))).groupBy("key").count(),
        lambda f: f.select(F.explode(F.create_map("v", "w"))).groupBy("value").count(),
    ),
    "key of a lateral join": (
        lambda f: sql(f, "SELECT col, count(*) FROM {f} AS f, LATERAL explode(array(v, w)) GROUP BY col"),
        lambda f: sql(f, "SELECT col, count(*) FROM {f} AS f, LATERAL explode(array(v, w + 1)) GROUP BY col"),
    ),
    "column of a common table expression": (
        lambda f: sql(f, "WITH c AS (SELECT w, v AS x FROM {f}) SELECT w, sum(x) FROM c GROUP BY w"),
        lambda f: sql(f, "WITH c AS (SELECT w, 10 * v AS x FROM {f}) SELECT w, sum(x) FROM c GROUP BY w"),
    ),
    "input of a function for batches": (
        summed(lambda f: f.select("v", "w").mapInPandas(same, "v long, w long")),
        summed(lambda f: f.selectExpr("w AS v", "v AS w").mapInPandas(same, "v long, w long")),
    ),
    "output of a function for batches": (
        summed(lambda f: f.mapInArrow(same, "v long, w long")),
        summed(lambda f: f.mapInArrow(same, "w long, v long")),
    ),
    "column of a watermark": (within, lambda f: within(f.withColumn("t", F.expr("t - INTERVAL 1 DAY")))),
    "column of a timeout": (
        lambda f: grouped(f.withWatermark("t", "1 minute")),
        lambda f: grouped(f.withColumn("u", F.expr("t - INTERVAL 1 DAY")).withWatermark("u", "1 minute")),
    ),
    "window": (counted("window(t, '1 hour')"), counted("window(t, '2 hours')")),
    "start": (counted("window(t, '1 hour')"), counted("window(t, '1 hour', '1 hour', '5 minutes')")),
    "start before the epoch": (
        counted("window(t, '1 hour', '1 hour', '5 minutes')"),
        counted("window(t, '1 hour', '1 hour', '-5 minutes')"),
    ),
    "slide": (counted("window(t, '1 hour', '10 minutes')"), counted("window(t, '1 hour', '20 minutes')")),
    "column of a window": (counted("window(t, '1 hour')"), counted("window(t + INTERVAL 1 DAY, '1 hour')")),
    "gap of a session": (counted("session_window(t, '1 hour')"), counted("session_window(t, '2 hours')")),
    "duplicates": (lambda f: f.dropDuplicates(["v"]), lambda f: f.dropDuplicates(["w"])),
    "no operator": (lambda f: f, lambda f: f.dropDuplicates(["v"])),
    "key of a join": (joined("a.v = b.v"), joined("a.v = b.w + 1")),
    "condition of a join": (joined("a.v = b.v AND a.w < 5"), joined("a.v = b.v AND a.w < 6")),
    "kind of a join": (joined("a.v = b.v AND a.t = b.t"), joined("a.v = b.v AND a.t = b.t", "left_outer")),
    "long": (counted(long("7")), counted(long("8"))),
}


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_of_what_is_in_the_state(spark: SparkSession, before: Build, after: Build) -> None:
    one, two = found(spark, before), found(spark, after)
    assert one != two
    assert found(spark, before) == one, "ids and names that Spark draws anew have no part in it"
    assert max(map(len, (*one, *two)), default=0) < 400


half = F.udf(lambda value: value // 2, LongType())


def renamed(frame: DataFrame) -> DataFrame:
    changed = frame.where("v > 3").withColumn("x", F.lit(1)).alias("a").withColumnRenamed("w", "u")
    return changed.groupBy("u").agg(F.expr("sum(v) AS m")).selectExpr("m + 1 AS more", "u")


def salted(frame: DataFrame) -> DataFrame:
    return frame.withColumn("salt", (F.rand() * 8).cast("int")).groupBy("salt").count()


def lambdas(frame: DataFrame) -> DataFrame:
    return frame.groupBy(half("v"), F.transform(F.array("v"), lambda x: x + 1)).count()


def expressed(columns: str, text: str) -> Build:
    return lambda f: sql(f.mapInPandas(same, columns), text)


SAME: dict[str, tuple[Build, Build]] = {
    "filters, names and further columns": (aggregated("sum(v)"), renamed),
    "delay of a watermark": (
        lambda f: f.withWatermark("t", "1 minute").groupBy(F.window("t", "1 hour")).count(),
        lambda f: f.withWatermark("t", "2 minutes").groupBy(F.window("t", "1 hour")).count(),
    ),
    "a seed that Spark draws": (salted, salted),
    "functions and lambdas": (lambdas, lambdas),
    "names of common table expressions, queries and of what functions for batches return": (
        expressed("a long, b long", "WITH c AS (SELECT * FROM {f}) SELECT count(*) FROM c GROUP BY a"),
        expressed("c long, d long", "WITH e AS (FROM {f}) SELECT count(*) FROM e AS x GROUP BY c"),
    ),
    "a table that is joined": (
        lambda f: f.join(f.sparkSession.range(3), F.expr("v = id")),
        lambda f: f.join(f.sparkSession.range(3), F.expr("w = id"), "left_outer"),
    ),
}


@pytest.mark.parametrize(("before", "after"), SAME.values(), ids=SAME.keys())
def test_what_does_not_change_the_state(spark: SparkSession, before: Build, after: Build) -> None:
    one = found(spark, before)
    for setting, value in (("session.timeZone", "Asia/Tokyo"), ("ansi.enabled", "false"), ("shuffle.partitions", "7")):
        spark.conf.set(f"spark.sql.{setting}", value)
    assert found(spark, after) == one


def test_a_column_stands_for_what_it_is_made_of() -> None:
    assert inlined("sum((a.v + v))", [("a.v", "v", "(x * 2)"), ("v", "v", "y")]) == "sum(((x * 2) + y))"
    assert inlined("max(a)", [("a", "a", "b")]) == "max(b)", "not the letter in the function's name"
    assert inlined("named_struct('k', k)", [("k", "k", "lower(c)")]) == "named_struct('k', lower(c))"
    assert inlined("secret()", [("k", "k", "lower(c)")]) == "secret() of lower(c)"
    assert inlined("(rand(-17L) * k)", [("k", "k", "k")]) == "(rand() * k)"
    texts = {inlined(f"concat('{'x' * 500}{n}')", []) for n in range(3)}
    assert len(texts) == 3 and max(map(len, texts)) < 250
