"""Upserts: `delta_2pc` with `mode=upsert` against `MERGE` of delta-spark in `foreachBatch`, on the same rows.

Both take the same files into a table of the same rows, alternately. The time is Spark's `addBatch`, which includes the
tasks and the sink's commit. The JVM side is what Spark's users write by hand, with one row of each key in an epoch
already: it neither looks for repeated keys nor remembers epochs.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from tempfile import mkdtemp

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks._figures import Aim, Figure, Figures, Sample, beside
from benchmarks._spark import run_epochs, session, workplace

ROUNDS = 3
EPOCHS = 6
WARM = 2  # first epochs of a query, in which workers start and code is compiled
ROWS = 20_000  # rows of an epoch, half of them with new keys
TABLE = 500_000  # rows of the table at the beginning
SINKS = ("delta_2pc", "foreachBatch")
CONF = {"spark.driver.extraJavaOptions": "-Xss16m"}
"""Catalyst and Delta walk through the plan of MERGE by recursion: while their code is not compiled yet, the JVM's own
stack of 1 MB has been too small for it (StackOverflowError)."""


def run(rounds: int = ROUNDS) -> Figures:
    with session("upsert", CONF) as spark, workplace() as folder:
        times = beside(SINKS, rounds, lambda sink: _epochs(spark, sink, Path(mkdtemp(dir=folder))))
    samples = {sink: Sample.of([*chain(*values)], "ms") for sink, values in times.items()}
    yield Figure(
        "upsert",
        "median addBatch of an epoch of upserts: MERGE in foreachBatch / delta_2pc",
        samples["foreachBatch"].median / samples["delta_2pc"].median,
        Aim(">=", 1.5),
        {"delta_2pc": samples["delta_2pc"], "MERGE of delta-spark in foreachBatch": samples["foreachBatch"]},
        {
            "rows per epoch": ROWS, "rows of the table": TABLE, "rounds": rounds, "epochs per round": EPOCHS,
            "left out at first": WARM,
        },
        divided=("MERGE of delta-spark in foreachBatch", "delta_2pc"),
    )  # fmt: skip


def _epochs(spark: SparkSession, sink: str, folder: Path) -> list[float]:
    """Times of the epochs that count, ms."""
    table = str(folder / "table")
    given = spark.range(0, TABLE, 1, 4).selectExpr("id", "timestamp_micros(id) AS at", "id * 0.5D AS value")
    given.write.format("delta").save(table)
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    # Every second row has a key of the table, all over it; the other ones are new.
    key = f"IF(value % 2 = 0, (value * 7919) % {TABLE}, {TABLE} + value)"
    changed = rows.selectExpr(f"{key} AS id", "timestamp AS at", "value * 0.5D AS value")
    reports = run_epochs(_writer(spark, sink, changed, table), folder / "checkpoint", WARM + EPOCHS - 1)
    counted = [report for report in reports if report["batchId"] >= WARM]
    found = spark.read.format("delta").load(table).selectExpr("count(*)", "count(DISTINCT id)").first()
    assert found is not None and found[0] == found[1] > TABLE, f"{sink}: {found}"
    return [float(report["durationMs"]["addBatch"]) for report in counted]


def _writer(spark: SparkSession, sink: str, rows: DataFrame, table: str) -> DataStreamWriter:
    if sink == "delta_2pc":
        return rows.writeStream.format(sink).options(uid="out", path=table, mode="upsert", key="id")

    def merge(batch: DataFrame, epoch: int) -> None:
        batch.createOrReplaceTempView("changed")
        batch.sparkSession.sql(
            f"MERGE INTO delta.`{table}` t USING changed s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    return rows.writeStream.foreachBatch(merge)
