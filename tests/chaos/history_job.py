"""Reads a PostgreSQL table, then the Kafka topic from which it was filled, into both servers. Run it until it ends.

It takes `--out DIR --given '{"history": {}, "live": {}, "table": {}, "topic": {}}'`.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from tests.chaos.commands import killed_job, the_job

EPOCH_ROWS = 150


def events(spark: SparkSession, uid: str, given: dict[str, dict[str, str]]) -> DataFrame:
    stages = {f"{stage}.{name}": value for stage in ("history", "live") for name, value in given[stage].items()}
    reader = spark.readStream.format("hybrid").option("max_rows_per_epoch", EPOCH_ROWS)
    return reader.options(**{"uid": uid, "stages": "history,live", "history.seam": "part:offset", **stages}).load()


def job(out: Path, given: dict[str, dict[str, str]]) -> sx.Job:
    spark = sx.session("chaos-history", conf={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "512m"})
    made = killed_job(spark, "history", out / "state")
    text = F.col("value").cast("string").alias("value")
    rows = events(spark, "events-for-table", given).select("partition", "offset", text)
    made.add("table", rows.writeStream.format("postgres_2pc").options(uid="copied", **given["table"]))
    messages = events(spark, "events-for-topic", given).select(
        F.concat_ws(":", "partition", "offset").alias("key"), text
    )
    made.add("topic", messages.writeStream.format("kafka_2pc").options(uid="copied-topic", **given["topic"]))
    return made


if __name__ == "__main__":
    sys.exit(the_job(job, given=json.loads))
