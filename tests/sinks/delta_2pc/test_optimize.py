"""`optimize_interval` of `delta_2pc`: few files, the same rows, and no epoch that waits or fails for it."""

import datetime
import os
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, TableFeatures
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.delta import optimize, publish
from spark_ext.delta.entries import LogEntries
from spark_ext.delta.optimize import Optimize, crowded_partitions, optimize_if_due, retention, run
from spark_ext.errors import ConfigurationError
from spark_ext.model.commits import CommitOutcome
from tests.sinks.delta_2pc.delta_kit import Driver, Restore, Start, data_files, ddl, ids, numbered, table

HOUR = 3_600_000
UPSERT = {"mode": "upsert", "key": "id"}


def written(path: Path, **options: str) -> Driver:
    driver = Driver(path, options=options)
    for epoch in range(6):
        driver.run(epoch, numbered(epoch * 5, epoch * 5 + 5))
    return driver


def now() -> int:
    """UTC, in ms: not that of the import, which may be hours ago."""
    return time.time_ns() // 1_000_000


def files(path: Path) -> int:
    return len(DeltaTable(path).file_uris())


def test_small_files_become_one_and_the_rows_stay(tmp_path: Path) -> None:
    driver = written(tmp_path / "t")
    assert run(driver.sink().location, Optimize(HOUR), now()) == HOUR
    assert files(tmp_path / "t") == 1 and ids(tmp_path / "t") == list(range(30))
    entry = LogEntries(driver.sink().location, "out", "me")[DeltaTable(tmp_path / "t").version()]
    assert entry.operation == "OPTIMIZE" and not entry.own and not entry.changes_data
    assert driver.run(5, numbered(25, 30)) is CommitOutcome.ALREADY_COMMITTED
    assert driver.run(6, numbered(30, 35)) is CommitOutcome.COMMITTED


def test_it_is_not_due_within_the_interval_of_anybodys_last_one(tmp_path: Path) -> None:
    driver = written(tmp_path / "t")
    DeltaTable(tmp_path / "t").optimize.compact()
    driver.run(6, numbered(30, 35))
    driver.run(7, numbered(35, 40))
    assert 0 < run(driver.sink().location, Optimize(HOUR), now()) <= HOUR and files(tmp_path / "t") == 3
    run(driver.sink().location, Optimize(HOUR), now() + 2 * HOUR)
    assert files(tmp_path / "t") == 1


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
def test_the_sink_starts_it_behind_an_epoch(path: Path, options: dict[str, str]) -> None:
    driver = written(path, **options, optimize_interval="1 ms")
    optimize._running[str(path)].join(60)
    optimize._due[str(path)] = 0
    driver.run(6, numbered(30, 31))
    optimize._running[str(path)].join(60)
    assert files(path) == 1 and ids(path) == list(range(31))


def test_without_the_option_nothing_is_started(tmp_path: Path) -> None:
    written(tmp_path / "t")
    assert str(tmp_path / "t") not in optimize._running and files(tmp_path / "t") == 6


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
def test_an_epoch_meets_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]) -> None:
    driver = written(tmp_path / "t", **options)
    pending = [True]

    def compact(point: str) -> None:
        if point == "delta.before_commit" and pending:
            pending.clear()
            run(driver.sink().location, Optimize(1), now())
            assert files(tmp_path / "t") == 1

    monkeypatch.setattr(publish, "reach", compact)
    driver.run(6, [{"id": 3 if options else 30, "name": "new"}])
    found = {row["id"]: row["name"] for row in table(tmp_path / "t").to_pylist()}
    assert len(found) == (30 if options else 31) and found[3 if options else 30] == "new"
    assert ids(tmp_path / "t") == sorted(found)


def test_a_compaction_that_meets_a_merge_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = written(tmp_path / "t", **UPSERT)
    pending = [True]

    def meet(point: str) -> None:
        if point == "delta.before_optimize" and pending:
            pending.clear()
            driver.run(6, [{"id": 3, "name": "new"}])

    monkeypatch.setattr(optimize, "reach", meet)
    location, plan = driver.sink().location, Optimize(1)
    for found in (6, 1):  # given up, and tried again
        thread = optimize_if_due(location, plan)
        assert thread is not None
        thread.join(60)
        assert files(tmp_path / "t") == found
        optimize._due[location.uri] = 0
    assert {row["id"]: row["name"] for row in table(tmp_path / "t").to_pylist()}[3] == "new"


