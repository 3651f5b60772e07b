"""The files of one committed epoch are all that a query needs to continue after it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_ext.errors import StateError
from spark_ext.spark.logs import watermarks
from spark_ext.spark.logs.epoch_files import files_of_epoch, is_stateful, state_partitions
from spark_ext.spark.logs.state_operators import relocate
from spark_ext.storage import LocalFolder, link
from tests.support.stateful import KINDS, add_files, run, stream
from tests.support.waiting import until

STORE = "spark.sql.streaming.stateStore."


def pin(spark: SparkSession, checkpoint: Path, epoch: int, target: Path) -> tuple[str, ...]:
    names = files_of_epoch(spark, str(checkpoint), epoch, "job, query")
    for name in names:
        link(f"{checkpoint}/{name}", f"{target}/{name}")
    relocate(str(target))
    assert sorted(LocalFolder(target).files()) == sorted(names)
    return names


@pytest.fixture
def quick_maintenance(spark: SparkSession) -> Iterator[None]:
    """Snapshots after a few epochs, and Spark removes all but the newest epochs."""
    # The thread that does it reads its interval when it starts.
    state = spark.sparkContext._jvm.org.apache.spark.sql.execution.streaming.state  # type: ignore[union-attr]
    store = getattr(getattr(state, "StateStore$"), "MODULE$")
    _stop(store)
    spark.conf.set(STORE + "maintenanceInterval", "50ms")
    spark.conf.set(STORE + "minDeltasForSnapshot", "3")
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    yield
    _stop(store)


def _stop(store: Any) -> None:
    # `stop` holds a lock that its own maintenance may be waiting for: it then waits six minutes for that to end.
    store.stopMaintenanceTaskWithoutLock()
    store.stop()


@pytest.mark.slow(12, "starts three queries, and waits until Spark has removed state")
def test_a_query_continues_after_epochs_that_spark_has_removed(
    spark: SparkSession, tmp_path: Path, quick_maintenance: None
) -> None:
    add_files(tmp_path / "in", range(11))
    kind, checkpoint = KINDS["window"], tmp_path / "checkpoint"
    pinned: dict[int, tuple[str, ...]] = {}

    def at_epoch(epoch: int) -> None:
        if epoch == 8:
            until(lambda: all(list((checkpoint / "state/0" / part).glob("*.zip")) for part in "01"), "snapshots")
        if epoch in (1, 8):  # of the eighth file no row is kept
            pinned[epoch - 1] = pin(spark, checkpoint, epoch - 1, tmp_path / f"cut-{epoch - 1}")
        if epoch == 10:
            until(lambda: not list((checkpoint / "state/0/0").glob("1_*")), "old files are removed")

    whole = run(spark, kind.build(spark, tmp_path / "in"), kind.mode, checkpoint, at_epoch)
    with pytest.raises(FileNotFoundError, match="offsets/6"):
        files_of_epoch(spark, str(checkpoint), 7, "job, query")
    for epoch, names in pinned.items():
        cut = tmp_path / f"cut-{epoch}"
        assert files_of_epoch(spark, str(cut), epoch, "job, query") == names
        continued = run(spark, kind.build(spark, tmp_path / "in"), kind.mode, cut)
        assert continued == {number: rows for number, rows in whole.items() if number > epoch}
        assert any(continued.values())
    assert not any(name.endswith(".zip") for name in pinned[0])
    for part in "01":  # one snapshot, with what it refers to, and the changelogs since
        mine = [Path(name) for name in pinned[7] if name.startswith(f"state/0/{part}/")]
        (snapshot,) = (int(name.stem.partition("_")[0]) for name in mine if name.suffix == ".zip")
        logs = sorted(int(name.stem.partition("_")[0]) for name in mine if name.suffix == ".changelog")
        assert logs == list(range(snapshot + 1, 9))
        assert any(name.parent.name == "SSTs" for name in mine)
        checked = {name.name.removesuffix(".crc") for name in mine if name.suffix == ".crc"}
        assert checked == {name.name for name in mine if name.suffix in (".zip", ".changelog")}


# The other kinds continue in `test_state_partitions`, from the files of their newest epoch.
@pytest.mark.parametrize("name", ["aggregation-without-keys", "outer-join", "transform-with-state", "two-operators"])
def test_a_query_continues_after_an_epoch(spark: SparkSession, tmp_path: Path, name: str) -> None:
    add_files(tmp_path / "in", range(5))
    kind, checkpoint, cut = KINDS[name], tmp_path / "checkpoint", tmp_path / "cut"

    def at_epoch(epoch: int) -> None:
        if epoch == 3:
            pin(spark, checkpoint, 2, cut)

    whole = run(spark, kind.build(spark, tmp_path / "in"), kind.mode, checkpoint, at_epoch)
    shutil.rmtree(checkpoint)
    continued = run(spark, kind.build(spark, tmp_path / "in"), kind.mode, cut)
    assert continued == {number: rows for number, rows in whole.items() if number > 2}
    assert any(continued.values())


def test_a_query_without_state_needs_its_logs_only(spark: SparkSession, tmp_path: Path) -> None:
    add_files(tmp_path / "in", range(12))
    checkpoint = tmp_path / "checkpoint"
    whole = run(spark, stream(spark, tmp_path / "in"), "append", checkpoint)
    assert files_of_epoch(spark, str(checkpoint), 0, "q") == ("metadata", "offsets/0", "sources/0/0", "commits/0")
    assert files_of_epoch(spark, f"file://{checkpoint}", 10, "q") == (
        *("metadata", "offsets/9", "offsets/10"),
        *("sources/0/9.compact", "sources/0/10"),
        "commits/10",
    )
    assert not is_stateful(str(checkpoint), 0)
    watermarks.record(str(checkpoint), 10, {"a~end": 50})
    assert watermarks.NAME in files_of_epoch(spark, str(checkpoint), 10, "q"), "a copy goes on with it"
    pin(spark, checkpoint, 10, tmp_path / "cut")
    continued = run(spark, stream(spark, tmp_path / "in"), "append", tmp_path / "cut")
    assert continued == {number: rows for number, rows in whole.items() if number > 10}
    with pytest.raises(FileNotFoundError, match="offsets/19"):
        files_of_epoch(spark, str(checkpoint), 20, "q")


@pytest.mark.parametrize("named", ["format 1", "HDFSBackedStateStoreProvider"])
def test_other_state_is_refused(spark: SparkSession, tmp_path: Path, named: str) -> None:
    spark.conf.set(STORE + "checkpointFormatVersion", "1")
    if named != "format 1":
        spark.conf.set(STORE + "providerClass", f"org.apache.spark.sql.execution.streaming.state.{named}")
    add_files(tmp_path / "in", range(1))
    checkpoint = tmp_path / "checkpoint"
    run(spark, KINDS["aggregation"].build(spark, tmp_path / "in"), "update", checkpoint)
    with pytest.raises(StateError, match=f"other than RocksDB with checkpoint format 2: {named}") as refusal:
        files_of_epoch(spark, str(checkpoint), 0, "job a, query b")
    assert refusal.value.operator == "job a, query b, epoch 0"
    assert is_stateful(str(checkpoint), 0)


def test_a_file_that_has_vanished_is_named(spark: SparkSession, tmp_path: Path) -> None:
    add_files(tmp_path / "in", range(3))
    checkpoint = tmp_path / "with space"
    run(spark, KINDS["aggregation"].build(spark, tmp_path / "in"), "update", checkpoint)
    names = files_of_epoch(spark, str(checkpoint), 2, "q")
    assert state_partitions(str(checkpoint), 2) == 2
    for name in (one for one in names if not one.startswith(("sources/", "state/0/0/_metadata"))):
        (checkpoint / name).rename(tmp_path / "away")
        if name.endswith(".crc"):
            assert set(files_of_epoch(spark, str(checkpoint), 2, "q")) == {*names} - {name}
        else:
            with pytest.raises(FileNotFoundError):
                files_of_epoch(spark, str(checkpoint), 2, "q")
        (tmp_path / "away").rename(checkpoint / name)
    assert files_of_epoch(spark, str(checkpoint), 2, "q") == names
