"""The tests of the sinks' contract that need Spark: real queries, with and without a job.

    class TestMySinkInSpark(SinkQueryContract):
        @pytest.fixture
        def target(self, tmp_path):
            return MyTarget(tmp_path / "out")

A fixture `spark` must provide a session created by `spark_ext.session`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import spark_ext as sx
from spark_ext.errors import JobFailedError
from spark_ext.testing.sink_driver import SinkTarget
from spark_ext.testing.waiting import until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_ext.jobs.job import Job


class SinkQueryContract:
    """Define the fixtures `target` and `spark`."""

    def test_c3_spark_replays_an_epoch_and_it_is_recognised(
        self, target: SinkTarget, spark: SparkSession, tmp_path: Path
    ) -> None:
        """A query without a job. The last file in Spark's `commits` is removed, as if the driver had crashed."""
        checkpoint = tmp_path / "checkpoint"

        def query() -> list[tuple[int, int]]:
            """Run to the end; returns the epochs that had rows, each with their number."""
            stream = _into(target, _rows(spark, 60)).option("checkpointLocation", str(checkpoint))
            run = stream.start()
            try:
                run.processAllAvailable()
            finally:
                run.stop()
            reports = [json.loads(report.json) for report in run.recentProgress]
            # Over Spark Connect a report has no sum of its sources' rows.
            found = [(one["batchId"], sum(part["numInputRows"] for part in one["sources"])) for one in reports]
            return [(epoch, rows) for epoch, rows in found if rows]

        first = query()
        assert [rows for _, rows in first] == [20, 20, 20]
        assert target.ids() == list(range(60))
        last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
        assert int(last.name) == first[-1][0], "the last epoch has rows"
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        assert query() == first[-1:], "the epoch was replayed"
        assert last.exists()
        assert target.ids() == list(range(60))

    def test_c8_the_limit_leaves_an_incident_with_what_is_in_doubt(
        self, target: SinkTarget, spark: SparkSession, tmp_path: Path
    ) -> None:
        """The target of a running job breaks: the job fails, records why, and continues once the target is repaired."""
        gate = tmp_path / "gate"

        def job() -> Job:
            made = sx.Job(spark, "contract", state=tmp_path / "state", restart_attempts=0)
            rows = _waiting(_rows(spark, 40), str(gate), upto=20)
            made.add("q", _into(target, rows).option("commit_attempts", "3").option("commit_backoff", "10 ms"))
            return made

        first = job().start()
        until(lambda: target.ids() == list(range(20)), "the first epoch")
        repair = target.damage()
        try:
            gate.touch()
            with pytest.raises(JobFailedError, match="could not be committed in 3 attempts"):
                first.await_termination(90)
        finally:
            repair()
        incidents = [incident["what"] for incident in first.ledger.incidents().collect()]
        assert any("could not be committed in 3 attempts" in what and "in doubt" in what for what in incidents), (
            incidents
        )
        assert not any(secret in what for secret in target.secrets for what in incidents)
        assert target.ids() == list(range(20))
        assert job().run(progress=False).finished
        assert target.ids() == list(range(40))


def _rows(spark: SparkSession, count: int) -> DataFrame:
    """A bounded stream of the columns of `NUMBERS`, 20 rows an epoch, in order."""
    reader = spark.readStream.format("datagen").option("uid", "numbers").option("rows", str(count))
    return reader.option("max_rows_per_epoch", "20").load().selectExpr("id", "tag AS name")


def _waiting(rows: DataFrame, gate: str, upto: int) -> DataFrame:
    """The same rows, but those from an id on are held back until a file exists."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if any(number >= upto for number in batch.column("id").to_pylist()):
                until(Path(gate).exists, "the gate to open")
            yield batch

    return rows.mapInArrow(wait, rows.schema)


def _into(target: SinkTarget, rows: DataFrame) -> DataStreamWriter:
    """A writer with the target's options, unchanged."""
    sink: Any = target.sink()
    sx.register(rows.sparkSession, type(sink))
    return rows.writeStream.format(sink.name()).options(**sink.given)
