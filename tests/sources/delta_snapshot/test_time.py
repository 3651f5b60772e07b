"""The version of a Delta table that was current at a time: the rule alone, and against Spark's `timestampAsOf`."""

import json
import random
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_ext.errors import ConfigurationError
from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from spark_ext.sources.delta_snapshot.time import Commit, commits_of, current_at, in_order
from tests.sources.delta_snapshot.test_plan import dated, iso

times = st.lists(st.integers(0, 30), min_size=1, max_size=12)


@given(times=times, seed=st.integers(0, 2**32))
def test_versions_decide_the_order_whatever_the_clocks_say(times: list[int], seed: int) -> None:
    given_ = [Commit(version, at) for version, at in enumerate(times, start=3)]
    random.Random(seed).shuffle(given_)
    found = in_order(given_)
    assert [commit.version for commit in found] == list(range(3, 3 + len(times)))
    assert all(earlier.at < later.at for earlier, later in pairwise(found))
    assert all(commit.at >= at for commit, at in zip(found, times, strict=True))
    assert found[0].at == times[0]


@given(times=times, at=st.integers(-1, 50))
def test_the_current_version_is_the_last_that_is_not_later(times: list[int], at: int) -> None:
    commits = in_order(Commit(version, when) for version, when in enumerate(times))
    assert current_at(commits, at) == next((commit for commit in reversed(commits) if commit.at <= at), None)


def test_a_commit_during_a_read_of_the_log_shifts_no_versions() -> None:
    """delta-rs numbers a log downwards from the version of the handle, newer commits included."""

    class Handle:
        at, newest, asked = 1, 1, 0

        def version(self) -> int:
            return self.at

        def update_incremental(self) -> None:
            self.at = self.newest

        def metadata(self) -> Any:
            return SimpleNamespace(configuration={"delta.enableInCommitTimestamps": "true"})

        def history(self) -> list[dict[str, int]]:
            self.asked += 1
            self.newest = 2
            return [{"version": self.at - n, "inCommitTimestamp": 100 * (2 - n)} for n in range(3)]

    handle: Any = Handle()
    assert commits_of(handle, None, "", 200) == [Commit(0, 0), Commit(1, 100), Commit(2, 200)]
    assert handle.asked == 2


def rows_at(path: Path, at: int) -> int | None:
    """What `delta_snapshot` reads as of a time in ms; None: refused."""
    made = DeltaSnapshot({"uid": "t", "path": str(path), "timestamp": iso(at)})
    try:
        made.declared = made.schema()
    except ConfigurationError as refused:
        assert "no commit at or before" in refused.what
        return None
    return len(list(made.discover()))


def spark_rows_at(spark: SparkSession, path: Path, at: int) -> int | None:
    """What Spark reads as of the same time, in files; it refuses a time after the last commit too."""
    try:
        frame = spark.read.format("delta").option("timestampAsOf", iso(at).replace("+00:00", "Z")).load(str(path))
        return len(frame.inputFiles())
    except PySparkException as refused:
        assert "TIMESTAMP" in str(refused.getCondition())
        return None


def table(spark: SparkSession, path: Path, commits: int, **properties: str) -> None:
    for _ in range(commits):
        frame = spark.range(1).coalesce(1).write.format("delta").mode("append")
        for name, value in properties.items():
            frame = frame.option(f"delta.{name}", value)
        frame.save(str(path))


BASE = int(time.time() * 1000) - 3_600_000
"""An hour ago: Spark travels no further back than a table keeps its deleted files."""


def test_as_spark_by_the_files_of_the_log(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    table(spark, path, 4)
    # The third commit's file is older than the second's: another writer's clock, or a copy in no order.
    for version, at in enumerate([BASE, BASE + 500, BASE + 200, BASE + 900]):
        dated(path, version, at)
    wanted = {BASE - 1: None, BASE: 1, BASE + 499: 1, BASE + 500: 2, BASE + 501: 3, BASE + 899: 3, BASE + 900: 4}
    assert {at: rows_at(path, at) for at in wanted} == wanted
    assert {at: spark_rows_at(spark, path, at) for at in wanted} == wanted


def test_as_spark_by_in_commit_timestamps(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    table(spark, path, 2)
    spark.sql(f"alter table delta.`{path}` set tblproperties('delta.enableInCommitTimestamps'='true')")
    table(spark, path, 2)
    infos = [json.loads(one.read_text().splitlines()[0]) for one in sorted((path / "_delta_log").glob("*.json"))]
    inside = [info["commitInfo"].get("inCommitTimestamp") for info in infos]
    assert [at is None for at in inside] == [True, True, False, False, False]
    # A copy: every file of the log is newer than every commit in it, and out of order.
    for version, at in enumerate([inside[2] - 9000, inside[2] - 5000, *(inside[4] + 10_000 - n for n in range(3))]):
        dated(path, version, at)
    wanted = {
        inside[2] - 9001: None, inside[2] - 9000: 1, inside[2] - 4000: 2, inside[2] - 1: 2, inside[2]: 2, inside[3]: 3,
        inside[4] - 1: 3, inside[4]: 4,
    }  # fmt: skip
    assert {at: rows_at(path, at) for at in wanted} == wanted
    assert {at: spark_rows_at(spark, path, at) for at in wanted} == wanted


def test_as_spark_with_in_commit_timestamps_from_the_beginning(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    table(spark, path, 2, enableInCommitTimestamps="true")
    first, second = (
        json.loads(one.read_text().splitlines()[0])["commitInfo"]["inCommitTimestamp"]
        for one in sorted((path / "_delta_log").glob("*.json"))
    )
    for version in range(2):
        dated(path, version, BASE)
    wanted = {BASE: None, first - 1: None, first: 1, second: 2}
    assert {at: rows_at(path, at) for at in wanted} == wanted
    assert {at: spark_rows_at(spark, path, at) for at in wanted} == wanted