def test_a_failed_compaction_is_logged_and_tried_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    location = Driver(tmp_path / "none").sink().location
    thread = optimize_if_due(location, Optimize(HOUR))
    assert thread is not None
    thread.join(60)
    assert "could not be compacted" in caplog.text
    assert optimize_if_due(location, Optimize(HOUR)) is None


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
def test_a_savepoint_from_before_a_compaction_is_restored(path: Path, options: dict[str, str]) -> None:
    driver = Start(path, lineage=1, options=options)
    driver.begin()
    driver.put(0)
    driver.put(1, previous=0)
    position = driver.sink().position(driver.epoch(1))
    run(driver.sink().location, Optimize(1), now())
    driver.put(2, previous=1)
    driver.put(3, previous=2, rows=[{"id": 1, "name": "replaced"}])
    run(driver.sink().location, Optimize(1), now() + HOUR)
    start = Restore(path, lineage=2, options=options)
    start.restore(position)
    start.sink().roll_back(start.its_claim, position)
    assert sorted(table(path).to_pylist(), key=str) == numbered(0, 2)
    start.put(2)
    assert ids(path) == [0, 1, 2]


def test_sorting_rewrites_only_partitions_with_small_files(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t", ddl("id long, name string, day date, p string"), options={"partition_by": "day,p"})
    day = datetime.date(2024, 1, 1)

    def row(number: int, p: str | None) -> dict[str, Any]:
        return {"id": number, "name": f"n{number}", "day": day, "p": p}

    for epoch in range(5):
        driver.run(epoch, [row(epoch, "a/b 'ü"), row(epoch + 10, None)] + ([row(20, "c")] if epoch < 2 else []))
    plan = Optimize(1, z_order_by=("name", "id"))
    run(driver.sink().location, plan, now())
    assert files(tmp_path / "t") == 4, "one each for two partitions, and two in the third"
    assert ids(tmp_path / "t") == sorted([*range(5), *range(10, 15), 20, 20])
    version = DeltaTable(tmp_path / "t").version()
    run(driver.sink().location, plan, now() + HOUR)
    assert DeltaTable(tmp_path / "t").version() == version, "nothing to do"


@given(st.lists(st.tuples(st.tuples(st.sampled_from("abc")), st.integers(0, 100))))
def test_partitions_with_many_small_files(found: list[tuple[tuple[str], int]]) -> None:
    crowded = crowded_partitions(found, 100)
    for name in "abc":
        small = [size for values, size in found if values == (name,) and size < 50]
        assert ((name,) in crowded) is (len(small) >= 4)


def test_old_files_are_deleted_no_sooner_than_the_table_allows(path: Path) -> None:
    driver = written(path, table_properties='{"delta.deletedFileRetentionDuration": "interval 1 hours"}')
    (path / "part-00000-killed-c000.snappy.parquet").write_bytes(b"half")
    run(driver.sink().location, Optimize(1, vacuum_after=HOUR), now())
    assert len(data_files(path)) == 8, "all are younger than an hour"
    for name in data_files(path):
        os.utime(path / name, (1, 1))
    driver.run(6, numbered(30, 31))
    run(driver.sink().location, Optimize(1, vacuum_after=HOUR), now() + 25 * HOUR)
    assert "part-00000-killed-c000.snappy.parquet" not in data_files(path)
    assert ids(path) == list(range(31))


def test_no_vacuum_deletes_deletion_vectors(path: Path) -> None:
    """delta-rs takes them for files that were never committed. What these are is not known then, so they stay."""
    driver = written(path)
    DeltaTable(path).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    run(driver.sink().location, Optimize(1), now())
    vector, killed = "deletion_vector_8da3b2f0-fb25-4272-9342-a3a277afcf79.bin", "part-00000-killed-c000.parquet"
    (path / vector).write_bytes(b"which rows are deleted")
    (path / killed).write_bytes(b"half")
    for name in [*data_files(path), vector]:
        os.utime(path / name, (1, 1))
    driver.run(6, numbered(30, 31))
    run(driver.sink().location, Optimize(1, vacuum_after=168 * HOUR), now() + 200 * HOUR)
    assert (path / vector).exists() and (path / killed).exists()
    assert all(Path(uri).exists() for uri in DeltaTable(path).file_uris())


@pytest.mark.parametrize(
    ("text", "hours"),
    [("interval 2 days", 48), ("INTERVAL 1 week", 168), ("36 hours", 36), ("", 168), ("nonsense", 168)],
)
def test_retention(text: str, hours: int) -> None:
    assert retention({"delta.deletedFileRetentionDuration": text} if text else {}) == hours * HOUR


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"z_order_by": "nr"}, "option 'z_order_by': 'nr' is not a column"),
        ({"z_order_by": "name", "partition_by": "name"}, "'name' is a partition column"),
        ({"vacuum_after": "24 hours"}, "'vacuum_after' is 24 hours, and the table keeps removed files for 168 hours"),
    ],
)
def test_what_would_fail_later_is_refused_at_the_start(tmp_path: Path, options: dict[str, str], message: str) -> None:
    driver = Driver(tmp_path / "t", options={"optimize_interval": "1 h", **options})
    with pytest.raises(ConfigurationError, match=message):
        driver.sink().validate(driver.schema)
    driver = Driver(tmp_path / "t", options={k: v for k, v in options.items() if k == "partition_by"}).claim()
    driver = Driver(tmp_path / "t", options={"optimize_interval": "1 h", **options})
    with pytest.raises(ConfigurationError, match=message):
        driver.sink().validate(driver.schema)
