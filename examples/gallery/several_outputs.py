"""One input, cleaned once, and three outputs: a table, files, and a summary that waits for the table.

An exchange carries the clean rows to two queries, so that the input is read once. A third query is built when the first
table is complete. All of them are one job: they fail, restart and finish together, each row once in each output.

    python examples/gallery/several_outputs.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter

import spark_ext as sx
from spark_ext.sinks.files_2pc import read

OUT = Path("out/gallery/several_outputs")


def job(spark: SparkSession) -> sx.Job:
    raw = (
        spark.readStream.format("datagen")
        .option("uid", "sensors")
        .option("rows", 4_000)
        .option("channels", 2)
        .option("keys", 5)
        .load()
    )
    made = sx.Job(spark, "sensors", state=OUT / "state")
    clean = made.exchange("clean", partitions=2, key="key")
    made.add("clean", clean.write(raw.where("value >= 0.1").select("id", "key", "tag", "ts", "value")))

    rows = (
        clean.read("table-in")
        .writeStream.format("delta_2pc")
        .option("uid", "rows-table")
        .option("path", str(OUT / "rows"))
    )
    made.add("table", rows)

    alarms = clean.read("alarms-in").where("value > 0.99")
    made.add(
        "alarms",
        alarms.writeStream.format("files_2pc")
        .option("uid", "alarm-files")
        .option("path", str(OUT / "alarms"))
        .option("format", "csv"),
    )

    def summary() -> DataStreamWriter:
        done: DataFrame = (
            spark.readStream.format("delta_snapshot").option("uid", "done").option("path", str(OUT / "rows")).load()
        )
        high = done.where("value > 0.9").select("id", "tag", "value")
        return high.writeStream.format("delta_2pc").option("uid", "high-table").option("path", str(OUT / "high"))

    made.add("summary", summary, after="table")
    return made


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    spark = sx.session("several-outputs")
    print(job(spark).run(progress=False))

    rows = spark.read.format("delta").load(str(OUT / "rows"))
    alarms = read(spark, str(OUT / "alarms")).count()  # the files that are committed
    high = spark.read.format("delta").load(str(OUT / "high")).count()
    print(f"{rows.count()} rows, {alarms} alarms, {high} high values")
    rows.groupBy("tag").agg(F.count("*").alias("rows")).orderBy("tag").show()


if __name__ == "__main__":
    main()
