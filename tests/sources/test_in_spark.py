"""The sources in real queries: Spark's planner process, executors, log of offsets, restart."""

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

import spark_ext as sx
from spark_ext.errors import ConfigurationError, DataError, SparkExtError, UnsupportedTableError, from_text
from spark_ext.sources.contract import Channel
from spark_ext.sources.datagen import DataGen
from spark_ext.spark.capabilities import capabilities
from tests.support.operators import Numbers, events
from tests.support.versions import needs_delta
from tests.support.waiting import until


@contextmanager
def started(frame: DataFrame, out: Path, available_now: bool = True) -> Iterator[StreamingQuery]:
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(out) + ".checkpoint")
    if available_now and capabilities(frame.sparkSession.version).available_now:
        writer = writer.trigger(availableNow=True)
    query = writer.start(str(out))
    try:
        yield query
    finally:
        query.stop()


def run(frame: DataFrame, out: Path) -> None:
    with started(frame, out) as query:
        if capabilities(frame.sparkSession.version).available_now:
            assert query.awaitTermination(120)
        else:
            query.processAllAvailable()


def failure(frame: DataFrame, out: Path) -> SparkExtError:
    with pytest.raises(StreamingQueryException) as failed:
        run(frame, out)
    found = from_text(str(failed.value))
    assert found is not None, str(failed.value)
    return found


def reached(query: StreamingQuery, epoch: int) -> bool:
    assert query.exception() is None
    return query.lastProgress is not None and query.lastProgress.batchId >= epoch


def rows_read(query: StreamingQuery) -> int:
    assert query.exception() is None
    return sum(progress.numInputRows for progress in query.recentProgress)


def written(spark: SparkSession, out: Path) -> list[Any]:
    return spark.read.parquet(str(out)).collect()


def reader(spark: SparkSession, kind: str, uid: str, **options: object) -> DataStreamReader:
    return spark.readStream.format(kind).option("uid", uid).options(**options)  # type: ignore[arg-type]


