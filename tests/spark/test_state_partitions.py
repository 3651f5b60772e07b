"""State in another number of partitions gives the same results."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_ext.errors import ConfigurationError, StateError
from spark_ext.spark.logs.epoch_files import files_of_epoch, state_partitions
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.logs.state_partitions import repartition
from spark_ext.storage import link
from tests.support.stateful import KINDS, add_files, run, stream
from tests.support.versions import needs_rescale

PARTITIONS = "spark.sql.shuffle.partitions"
pytestmark = needs_rescale


def copied(spark: SparkSession, checkpoint: Path, target: Path) -> int:
    """Copy what the newest epoch needs, and put nothing at the place of the original."""
    epoch = SparkLog(str(checkpoint)).newest_commit()
    assert epoch is not None
    for name in files_of_epoch(spark, str(checkpoint), epoch, "q"):
        link(f"{checkpoint}/{name}", f"{target}/{name}")
    shutil.rmtree(checkpoint)
    return epoch


@pytest.mark.core_for("[window]")
@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"aggregation-without-keys", "limit"}))
def test_r9_state_in_4_then_5_then_3_partitions(spark: SparkSession, tmp_path: Path, name: str) -> None:
    kind, files = KINDS[name], tmp_path / "in"
    usual, current = tmp_path / "usual", tmp_path / "0"
    for phase, partitions in enumerate((4, 5, 3)):
        add_files(files, range(2 * phase, 2 * phase + 2))
        if phase:
            current = tmp_path / str(phase)
            epoch = copied(spark, tmp_path / str(phase - 1), current)
            assert repartition(spark, str(current), partitions, "q") == epoch + 1
            assert state_partitions(str(current), epoch + 1) == partitions
        # Each query keeps the number of its first epoch; results are the same in one partition, which is cheaper.
        spark.conf.set(PARTITIONS, "1")
        expected = run(spark, kind.build(spark, files), kind.mode, usual)
        spark.conf.set(PARTITIONS, "4")
        found = run(spark, kind.build(spark, files), kind.mode, current)
        assert list(found.values()) == list(expected.values())
        assert min(found) == min(expected) + phase


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("name", ["aggregation-without-keys", "limit"])
def test_state_that_is_always_in_one_partition_is_refused(
    spark: SparkSession, tmp_path: Path, name: str, partitions: int
) -> None:
    spark.conf.set(PARTITIONS, str(partitions))
    add_files(tmp_path / "in", range(1))
    kind, checkpoint = KINDS[name], tmp_path / "checkpoint"
    run(spark, kind.build(spark, tmp_path / "in"), kind.mode, checkpoint)
    with pytest.raises(StateError, match=r"stateStoreSave|globalLimit") as refusal:
        repartition(spark, str(checkpoint), 3, "job a, query b")
    assert refusal.value.operator == "job a, query b"


def test_what_cannot_be_repartitioned_is_refused_beforehand(spark: SparkSession, tmp_path: Path) -> None:
    add_files(tmp_path / "in", range(2))
    kind, checkpoint, plain = KINDS["aggregation"], tmp_path / "checkpoint", tmp_path / "plain"
    with pytest.raises(StateError, match="no epoch of the query is committed"):
        repartition(spark, str(checkpoint), 3, "q")
    run(spark, kind.build(spark, tmp_path / "in"), kind.mode, checkpoint)
    run(spark, stream(spark, tmp_path / "in"), "append", plain)
    before = sorted(plain.rglob("*"))
    with pytest.raises(StateError, match="has no state"):
        repartition(spark, str(plain), 3, "q")
    assert sorted(plain.rglob("*")) == before
    before, newest = sorted(checkpoint.rglob("*")), SparkLog(str(checkpoint)).newest_commit()
    assert newest is not None
    with pytest.raises(ConfigurationError, match="0 partitions"):
        repartition(spark, str(checkpoint), 0, "q")
    assert repartition(spark, str(checkpoint), 2, "q") == newest
    assert sorted(checkpoint.rglob("*")) == before
    (checkpoint / f"commits/{newest}").unlink()
    with pytest.raises(StateError, match=f"epoch {newest} of the query is planned and not committed"):
        repartition(spark, str(checkpoint), 3, "q")
