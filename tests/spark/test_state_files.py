"""Facts about Spark's state stores that are relied on."""

from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_ext.spark.backend.classic import CLASSIC
from spark_ext.spark.backend.failures import first_line
from spark_ext.spark.backend.state import StateVersion
from spark_ext.spark.backend.state_formats import LocalStateFiles
from spark_ext.spark.logs.spark_log import SparkLog
from tests.support.stateful import KINDS, add_files, run


def test_a_changelog_has_its_lineage_and_a_snapshot_its_files(spark: SparkSession, tmp_path: Path) -> None:
    add_files(tmp_path / "in", range(2))
    kind, checkpoint = KINDS["aggregation"], tmp_path / "checkpoint"
    run(spark, kind.build(spark, tmp_path / "in"), kind.mode, checkpoint)
    CLASSIC.repartition_state(spark, str(checkpoint), 3)
    epoch = SparkLog(str(checkpoint)).newest_commit()
    assert epoch is not None
    files, log, folder = CLASSIC.state_files(spark, "lz4"), SparkLog(str(checkpoint)), str(checkpoint / "state/0/0")
    first, second, repartitioned = (
        StateVersion(number + 1, (log.commit(number) or {})["stateUniqueIds"]["0"][0][0]) for number in (0, 1, epoch)
    )
    for read in (files, LocalStateFiles("lz4")):
        assert read.lineage(folder, first) == ()
        assert read.lineage(f"file:{folder}", second) == (first,)
        # Spark writes repartitioned state as snapshots.
        assert not (Path(folder) / repartitioned.changelog).exists()
        for name in read.referred(folder, repartitioned):
            assert (Path(folder) / name).exists()
        assert all(name.startswith("SSTs/") for name in read.referred(folder, repartitioned))
        with pytest.raises(FileNotFoundError, match=r"9_x\.changelog"):
            read.lineage(folder, StateVersion(9, "x"))
        with pytest.raises(FileNotFoundError, match=r"9_x\.zip"):
            read.referred(folder, StateVersion(9, "x"))
    with pytest.raises(Py4JJavaError) as refusal:
        CLASSIC.repartition_state(spark, str(checkpoint), 3)
    assert "SHUFFLE_PARTITIONS_ALREADY_MATCH" in first_line(refusal.value)
    assert "\n" not in first_line(refusal.value)
