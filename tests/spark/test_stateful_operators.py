"""What the state of a query depends on, as its analyzed plan says: what a start compares with the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from spark_ext.spark.backend.classic import CLASSIC
from spark_ext.spark.backend.plans import inlined
from tests.support.stateful import KINDS

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

WINDOW = "window(timestamp_seconds(t), 0 s, 20 s)"
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
"""Written down, so that another process, and another release of Spark, has to find the same."""

Build = Callable[["DataFrame"], "DataFrame"]


@pytest.mark.parametrize("name", TEXTS)
def test_each_kind_of_operator(spark: SparkSession, tmp_path: Path, name: str) -> None:
    assert list(CLASSIC.stateful_operators(KINDS[name].build(spark, tmp_path))) == TEXTS[name]


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
    return CLASSIC.stateful_operators(build(rows(spark)))


def joined(on: str, how: str = "inner") -> Build:
    def build(frame: DataFrame) -> DataFrame:
        left = frame.withWatermark("t", "1 minute").alias("a")
        right = rows(frame.sparkSession).withWatermark("t", "1 minute").alias("b")
        return left.join(right, F.expr(on), how)

    return build


SUM = "sum(v) AS n"
CHANGES: list[tuple[str, Build, Build]] = [
    ("max, min", lambda f: f.groupBy("w").agg(F.max("v")), lambda f: f.groupBy("w").agg(F.min("v"))),
    ("factor", lambda f: f.groupBy("w").agg(F.expr(SUM)), lambda f: f.groupBy("w").agg(F.expr("sum(10 * v) AS n"))),
    (
        "factor below",
        lambda f: f.groupBy("w").agg(F.expr(SUM)),
        lambda f: f.withColumn("v", 10 * F.col("v")).groupBy("w").agg(F.expr(SUM)),
    ),
    ("key", lambda f: f.groupBy("w").count(), lambda f: f.groupBy("v").count()),
    (
        "key below",
        lambda f: f.withColumn("k", F.col("v") % 2).groupBy("k").count(),
        lambda f: f.withColumn("k", F.col("v") % 3).groupBy("k").count(),
    ),
    (
        "key of a branch",
        lambda f: f.select("v").union(f.selectExpr("v + 1")).groupBy("v").count(),
        lambda f: f.select("v").union(f.selectExpr("v + 2")).groupBy("v").count(),
    ),
    (
        "key of a generator",
        lambda f: f.select(F.explode(F.array("v", F.lit(1))).alias("k")).groupBy("k").count(),
        lambda f: f.select(F.explode(F.array("v", F.lit(2))).alias("k")).groupBy("k").count(),
    ),
    (
        "column of a generator",
        lambda f: f.select(F.explode(F.create_map("v", "w"))).groupBy("key").count(),
        lambda f: f.select(F.explode(F.create_map("v", "w"))).groupBy("value").count(),
    ),
    (
        "key of a lateral join",
        lambda f: sql(f, "SELECT col, count(*) FROM {f} AS f, LATERAL explode(array(v, w)) GROUP BY col"),
        lambda f: sql(f, "SELECT col, count(*) FROM {f} AS f, LATERAL explode(array(v, w + 1)) GROUP BY col"),
    ),
    (
        "column of a common table expression",
        lambda f: sql(f, "WITH c AS (SELECT w, v AS x FROM {f}) SELECT w, sum(x) FROM c GROUP BY w"),
        lambda f: sql(f, "WITH c AS (SELECT w, 10 * v AS x FROM {f}) SELECT w, sum(x) FROM c GROUP BY w"),
    ),
    (
        "input of a function for batches",
        lambda f: f.select("v", "w").mapInPandas(same, "v long, w long").groupBy("w").agg(F.expr(SUM)),
        lambda f: f.selectExpr("w AS v", "v AS w").mapInPandas(same, "v long, w long").groupBy("w").agg(F.expr(SUM)),
    ),
    (
        "output of a function for batches",
        lambda f: f.mapInArrow(same, "v long, w long").groupBy("w").agg(F.expr(SUM)),
        lambda f: f.mapInArrow(same, "w long, v long").groupBy("w").agg(F.expr(SUM)),
    ),
    (
        "column of a watermark",
        lambda f: f.withWatermark("t", "1 minute").dropDuplicatesWithinWatermark(["v"]),
        lambda f: (
            f.withColumn("t", F.expr("t - INTERVAL 1 DAY"))
            .withWatermark("t", "1 minute")
            .dropDuplicatesWithinWatermark(["v"])
        ),
    ),
    (
        "column of a timeout",
        lambda f: grouped(f.withWatermark("t", "1 minute")),
        lambda f: grouped(f.withColumn("u", F.expr("t - INTERVAL 1 DAY")).withWatermark("u", "1 minute")),
    ),
    (
        "values of a pivot",
        lambda f: f.groupBy("w").pivot("v", [1, 2]).sum("v"),
        lambda f: f.groupBy("w").pivot("v", [1, 3]).sum("v"),
    ),
    (
        "order",
        lambda f: f.groupBy("w").agg(F.max("v"), F.min("v")),
        lambda f: f.groupBy("w").agg(F.min("v"), F.max("v")),
    ),
    (
        "filter of an aggregate",
        lambda f: f.groupBy("w").agg(F.expr("count(*) FILTER (WHERE v > 1)")),
        lambda f: f.groupBy("w").agg(F.expr("count(*) FILTER (WHERE v > 2)")),
    ),
    ("nulls", lambda f: f.groupBy("w").agg(F.first("v")), lambda f: f.groupBy("w").agg(F.first("v", True))),
    (
        "nulls of any",
        lambda f: f.groupBy("w").agg(F.expr("any_value(v)")),
        lambda f: f.groupBy("w").agg(F.expr("any_value(v) IGNORE NULLS")),
    ),
    (
        "precision",
        lambda f: f.groupBy("w").agg(F.approx_count_distinct("v")),
        lambda f: f.groupBy("w").agg(F.approx_count_distinct("v", 0.051)),
    ),
    (
        "window",
        lambda f: f.groupBy(F.window("t", "1 hour")).count(),
        lambda f: f.groupBy(F.window("t", "2 hours")).count(),
    ),
    (
        "start of a window",
        lambda f: f.groupBy(F.window("t", "1 hour")).count(),
        lambda f: f.groupBy(F.window("t", "1 hour", startTime="5 minutes")).count(),
    ),
    (
        "start of a window before the epoch",
        lambda f: f.groupBy(F.window("t", "1 hour", startTime="5 minutes")).count(),
        lambda f: f.groupBy(F.window("t", "1 hour", startTime="-5 minutes")).count(),
    ),
    (
        "slide",
        lambda f: f.groupBy(F.window("t", "1 hour", "10 minutes")).count(),
        lambda f: f.groupBy(F.window("t", "1 hour", "20 minutes")).count(),
    ),
    (
        "column of a window",
        lambda f: f.groupBy(F.window("t", "1 hour")).count(),
        lambda f: f.groupBy(F.window(F.expr("t + INTERVAL 1 DAY"), "1 hour")).count(),
    ),
    (
        "gap of a session",
        lambda f: f.groupBy(F.session_window("t", "1 hour")).count(),
        lambda f: f.groupBy(F.session_window("t", "2 hours")).count(),
    ),
    ("duplicates", lambda f: f.dropDuplicates(["v"]), lambda f: f.dropDuplicates(["w"])),
    ("no operator", lambda f: f, lambda f: f.dropDuplicates(["v"])),
    ("key of a join", joined("a.v = b.v"), joined("a.v = b.w + 1")),
    ("condition of a join", joined("a.v = b.v AND a.w < 5"), joined("a.v = b.v AND a.w < 6")),
    ("kind of a join", joined("a.v = b.v AND a.t = b.t"), joined("a.v = b.v AND a.t = b.t", "left_outer")),
    ("long", lambda f: f.groupBy(long("7")).count(), lambda f: f.groupBy(long("8")).count()),
]


def long(last: str) -> Column:
    return F.expr("concat_ws(',', " + ", ".join(f"v + {n}" for n in range(100)) + f", '{last}')")


@pytest.mark.parametrize(("before", "after"), [pytest.param(b, a, id=name) for name, b, a in CHANGES])
def test_a_change_of_what_is_in_the_state(spark: SparkSession, before: Build, after: Build) -> None:
    one, two = found(spark, before), found(spark, after)
    assert one != two
    assert found(spark, before) == one, "ids and names that Spark draws anew have no part in it"
    assert max(map(len, (*one, *two)), default=0) < 400


half = F.udf(lambda value: value // 2, LongType())

SAME: list[tuple[str, Build, Build]] = [
    (
        "filters, names and further columns",
        lambda f: f.groupBy("w").agg(F.expr(SUM)),
        lambda f: (
            f.where("v > 3")
            .withColumn("x", F.lit(1))
            .alias("a")
            .withColumnRenamed("w", "u")
            .groupBy("u")
            .agg(F.expr("sum(v) AS m"))
            .selectExpr("m + 1 AS more", "u")
        ),
    ),
    (
        "delay of a watermark",
        lambda f: f.withWatermark("t", "1 minute").groupBy(F.window("t", "1 hour")).count(),
        lambda f: f.withWatermark("t", "2 minutes").groupBy(F.window("t", "1 hour")).count(),
    ),
    (
        "a seed that Spark draws",
        lambda f: f.withColumn("salt", (F.rand() * 8).cast("int")).groupBy("salt").count(),
        lambda f: f.withColumn("salt", (F.rand() * 8).cast("int")).groupBy("salt").count(),
    ),
    (
        "functions and lambdas",
        lambda f: f.groupBy(half("v"), F.transform(F.array("v"), lambda x: x + 1)).count(),
        lambda f: f.groupBy(half("v"), F.transform(F.array("v"), lambda x: x + 1)).count(),
    ),
    (
        "names of common table expressions, queries and of what functions for batches return",
        lambda f: sql(
            f.mapInPandas(same, "a long, b long"), "WITH c AS (SELECT * FROM {f}) SELECT count(*) FROM c GROUP BY a"
        ),
        lambda f: sql(
            f.mapInPandas(same, "c long, d long"), "WITH e AS (FROM {f}) SELECT count(*) FROM e AS x GROUP BY c"
        ),
    ),
    (
        "a table that is joined",
        lambda f: f.join(f.sparkSession.range(3), F.expr("v = id")),
        lambda f: f.join(f.sparkSession.range(3), F.expr("w = id"), "left_outer"),
    ),
]


@pytest.mark.parametrize(("before", "after"), [pytest.param(b, a, id=name) for name, b, a in SAME])
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
