"""The tests of the sources' contract that need Spark: a real query, and a real job. For bounded sources.

    class TestMySourceInSpark(SourceQueryContract):
        @pytest.fixture
        def world(self, tmp_path):
            return MyWorld(tmp_path)

A fixture `spark` must provide a session created by `spark_ext.session`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

import spark_ext as sx
from spark_ext.model.offsets import SourceOffset
from spark_ext.sources.contract import Committed
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.testing.source_contract import SourceWorld, as_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SourceQueryContract:
    """Define the fixtures `world` and `spark`."""

    def test_r2_spark_replays_an_epoch_and_it_has_the_same_rows(
        self, world: SourceWorld, spark: SparkSession, tmp_path: Path
    ) -> None:
        """The last file in Spark's `commits` is removed, as if the driver had crashed before it was written."""
        checkpoint = tmp_path / "checkpoint"

        def query(seen: Path) -> dict[int, list[str]]:
            """Run to the end; returns the rows of each epoch that had any."""

            def see(rows: DataFrame, epoch: int) -> None:
                """Into a file: over Spark Connect this runs in the server."""
                (seen / str(epoch)).write_text(json.dumps(sorted(repr(row) for row in rows.toLocalIterator())))

            seen.mkdir()
            stream = _stream(world, spark).writeStream.foreachBatch(see)
            run = stream.option("checkpointLocation", str(checkpoint)).start()
            try:
                run.processAllAvailable()
            finally:
                run.stop()
            found = {int(file.name): json.loads(file.read_text()) for file in seen.iterdir()}
            return {epoch: rows for epoch, rows in found.items() if rows}

        first = query(tmp_path / "first")
        assert len(first) > 1
        assert sum(map(len, first.values())) == len(world.expected())
        newest = max(first)
        for file in (checkpoint / "commits").iterdir():
            number = file.name.strip(".").removesuffix(".crc")
            if number.isdigit() and int(number) >= newest:
                file.unlink()
        assert query(tmp_path / "second") == {newest: first[newest]}

    def test_f10_an_ending_job_acknowledges_its_last_epoch_once(
        self, world: SourceWorld, spark: SparkSession, tmp_path: Path
    ) -> None:
        """The output has each row once; a second run finds the job finished."""
        target = tmp_path / "table"

        def job() -> sx.Job:
            made = sx.Job(spark, "contract", state=tmp_path / "state")
            stream = _stream(world, spark).writeStream.format("delta_2pc")
            made.add("q", stream.option("uid", "contract-out").option("path", str(target)))
            return made

        first = job()
        assert first.run(progress=False).finished
        rows: Any = DeltaTable(target).to_pyarrow_table()
        assert sorted(map(repr, rows.to_pylist())) == sorted(map(repr, as_rows(rows.schema, world.expected())))
        log = SparkLog(str(tmp_path / "state" / "queries" / "q" / "checkpoint"))
        logged = log.offsets(log.newest_commit() or 0)
        assert logged is not None
        offset = next(raw for raw in logged.sources if raw.get("uid") == world.options["uid"])
        assert offset["ended"]
        world.check_acknowledged(Committed.of(SourceOffset.from_json(offset), final=True))
        again = job().run(progress=False)
        assert again.query("q").finished_before and again.query("q").rows == 0

    def test_f19_a_batch_read_in_spark_has_the_rows_of_the_job(self, world: SourceWorld, spark: SparkSession) -> None:
        """Read twice: the first read has acknowledged nothing."""
        source: Any = world.source()
        sx.register(spark, type(source))
        reader = spark.read.format(source.name()).options(**source.given)
        frame = (reader if world.schema is None else reader.schema(world.schema)).load()
        for _ in range(2):
            rows = frame.toArrow()
            assert sorted(map(repr, rows.to_pylist())) == sorted(map(repr, as_rows(rows.schema, world.expected())))


def _stream(world: SourceWorld, spark: SparkSession) -> DataFrame:
    """The source's rows, in a few epochs: each costs Spark a second."""
    source: Any = world.source(**{**world.small, "max_rows_per_epoch": "12"})
    sx.register(spark, type(source))
    reader = spark.readStream.format(source.name()).options(**source.given)
    return (reader if world.schema is None else reader.schema(world.schema)).load()
