"""`with_watermark` on every kind of plan that holds state by event time, against the same plan in batch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext import with_watermark
from spark_ext.errors import ConfigurationError
from spark_ext.jobs.exchange import Exchange
from spark_ext.model.end_of_input import FORMAT
from spark_ext.spark.backend.classic import CLASSIC
from tests.support.watermarks import Given, Shape, Streams, sorted_rows

A: list[list[Given]] = [
    [(0.1, "x", 1), (0.6, "y", 2), (1.2, "x", 3), (5.0, "x", 4), (30.0, "z", 5)],
    [(0.2, "y", 6), (0.2, "y", 6), (2.0, "x", 7), (31.5, "y", 8), (55.0, "x", 9)],
]
B: list[list[Given]] = [[(0.5, "x", 10), (3.0, "w", 20), (40.0, "z", 30)], [(1.0, "y", 40), (54.0, "y", 50)]]

Mark = Callable[["DataFrame", str, str], "DataFrame"]
Read = Callable[[str], "DataFrame"]


def tumbling(mark: Mark, read: Read) -> DataFrame:
    return mark(read("a"), "ts", "1 hour").groupBy(F.window("ts", "1 hour"), "k").agg(F.sum("n"), F.count("*"))


def session(mark: Mark, read: Read) -> DataFrame:
    return mark(read("a"), "ts", "1 hour").groupBy(F.session_window("ts", "2 hours"), "k").agg(F.sum("n"))


def chained(mark: Mark, read: Read) -> DataFrame:
    hourly = mark(read("a"), "ts", "1 hour").groupBy(F.window("ts", "1 hour"), "k").agg(F.sum("n").alias("n"))
    return hourly.groupBy(F.window(F.window_time("window"), "1 day")).agg(F.sum("n"), F.count("*"))


def distinct_by_time(mark: Mark, read: Read) -> DataFrame:
    return mark(read("a"), "ts", "1 hour").dropDuplicates(["ts", "k", "n"])


def distinct_within(mark: Mark, read: Read) -> DataFrame:
    df = mark(read("a"), "ts", "1 hour")
    return df.dropDuplicatesWithinWatermark(["ts", "k", "n"]) if df.isStreaming else df.dropDuplicates()


def filtered(mark: Mark, read: Read) -> DataFrame:
    df = mark(read("a"), "ts", "1 hour").where("k in ('x', 'y') and n > 1 and ts > '2000-01-01'")
    return df.groupBy(F.window("ts", "1 hour")).agg(F.sum("n"))


def join(how: str) -> Shape:
    def shape(mark: Mark, read: Read) -> DataFrame:
        left = mark(read("a"), "ts", "1 hour").alias("l")
        right = mark(read("b"), "ts", "2 hours").alias("r")
        near = "l.k = r.k and r.ts between l.ts - interval 5 days and l.ts + interval 5 days"
        return left.join(right, F.expr(near), how)

    return shape


def join_then_window(mark: Mark, read: Read) -> DataFrame:
    left = mark(read("a"), "ts", "1 hour").select("ts", "k")
    right = mark(read("b"), "ts", "1 hour").selectExpr("ts as ts2", "k as k2", "n")
    joined = left.join(right, F.expr("k = k2 and ts2 between ts - interval 1 hour and ts + interval 1 hour"))
    return joined.groupBy(F.window("ts", "1 day")).agg(F.count("*"))


SHAPES: dict[str, Shape] = {
    "tumbling": tumbling, "session": session, "chained": chained, "distinct_by_time": distinct_by_time,
    "distinct_within": distinct_within, "filtered": filtered, "inner": join("inner"), "left": join("left_outer"),
    "right": join("right_outer"), "full": join("full_outer"), "semi": join("left_semi"),
    "join_then_window": join_then_window,
}  # fmt: skip

STORES = "org.apache.spark.sql.execution.streaming.state"
TYPES = (
    "1", "1.5D", "cast(2 as decimal(20, 3))", "true", "'s'", "cast('s' as binary)", "date'2024-01-01'",
    "timestamp'2024-01-01 00:00:00'", "timestamp_ntz'2024-01-01 00:00:00'", "array(1, 2)",
    "array(named_struct('a', 1, 'b', 's'))", "map('k', 1)", "named_struct('a', 1, 'b', array('x'))",
)  # fmt: skip

NOW = {"availableNow": True}


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Iterator[Streams]:
    with closing(Streams(spark, tmp_path)) as found:
        found.put("a", *A)
        found.put("b", *B)
        yield found


def check(streams: Streams, shape: Shape, trigger: Mapping[str, object]) -> None:
    streams.run(shape(with_watermark, lambda uid: streams.read(uid, max_rows_per_epoch=8)), dict(trigger))
    assert streams.rows() == sorted_rows(shape(lambda df, column, delay: df, streams.batch))
    assert set(streams.state_rows()) == {0}


# Deduplication, a join, and one after the other; windows are in F2's own test, sessions in the next one.
@pytest.mark.parametrize("name", SHAPES)
def test_all_is_emitted_by_available_now_without_no_data_batches(streams: Streams, name: str) -> None:
    streams.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    check(streams, SHAPES[name], NOW)


@pytest.mark.core_for("[session]")
@pytest.mark.parametrize("name", ["session", "chained", "distinct_by_time", "distinct_within", "full"])
def test_all_is_emitted_by_trigger_zero_with_no_data_batches(streams: Streams, name: str) -> None:
    streams.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
    streams.spark.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "1")
    streams.spark.conf.set("spark.sql.streaming.stateStore.providerClass", f"{STORES}.HDFSBackedStateStoreProvider")
    check(streams, SHAPES[name], {"processingTime": "0 seconds"})


def test_rows_of_every_type_pass_with_their_schema(streams: Streams) -> None:
    """Columns that may not be null stay so, although the marker has nothing for them."""
    columns = [f"{kind} as full{number}" for number, kind in enumerate(TYPES)]
    columns += [f"if(n > 0, {kind}, null) as maybe{number}" for number, kind in enumerate(TYPES)]
    streams.put("a", [(0.5, "x", 1), (1.5, "y", -1)])

    def shape(df: DataFrame) -> DataFrame:
        return df.selectExpr("coalesce(ts, timestamp'2024-01-01') as ts", "n", *columns)

    marked = with_watermark(shape(streams.read("a")), "ts", "1 hour")
    streams.run(marked)
    assert streams.rows() == sorted_rows(shape(streams.batch("a")))
    assert streams.markers("a~end")[-1] == (1, True)
    plain = shape(streams.batch("a")).schema
    assert [(field.name, field.dataType, field.nullable) for field in marked.schema] == [
        (field.name, field.dataType, field.nullable) for field in plain
    ]


@pytest.mark.parametrize("kind", ["interval '3' hour", "make_interval(1)", "parse_json('[1]')"])
def test_intervals_and_variants_become_nullable(streams: Streams, kind: str) -> None:
    """The documented exception: for these no value stands in for null."""
    streams.put("a", [(0.5, "x", 1)])
    marked = with_watermark(streams.read("a").selectExpr("ts", f"{kind} as c"), "ts", "1 hour")
    assert marked.schema["c"].nullable


def test_columns_of_the_frame_below_still_resolve(streams: Streams) -> None:
    below = streams.read("a")
    assert with_watermark(below, "ts", "1 hour").select(below["n"], below.ts).columns == ["n", "ts"]


def test_a_column_of_the_flags_name_is_left_alone(streams: Streams) -> None:
    df = streams.read("a").withColumn("__End_of_input", F.lit(1))
    assert with_watermark(df, "ts", "1 hour").columns == ["ts", "k", "n", "__End_of_input"]


def test_the_marker_watches_all_sources_below(streams: Streams) -> None:
    df = with_watermark(streams.read("b").union(streams.read("a")), "ts", "1 hour")
    (end,) = [leaf for leaf in CLASSIC.sources(df) if leaf.format == FORMAT]
    assert (end.uid, end.options["watches"]) == ("a~end", "b,a")


def test_over_exchanges_their_producers_watermark_is_taken_over(streams: Streams) -> None:
    """If each has one for this very column; a delay that is longer than theirs counts, a shorter one does not."""
    job = sx.Job(streams.spark, "j", state=streams.folder / "state")

    def exchange(name: str, rows: DataFrame) -> Exchange:
        made = job.exchange(name)
        made.write(rows)
        return made

    a = exchange("a1", with_watermark(streams.read("a"), "ts", "1 hour").where("n > 1"))
    b = exchange("b1", with_watermark(streams.read("b"), "ts", "10 minutes").selectExpr("ts", "k", "n"))
    plain = exchange("p1", streams.read("a"))
    later = F.expr("ts + interval 1 day")
    other = exchange("o1", with_watermark(streams.read("a"), "ts", "1 hour").withColumn("ts", later))

    def delays(df: DataFrame, delay: str = "1 hour") -> tuple[str | None, int]:
        """What the marker stays behind each, and the delay of the column."""
        marked = with_watermark(df, "ts", delay)
        (end,) = [leaf for leaf in CLASSIC.sources(marked) if leaf.format == FORMAT]
        return end.options.get("stays"), marked.schema["ts"].metadata["spark.watermarkDelayMs"] // 60_000

    assert delays(a.read("1")) == ("0", 60) == delays(a.read("2"), "1 second")
    assert delays(a.read("3").union(b.read("4")), "2 hours") == ("3600000,6600000", 120)
    assert delays(a.read("5").selectExpr("n", "ts", "k").where("n > 2")) == ("0", 60)
    chained = exchange("c1", with_watermark(b.read("6"), "ts", "1 minute"))
    assert delays(chained.read("7"), "30 minutes") == ("1200000", 30)
    rows_alone = {
        "no watermark": plain.read("8"),
        "another column": other.read("9"),
        "one without": a.read("10").union(plain.read("11")),
        "beside a source": a.read("12").union(streams.read("a")),
        "computed": a.read("13").withColumn("ts", later),
    }
    assert {name: delays(df) for name, df in rows_alone.items()} == dict.fromkeys(rows_alone, (None, 60))
    with pytest.raises(ConfigurationError, match=r"read was called before write.*'ts', 3600000 ms\).*now \(none\)"):
        a.write(streams.read("a"))


def test_a_source_without_a_uid_gives_sparks_own_watermark(streams: Streams) -> None:
    rate = streams.spark.readStream.format("rate").load().selectExpr("timestamp as ts", "'x' as k", "value as n")
    for df in (rate, rate.union(streams.read("a"))):
        marked = with_watermark(df, "ts", "1 hour")
        assert [mark.column for mark in CLASSIC.watermarks(marked)] == ["ts"]
        assert FORMAT not in [leaf.format for leaf in CLASSIC.sources(marked)]


@pytest.mark.parametrize("column", ["no_such", "k", "day", "wall", "hour"])
def test_a_column_that_is_no_event_time_is_refused(streams: Streams, column: str) -> None:
    df = streams.read("a").selectExpr(
        "*", "date(ts) as day", "cast(ts as timestamp_ntz) as wall", "window(ts, '1 hour') as hour"
    )
    with pytest.raises(ConfigurationError, match=f"'{column}'"):
        with_watermark(df, column, "1 hour")


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (lambda of: of.read("a").selectExpr("*", "ts"), "2 columns are named 'ts'"),
        (lambda of: of.read("a").union(of.read("a")), "'a' occurs 2 times"),
        (lambda of: of.read("a").withWatermark("ts", "1 hour").where("n > 1"), "a watermark below this one already"),
        (lambda of: with_watermark(of.read("a"), "ts", "1 hour").where("n > 1"), "a watermark below this one"),
    ],
    ids=["a column twice", "a uid twice", "a second watermark", "a second one of this kind"],
)
def test_what_has_no_watermark_is_refused(streams: Streams, shape: Callable[[Streams], DataFrame], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        with_watermark(shape(streams), "ts", "1 hour")


def test_watermark_policy_max_is_refused(streams: Streams) -> None:
    streams.spark.conf.set("spark.sql.streaming.multipleWatermarkPolicy", "max")
    with pytest.raises(ConfigurationError, match="multipleWatermarkPolicy"):
        with_watermark(streams.read("a"), "ts", "1 hour")


def test_policy_max_set_after_the_plan_fails_before_the_marker(streams: Streams) -> None:
    marked = with_watermark(streams.read("a"), "ts", "1 hour")
    streams.spark.conf.set("spark.sql.streaming.multipleWatermarkPolicy", "max")
    with pytest.raises(StreamingQueryException, match="multipleWatermarkPolicy"):
        streams.run(marked, NOW)
    assert set(streams.markers("a~end")) == {(0, False)}