def parquet(path: Path, first: int, rows: int, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Under a hidden name until it is whole, as a careful writer does it.
    draft = path.with_name("_" + path.name)
    pq.write_table(pa.table({"id": pa.array(range(first, first + rows), pa.int64())}), draft, **options)
    draft.rename(path)


def numbered(folder: Path) -> list[int]:
    return [int(place.name) for place in folder.iterdir() if place.name.isdigit()]


def test_files_end_and_are_not_read_again(spark: SparkSession, tmp_path: Path) -> None:
    for index in range(5):
        parquet(tmp_path / "in" / f"{index}.parquet", index * 100, 100, row_group_size=30)
    run(reader(spark, "files", "f1", path=tmp_path / "in", max_rows_per_epoch=70).load(), tmp_path / "out")
    assert sorted(row.id for row in written(spark, tmp_path / "out")) == list(range(500))
    offsets = tmp_path / "out.checkpoint" / "offsets"
    assert len(numbered(offsets)) > 5
    offset = json.loads((offsets / str(max(numbered(offsets)))).read_text().splitlines()[-1])
    assert (offset["uid"], offset["ended"], "running" in offset) == ("f1", True, False)
    assert sorted(finish["channel"] for finish in offset["finished"]) == [f"{index}.parquet" for index in range(5)]
    for index in range(5):
        # Not even opened: it could not be.
        (tmp_path / "in" / f"{index}.parquet").write_bytes(b"gone")
    run(reader(spark, "files", "f1", path=tmp_path / "in").schema("id bigint").load(), tmp_path / "out")
    assert spark.read.parquet(str(tmp_path / "out")).count() == 500


def test_a_replayed_epoch_reads_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    parquet(tmp_path / "in" / "a.parquet", 0, 100)
    frame = reader(spark, "files", "f3", path=tmp_path / "in", max_rows_per_epoch=40).load()
    run(frame, tmp_path / "out")
    commits = tmp_path / "out.checkpoint" / "commits"
    last = max(numbered(commits))
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    # A new file does not get into the replayed epoch.
    parquet(tmp_path / "in" / "b.parquet", 500, 10)
    run(frame, tmp_path / "out")
    assert sorted(row.id for row in written(spark, tmp_path / "out")) == list(range(100))


def test_watched_files_are_taken_as_they_appear(spark: SparkSession, tmp_path: Path) -> None:
    parquet(tmp_path / "in" / "0.parquet", 0, 3)
    frame = reader(spark, "files", "f4", path=tmp_path / "in", watch="true", discovery_interval="50 ms").load()
    with started(frame, tmp_path / "out", available_now=False) as query:
        for index in range(1, 4):
            parquet(tmp_path / "in" / f"{index}.parquet", index * 3, 3)
            until(lambda: rows_read(query) == 3 * (index + 1), f"file {index}")  # noqa: B023
    assert sorted(row.id for row in written(spark, tmp_path / "out")) == list(range(12))
    # With availableNow a watching source ends at what is there.
    parquet(tmp_path / "in" / "9.parquet", 12, 3)
    run(frame, tmp_path / "out")
    assert sorted(row.id for row in written(spark, tmp_path / "out")) == list(range(15))


def test_a_source_without_rows_learns_of_each_epoch_of_its_query(spark: SparkSession, tmp_path: Path) -> None:
    """A fact of Spark: by it a planner knows whether its query is idle."""
    sx.register(spark, Numbers)
    log = tmp_path / "log"
    busy = reader(spark, "numbers", "busy", counts="0", live="true", rate=1_000, log=log).load()
    silent = reader(spark, "numbers", "silent", counts="5", gate=tmp_path / "gate", log=log).load()
    with started(busy.union(silent), tmp_path / "out", available_now=False):
        until(lambda: len([it for it in events(log, "committed") if it["uid"] == "silent"]) > 8, "epochs")
    uids = [it["uid"] for it in events(log, "committed")]
    assert abs(uids.count("busy") - uids.count("silent")) <= 1
    assert len(events(log, "read")) - len([it for it in events(log, "read") if it["uid"] == "busy"]) <= 1


def test_csv_and_json_with_a_declared_schema(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("day,id\n2024-01-01 10:00:00,1\n,2\n")
    (tmp_path / "in" / "b.csv").write_text("id,day\n3,2024-01-01T12:00:00+02:00\n")
    frame = reader(spark, "files", "f5", path=tmp_path / "in", header="true").schema("id int, day timestamp").load()
    run(frame, tmp_path / "out")
    ten = datetime(2024, 1, 1, 10, tzinfo=timezone.utc).timestamp()
    rows = {row.id: row.day and row.day.timestamp() for row in written(spark, tmp_path / "out")}
    assert rows == {1: ten, 2: None, 3: ten}
    (tmp_path / "js").mkdir()
    (tmp_path / "js" / "a.json").write_text('{"id":1,"tags":["x"],"at":{"lat":1.5}}\n{"id":2}\n')
    declared = "id int, tags array<string>, at struct<lat:double,lon:double>"
    run(reader(spark, "files", "f6", path=tmp_path / "js").schema(declared).load(), tmp_path / "out2")
    nested = {row.id: (row.tags, row.at and tuple(row.at)) for row in written(spark, tmp_path / "out2")}
    assert nested == {1: (["x"], (1.5, None)), 2: (None, None)}


def test_files_that_spark_wrote_keep_every_value(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql(
        """select id, cast(id as tinyint) b, cast(id as decimal(20,3)) d, timestamp_micros(id * 1234567) t,
        cast(timestamp_micros(id) as timestamp_ntz) n, date_add(date'2024-01-01', cast(id as int)) day,
        cast(id as string) s, cast(cast(id as string) as binary) raw, array(id, null) l,
        map('k', id) m, struct(id as x, array(struct(id as y)) as z) st,
        if(id % 2 = 0, null, double(id) / 3) f, id % 3 as p from range(50)"""
    )
    frame.write.partitionBy("p").parquet(str(tmp_path / "in"))
    run(reader(spark, "files", "f7", path=tmp_path / "in").schema(frame.schema).load(), tmp_path / "out")
    assert_df_equality(spark.read.parquet(str(tmp_path / "out")).sort("id"), frame.sort("id"), ignore_nullable=True)


def test_damage_reaches_the_user_as_a_data_error(spark: SparkSession, tmp_path: Path) -> None:
    parquet(tmp_path / "in" / "a.parquet", 0, 10)
    parquet(tmp_path / "in" / "b.parquet", 10, 10)
    frame = reader(spark, "files", "f8", path=tmp_path / "in", max_rows_per_epoch=10).load()
    whole = (tmp_path / "in" / "b.parquet").read_bytes()
    (tmp_path / "in" / "b.parquet").write_bytes(whole[:-10])
    found = failure(frame, tmp_path / "out")
    assert isinstance(found, DataError) and "b.parquet" in found.what
    assert "f8" in found.operator and found.kept
    (tmp_path / "in" / "b.parquet").write_bytes(whole)
    run(frame, tmp_path / "out")
    assert sorted(row.id for row in written(spark, tmp_path / "out")) == list(range(20))


def test_a_file_of_another_type_is_refused_before_its_rows_move(spark: SparkSession, tmp_path: Path) -> None:
    parquet(tmp_path / "in" / "a.parquet", 0, 10)
    pq.write_table(pa.table({"id": ["x"]}), tmp_path / "in" / "b.parquet")
    found = failure(reader(spark, "files", "f9", path=tmp_path / "in").load(), tmp_path / "out")
    assert isinstance(found, DataError) and "b.parquet" in found.what
    assert "'id' has the type string where int64 is declared" in found.what
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_delta_snapshot_stays_at_its_version_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    for index in range(3):
        write_deltalake(
            tmp_path / "t", pa.table({"id": pa.array(range(index * 100, index * 100 + 100))}), mode="append"
        )
    frame = reader(spark, "delta_snapshot", "d1", path=tmp_path / "t", max_rows_per_epoch=20).load()
    with started(frame, tmp_path / "out", available_now=False) as query:
        until(lambda: reached(query, 3), "three epochs")
    write_deltalake(tmp_path / "t", pa.table({"id": [1_000_000]}), mode="overwrite")
    assert DeltaTable(tmp_path / "t").version() == 3
    run(reader(spark, "delta_snapshot", "d1", path=tmp_path / "t").load(), tmp_path / "out")
    assert sorted(row.id for row in written(spark, tmp_path / "out")) == list(range(300))


DELTA_TABLES = {
    "deletion vectors": (
        "(id bigint, p string) using delta partitioned by (p) tblproperties('delta.enableDeletionVectors'='true')",
        [
            "insert into {t} select id, concat('x y/', cast(id % 2 as string)) from range(0, 100, 1, 1)",
            "delete from {t} where id % 10 in (3, 4)",
        ],
    ),
    "column mapping by name": (
        "(id bigint, `a b` struct<`x y`:int, z:array<struct<q:string>>>, d date) using delta partitioned by (d) "
        "tblproperties('delta.columnMapping.mode'='name')",
        [
            "insert into {t} select id, struct(cast(id as int), array(struct(cast(id as string)))), "
            "date'2024-01-01' from range(10)",
            "alter table {t} rename column id to ident",
            "alter table {t} add column later timestamp",
            "insert into {t} values (99, null, null, timestamp'2024-01-01 00:00:00')",
        ],
    ),
    "type widening": (
        "(id int) using delta tblproperties('delta.enableTypeWidening'='true')",
        [
            "insert into {t} select cast(id as int) from range(10)",
            "alter table {t} alter column id type bigint",
            "insert into {t} select id + 5000000000 from range(10)",
        ],
    ),
    "typed partitions": (
        "(id bigint, d date, ts timestamp, c decimal(10,2), b boolean, s string) using delta "
        "partitioned by (d, ts, c, b, s)",
        [
            "insert into {t} select id, date'2024-01-01', timestamp'2024-01-01 10:11:12.5', 1.5, true, 'ä/ =%' "
            "from range(3)",
            "insert into {t} values (9, null, null, null, null, null)",
        ],
    ),
}


@needs_delta
@pytest.mark.parametrize("feature", DELTA_TABLES)
def test_delta_tables_of_spark_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path, feature: str) -> None:
    columns, statements = DELTA_TABLES[feature]
    spark.conf.set("spark.databricks.delta.snapshotPartitions", "1")
    table = f"delta.`{tmp_path / 't'}`"
    spark.sql(f"create table {table} {columns}")
    for statement in statements:
        spark.sql(statement.format(t=table))
    frame = reader(spark, "delta_snapshot", "d2", path=tmp_path / "t").load()
    whole = spark.read.format("delta").load(str(tmp_path / "t"))
    assert frame.schema.simpleString() == whole.schema.simpleString()
    memory = frame.writeStream.format("memory").queryName("d2").trigger(availableNow=True).start()
    assert memory.awaitTermination(120)
    assert_df_equality(
        spark.table("d2"),
        whole,
        ignore_row_order=True,
        ignore_nullable=True,
        ignore_metadata=True,
        allow_nan_equality=True,
    )


@pytest.mark.parametrize(
    ("kind", "folder", "error", "said"),
    [
        ("files", "absent", ConfigurationError, "no file or folder"),
        ("delta_snapshot", "absent", ConfigurationError, "is not a Delta table"),
        pytest.param("delta_snapshot", "t", UnsupportedTableError, "columnMapping by id", marks=needs_delta),
    ],
)
def test_load_refuses_what_it_cannot_read(
    spark: SparkSession, tmp_path: Path, kind: str, folder: str, error: type[SparkExtError], said: str
) -> None:
    if folder == "t":
        mapped = "using delta tblproperties('delta.columnMapping.mode'='id')"
        spark.sql(f"create table delta.`{tmp_path / folder}` (id int) {mapped}")
    with pytest.raises(PySparkException) as refused:
        reader(spark, kind, "f10", path=tmp_path / folder).load()
    found = from_text(str(refused.value))
    assert isinstance(found, error) and said in found.what


def test_datagen_in_a_query_is_what_it_is_outside(spark: SparkSession, tmp_path: Path) -> None:
    options: dict[str, Any] = {"rows_of": "1000,20,0", "seed": 3, "keys": 5, "skew": 1}
    frame = reader(spark, "datagen", "g1", max_rows_per_epoch=300, **options).load()
    run(frame.selectExpr("id", "channel", "seq", "unix_micros(ts) ts", "key", "value", "tag"), tmp_path / "out")
    made = DataGen({"uid": "g1", **{name: str(value) for name, value in options.items()}})
    expected = []
    for channel, rows in (("0", 1000), ("1", 20)):
        for batch in made.read(Channel(channel), 0, rows):
            expected += batch.set_column(3, "ts", batch["ts"].cast(pa.int64())).to_pylist()
    found = [row.asDict() for row in written(spark, tmp_path / "out")]
    key = lambda row: row["id"]  # noqa: E731
    assert sorted(found, key=key) == sorted(expected, key=key)


@pytest.mark.core
def test_a_delta_table_is_followed_while_it_is_written_to(spark: SparkSession, tmp_path: Path) -> None:
    """Its snapshot, what is committed while the query runs, and after a restart what came in between."""
    table, out = tmp_path / "table", tmp_path / "out"

    def append(first: int) -> None:
        write_deltalake(table, pa.table({"id": pa.array(range(first, first + 5), pa.int64())}), mode="append")

    def follow() -> DataFrame:
        options = {"path": table, "follow": "true", "poll_interval": "50", "max_rows_per_epoch": 3}
        return reader(spark, "delta_snapshot", "in", **options).load()

    append(0)
    with started(follow(), out, available_now=False) as query:
        until(lambda: rows_read(query) == 5, "the snapshot is read")
        append(10)
        append(20)
        until(lambda: rows_read(query) == 15, "what was added is read")
    append(30)
    run(follow(), out)
    found = sorted(row["id"] for row in written(spark, out))
    assert found == [first + n for first in (0, 10, 20, 30) for n in range(5)]
    DeltaTable(table).delete("id = 31")
    assert failure(follow(), out).what.startswith("version 4 of the table (DELETE)")


SHOP = """
import till
from spark_ext.sources.contract import Advance, Channel, ChannelSource

class Sales(ChannelSource):
    name = classmethod(lambda cls: "sales")
    schema = lambda self: "price int"
    discover = lambda self: [Channel("till", begin=0)]
    advance = lambda self, channel, start, limit: Advance(3, finished=True)

    def read(self, channel, start, end):
        yield till.rows(end - start)
"""
TILL = """
import pyarrow as pa

def rows(count):
    return pa.RecordBatch.from_pydict({"price": pa.array(range(count), pa.int32())})
"""


def test_a_class_of_a_module_that_only_the_driver_can_import(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the planner's process and in workers, with the modules that it uses itself."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "till.py").write_text(TILL)
    monkeypatch.syspath_prepend(str(tmp_path))
    sx.register(spark, importlib.import_module("shop").Sales)
    run(spark.readStream.format("sales").option("uid", "sales").load(), tmp_path / "out")
    assert sorted(row.price for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [0, 1, 2]
