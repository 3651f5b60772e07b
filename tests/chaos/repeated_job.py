"""Jobs that are run with `until="now"` again and again in one process: `python repeated_job.py`.

Each line of standard input is a job: shape, folder and options, as JSON. Runs take turns as `turns.py` says; a process
that is started again continues with the first one that is not done. The frame of an input is made once.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.errors import JobFailedError
from tests.chaos import turns
from tests.chaos.commands import session

COLUMNS = "id bigint, at timestamp"
LOOK_EVERY = 0.02


def files(spark: SparkSession, options: dict[str, Any], uid: str = "in") -> DataFrame:
    reader = spark.readStream.format("files").schema(COLUMNS)
    return reader.options(uid=uid, format="json", watch="true", path=options["path"], max_rows_per_epoch=7).load()


def inferred(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    reader = spark.readStream.format("files").options(uid="in", header="true", watch="true", **options)
    aside: dict[str, Any] = {"on_bad_row": "quarantine", "on_bad_file": "quarantine", "max_rows_per_epoch": 7}
    frame = reader.options(infer="true", schema_evolution="add_columns", **aside).load()
    return frame.select("id", F.to_json(F.struct(*(one for one in frame.columns if one != "at"))).alias("row"))


def rules(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    judged = sx.expect(files(spark, options), "third", "id % 3 <> 0", on_fail="quarantine")
    return sx.expect(judged, "odd", "id % 2 = 1", on_fail="count")


def native(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    return spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 2).json(options["path"])


def follow(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    return spark.readStream.format("delta_snapshot").options(uid="in", follow="true", path=options["path"]).load()


def postgres(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    return spark.readStream.format("postgres").options(uid="in", **options).load()


def kafka(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    read = spark.readStream.format("kafka_range").options(uid="in", ending="none", max_rows_per_epoch=7, **options)
    return parsed(read.load())


def hybrid(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    return parsed(spark.readStream.format("hybrid").options(uid="in", **options).load())


def parsed(frame: DataFrame) -> DataFrame:
    return frame.select(F.from_json(F.col("value").cast("string"), COLUMNS).alias("row")).select("row.*")


READS: dict[str, Callable[[SparkSession, dict[str, Any]], DataFrame]] = {
    "delta": follow, "files": files, "hybrid": hybrid, "inferred": inferred, "kafka": kafka, "native": native,
    "postgres": postgres, "rules": rules,
}  # fmt: skip


def frame_of(spark: SparkSession, shape: str, options: dict[str, Any]) -> DataFrame:
    if shape in ("early", "windows"):
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        minutes = sx.with_watermark(files(spark, options), "at", "1 minute").groupBy(F.window("at", "1 minute"))
        return minutes.agg(F.count("*").alias("n")).select("window.start", "n")
    return READS["files" if shape == "linked" else shape](spark, options)


def job(spark: SparkSession, shape: str, folder: Path, frame: DataFrame) -> sx.Job:
    made = sx.Job(spark, "repeated", state=folder / "state", restart_backoff=20, checkpoint_interval="1 s")
    if shape == "linked":
        x = made.exchange("x", partitions=2, key="id")
        made.add("first", x.write(frame))
        frame = x.read("x-in", max_rows_per_epoch=11)
    of = {"early": {"mode": "upsert", "key": "start"}, "rules": {"on_bad_row": "quarantine"}}
    options: dict[str, Any] = of.get(shape, {})
    writer = frame.writeStream.format("delta_2pc").options(uid="out-out", path=str(folder / "out"), **options)
    return made.add("out", writer)


def main() -> None:
    spark = session("repeated", {"spark.driver.memory": "700m"})
    first = True
    for line in sys.stdin:
        shape, place, options = json.loads(line)
        folder, number = Path(place), 0
        frame: DataFrame | None = None
        while (turn := turns.next_turn(folder, number)) is not None:
            number = turn
            while (last := turns.given(folder, number)) is None:
                time.sleep(LOOK_EVERY)
            started = time.monotonic()
            emit: Any = "all" if last else "early" if shape == "early" else "closed"
            result = None
            while result is None:
                try:
                    if frame is None or shape == "inferred":
                        frame = frame_of(spark, shape, options)
                    made = job(spark, shape, folder, frame)
                    result = made.run(until="now", emit=emit, progress=False)
                except (JobFailedError, PySparkException) as problem:
                    # A column that came after the load is added by the next one; a killed worker was loading.
                    text = "not among those that were inferred" if isinstance(problem, JobFailedError) else "crashed"
                    if shape != "inferred" or text not in str(problem):
                        raise
                    print(f"run {number} again: {problem}", file=sys.stderr)
            turns.take(folder, number, {**result.to_json(), "seconds": time.monotonic() - started, "first": first})
            first = False


if __name__ == "__main__":
    main()
