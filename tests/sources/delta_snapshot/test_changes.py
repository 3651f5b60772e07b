"""`delta_snapshot` with `changes`: the change data feed, replayed with pandas and compared with Spark's own reader."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark_ext.errors import ConfigurationError, DataError, StateError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from spark_ext.testing.source_kit import SourceRun
from tests.sources.delta_snapshot.test_follow import refused

FEED = {"delta.enableChangeDataFeed": "true"}
KEYS = 12


def options(path: Path, **more: str) -> dict[str, str]:
    return {"uid": "orders", "path": str(path), "follow": "true", "changes": "true", "poll_interval": "0", **more}


def started(path: Path, **more: str) -> SourceRun:
    return SourceRun(DeltaSnapshot, options(path, **more), limits=[{"readers": "2"}])


def read(run: SourceRun) -> list[dict[str, Any]]:
    while run.epoch():
        pass
    rows: list[dict[str, Any]] = run.trace.all_rows().to_pylist()
    return rows


def rows(keys: dict[int, str], value: int) -> pa.Table:
    found = {"id": list(keys), "k": list(keys.values()), "v": [value] * len(keys)}
    return pa.table(found, schema=pa.schema({"id": "int64", "k": "string", "v": "int64"}))


def create(path: Path, value: int = 0, *, partitioned: bool = True) -> None:
    first = rows({n: "ab"[n % 2] for n in range(6)}, value)
    write_deltalake(path, first, partition_by=["k"] if partitioned else None, configuration=FEED)


def act(path: Path, what: str, rng: random.Random, value: int) -> None:
    table = DeltaTable(path)
    some = rng.sample(range(KEYS), 3)
    if what == "merge":
        source = rows({n: "ab"[n % 2] for n in some}, value)
        matched = table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        matched.when_matched_update_all().when_not_matched_insert_all().execute()
    elif what == "delete":
        table.delete(f"id in ({', '.join(map(str, some))})")
    elif what == "partition":
        table.delete(f"k = '{rng.choice('ab')}'")
    elif what == "update":
        table.update(updates={"v": str(value)}, predicate=f"id > {some[0]}")
    elif what == "overwrite":
        write_deltalake(path, rows({n: "ab"[n % 2] for n in some}, value), mode="overwrite")
    elif what == "append":
        there = set(table.to_pyarrow_table()["id"].to_pylist())
        write_deltalake(path, rows({n: "ab"[n % 2] for n in some if n not in there}, value), mode="append")
    elif what == "optimize":
        table.optimize.compact()
    elif table.version():
        table.restore(rng.randrange(table.version()))


ACTIONS = st.sampled_from(["merge", "delete", "partition", "update", "overwrite", "append", "optimize", "restore"])


def replay(held: Counter[Any], changes: list[dict[str, Any]]) -> None:
    """Apply changes in their order; a row that is taken away has to be there."""
    for row in changes:
        key = (row["id"], row["k"], row["v"])
        if row["_change_type"] in ("insert", "update_postimage"):
            held[key] += 1
        else:
            assert held[key] > 0, row
            held[key] -= 1


def content(path: Path, version: int | None = None) -> Counter[Any]:
    found = DeltaTable(path, version=version).to_pyarrow_table().to_pylist()
    return Counter((row["id"], row["k"], row["v"]) for row in found)


@pytest.mark.slow(2, "histories of a Delta table")
@given(
    actions=st.lists(ACTIONS, min_size=1, max_size=6),
    partitioned=st.booleans(),
    begin=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=8, deadline=None)
def test_a_copy_kept_by_the_changes_is_equal_in_each_version(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str], partitioned: bool, begin: int, seed: int
) -> None:
    table, rng = tmp_path_factory.mktemp("t") / "table", random.Random(seed)
    create(table, partitioned=partitioned)
    run = None
    for number, what in enumerate(actions):
        if number == min(begin, len(actions) - 1):
            run = SourceRun(DeltaSnapshot, options(table), rng=rng)
            run.epoch()
        act(table, what, rng, number + 1)
        while run is not None and rng.random() < 0.6 and run.epoch(repeat=0.5):
            if rng.random() < 0.5:
                run.replay()
            if rng.random() < 0.5:
                run.restart()
    assert run is not None
    found = read(run)
    later = run.trace.rows("versions")["_commit_version"].to_pylist()
    assert later == sorted(later)
    held: Counter[Any] = Counter()
    first = min((row["_commit_version"] for row in found), default=0)
    for version in range(first, DeltaTable(table).version() + 1):
        replay(held, [row for row in found if row["_commit_version"] == version])
        assert +held == content(table, version), version


def test_the_rows_of_a_feed(tmp_path: Path) -> None:
    create(tmp_path)
    run = started(tmp_path)
    run.epoch()
    DeltaTable(tmp_path).update(updates={"v": "7"}, predicate="id = 1")
    DeltaTable(tmp_path).delete("id = 3")
    DeltaTable(tmp_path).optimize.compact()
    found = read(run)
    assert run.trace.schema.names == ["id", "k", "v", "_change_type", "_commit_version", "_commit_timestamp"]
    first, later = found[:6], found[6:]
    assert {(row["id"], row["_change_type"], row["_commit_version"]) for row in first} == {
        (n, "insert", 0) for n in range(6)
    }
    # Within a version the order is that of its files, which delta-rs names at random.
    assert [row["_commit_version"] for row in later] == [1, 1, 2]
    assert {(row["id"], row["v"], row["_change_type"]) for row in later} == {
        (1, 0, "update_preimage"),
        (1, 7, "update_postimage"),
        (3, 0, "delete"),
    }
    for row in found:
        file = tmp_path / f"_delta_log/{row['_commit_version']:020}.json"
        assert row["_commit_timestamp"] == pd.Timestamp(file.stat().st_mtime_ns // 10**6, unit="ms", tz="UTC")


def test_columns_may_be_selected(tmp_path: Path) -> None:
    create(tmp_path)
    schema = columns("_commit_version bigint, id bigint, _change_type string")
    run = SourceRun(DeltaSnapshot, options(tmp_path, starting_version="0"), schema=schema, limits=[{}])
    assert {"_commit_version": 0, "id": 0, "_change_type": "insert"} in read(run)


def test_limits_hold_within_the_files_of_changes(tmp_path: Path) -> None:
    create(tmp_path, partitioned=False)
    DeltaTable(tmp_path).update(updates={"v": "v + 1"})
    run = SourceRun(DeltaSnapshot, options(tmp_path, starting_version="0"), limits=[{"max_rows_per_epoch": "5"}])
    sizes: list[int] = []
    while run.epoch():
        sizes.append(run.trace.all_rows().num_rows - sum(sizes))
    assert sizes == [5, 5, 5, 3]


def test_a_table_without_a_feed_is_refused_at_load(tmp_path: Path) -> None:
    write_deltalake(tmp_path, rows({1: "a"}, 1))
    source = DeltaSnapshot(options(tmp_path))
    for call in (source.schema, source.open):
        with pytest.raises(ConfigurationError, match=r"version 0 of .* has no change data feed") as problem:
            call()
        assert "delta.enableChangeDataFeed = true" in problem.value.do


def test_versions_before_the_feed_are_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path, rows({1: "a"}, 1))
    DeltaTable(tmp_path).alter.set_table_properties(FEED)
    write_deltalake(tmp_path, rows({2: "a"}, 1), mode="append")
    refused(started(tmp_path, starting_version="0"), ConfigurationError, "version 0 of .* has no change data feed")
    refused(started(tmp_path, version="0"), ConfigurationError, "version 0 of .* has no change data feed")
    assert [row["id"] for row in read(started(tmp_path, starting_version="1"))] == [2]


def test_a_feed_that_is_turned_off_is_refused(tmp_path: Path) -> None:
    create(tmp_path)
    run = started(tmp_path, starting_version="0")
    assert len(read(run)) == 6
    DeltaTable(tmp_path).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    DeltaTable(tmp_path).delete("id = 1")
    DeltaTable(tmp_path).alter.set_table_properties(FEED)
    for _ in range(2):
        refused(run, StateError, "version 1 of the table turns its change data feed off")
        run.restart()
    assert run.trace.all_rows().num_rows == 6


def test_changes_that_were_vacuumed_are_refused(tmp_path: Path) -> None:
    create(tmp_path)
    DeltaTable(tmp_path).delete("id = 1")
    for file in (tmp_path / "_change_data").rglob("*.parquet"):
        file.unlink()
    refused(started(tmp_path, starting_version="1"), DataError, "no longer exists")


def as_spark(spark: SparkSession, path: Path, first: int) -> Counter[Any]:
    frame = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", first).load(str(path))
    return counted(frame.toArrow().to_pylist())


def counted(found: list[dict[str, Any]]) -> Counter[Any]:
    return Counter(tuple(sorted((name, str(value)) for name, value in row.items())) for row in found)


def history(spark: SparkSession, path: Path, properties: str, partitioned: str) -> None:
    name = f"delta.`{path}`"
    spark.sql(
        f"create table {name} (id bigint, k string, v bigint) using delta {partitioned} "
        f"tblproperties (delta.enableChangeDataFeed = true, {properties})"
    )
    source = "(select id, if(id % 2 = 0, 'a', 'b') k, {} v from range({}, {}))"
    spark.sql(f"insert into {name} select * from {source.format(0, 0, 12)}")
    spark.sql(f"delete from {name} where id in (3, 4)")
    spark.sql(f"update {name} set v = v + 1 where id > 8")
    spark.sql(f"delete from {name} where id in (5, 10)")
    matched = "when matched and s.id = 6 then delete when matched then update set * when not matched then insert *"
    spark.sql(f"merge into {name} t using {source.format(50, 6, 16)} s on t.id = s.id {matched}")
    spark.sql(f"optimize {name}")
    spark.sql(f"delete from {name} where k = 'b'")
    spark.sql(f"insert overwrite {name} select * from {source.format(70, 20, 25)}")
    spark.sql(f"update {name} set k = 'c' where id = 22")
    spark.sql(f"restore table {name} to version as of 4")
    spark.sql(f"merge into {name} t using {source.format(1, 0, 3)} s on t.id = s.id when not matched then insert *")


@pytest.mark.slow(60, "a table that Spark writes, and Spark's reader of its changes")
@pytest.mark.parametrize(
    ("properties", "partitioned"),
    [
        ("delta.enableDeletionVectors = false", ""),
        ("delta.columnMapping.mode = 'name', delta.enableDeletionVectors = true", "partitioned by (k)"),
    ],
    ids=["files", "vectors-mapped"],
)
def test_row_for_row_as_spark_reads_it(spark: SparkSession, tmp_path: Path, properties: str, partitioned: str) -> None:
    history(spark, tmp_path / "t", properties, partitioned)
    last = DeltaTable(tmp_path / "t").version()
    run = SourceRun(DeltaSnapshot, options(tmp_path / "t", starting_version="0"), rng=random.Random(5))
    while run.epoch(repeat=0.5):
        run.restart()
    assert counted(run.trace.all_rows().to_pylist()) == as_spark(spark, tmp_path / "t", 0)
    for first in (3, last):
        later = started(tmp_path / "t", starting_version=str(first))
        assert counted(read(later)) == as_spark(spark, tmp_path / "t", first)
    held: Counter[Any] = Counter()
    replay(held, run.trace.all_rows().to_pylist())
    now = spark.read.format("delta").load(str(tmp_path / "t")).collect()
    assert +held == Counter((row["id"], row["k"], row["v"]) for row in now)
