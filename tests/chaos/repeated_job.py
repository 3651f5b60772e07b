"""A job that is run with `until="now"` again and again in one process: `python repeated_job.py SHAPE FOLDER OPTIONS`.

Run n begins when the file `go-n` appears, and `done-n.json` has its result. A process that is started anew continues
with the first run that is not done.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

import spark_ext as sx

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "id bigint, at timestamp"

LOOK_EVERY = 0.02


def files(spark: SparkSession, options: dict[str, Any], uid: str = "in") -> DataFrame:
    reader = spark.readStream.format("files").schema(COLUMNS)
    return reader.options(uid=uid, format="json", watch="true", path=options["path"], max_rows_per_epoch=7).load()


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
    text = F.col("value").cast("string")
    return frame.select(F.from_json(text, COLUMNS).alias("row")).select("row.*")


READS: dict[str, Callable[[SparkSession, dict[str, Any]], DataFrame]] = {
    "delta": follow,
    "files": files,
    "hybrid": hybrid,
    "kafka": kafka,
    "native": native,
    "postgres": postgres,
}


def job(spark: SparkSession, shape: str, folder: Path, options: dict[str, Any]) -> sx.Job:
    made = sx.Job(spark, "repeated", state=folder / "state", restart_backoff=20, checkpoint_interval="1 s")

    def into(name: str, frame: DataFrame) -> Any:
        return frame.writeStream.format("delta_2pc").options(uid=f"{name}-out", path=str(folder / name))

    if shape == "windows":
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        minutes = sx.with_watermark(files(spark, options), "at", "1 minute").groupBy(F.window("at", "1 minute"))
        return made.add("out", into("out", minutes.agg(F.count("*").alias("n")).select("window.start", "n")))
    if shape == "linked":
        x = made.exchange("x", partitions=2, key="id")
        made.add("first", x.write(files(spark, options)))
        return made.add("out", into("out", x.read("x-in", max_rows_per_epoch=11)))
    return made.add("out", into("out", READS[shape](spark, options)))


def main(shape: str, folder: Path, options: dict[str, Any]) -> None:
    spark = sx.session("repeated", conf={"spark.driver.memory": "700m"})
    number = 0
    while True:
        done = folder / f"done-{number}.json"
        if not done.exists():
            go = folder / f"go-{number}"
            while not go.exists():
                time.sleep(LOOK_EVERY)
            last = go.read_text() == "all"
            started = time.monotonic()
            result = job(spark, shape, folder, options).run(
                until="now", emit="all" if last else "closed", progress=False
            )
            took = time.monotonic() - started
            draft = folder / ".done"
            draft.write_text(json.dumps({**result.to_json(), "seconds": took}))
            draft.replace(done)
            if last:
                return
        number += 1


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
