"""The job of the soak: `python -m benchmarks.soak.job OUT BROKERS`; PostgreSQL is that of the environment.

Each source reads the numbers from 0 on, and each sink has them in the end. Run again it continues.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_ext as sx
from tests.chaos.commands import ended
from tests.chaos.push_job import INBOX, SECRET

QUERIES: Final = ("kafka", "append", "postgres", "upsert", "files", "pushed")
KEYS: Final = 500  # of the table of upserts: it has the newest number of each
READ, WRITTEN = "numbers", "copies"  # topics and tables of PostgreSQL
HEAP: Final = "1g"
KEPT: Final = "interval 10 minutes"  # how long tables keep removed files and their log
CONF: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": HEAP,
    # The heap has all of its pages from the beginning, so that what grows is not the collector's choice.
    "spark.driver.extraJavaOptions": f"-Xms{HEAP} -XX:+AlwaysPreTouch",
}
UPKEEP: Final = {
    "optimize_interval": "5 minutes",
    "table_properties": json.dumps({"delta.logRetentionDuration": KEPT, "delta.deletedFileRetentionDuration": KEPT}),
}


def job(out: Path, brokers: str) -> sx.Job:
    spark = sx.session("soak", master="local[2]", conf={**CONF, "spark.local.dir": tempfile.gettempdir()})
    made = sx.Job(spark, "soak", state=out / "state", interval="5 s")
    events = made.exchange("events", partitions=2)
    orders = made.exchange("orders", partitions=2, kind="delta")
    inbox = made.inbox(INBOX, schema="n long", scheme="standard", secrets=(f"env:{SECRET}",), dedup_window="10 minutes")

    def read(source: str, uid: str, schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.readStream.format(source).options(uid=uid, discovery_interval="2 s", **options)
        return (reader.schema(schema) if schema else reader).load()

    def write(rows: DataFrame, sink: str, uid: str, **options: Any) -> DataStreamWriter:
        return rows.writeStream.format(sink).options(uid=uid, **options)

    kafka = read("kafka_range", "kafka-in", bootstrap_servers=brokers, topics=READ, ending="none")
    database = read("postgres", "postgres-in", table=READ, incremental="column", incremental_column="n")
    files = read("files", "files-in", "n long", path=str(out / "arriving"), format="json", watch="true")
    made.add("kafka", events.write(kafka.selectExpr("CAST(CAST(value AS string) AS bigint) AS n")))
    made.add("postgres", orders.write(database.select("n")))
    appended = events.read("events-in").withColumn("step", sx.control.value("step", "long", 0))
    made.add("append", write(appended, "delta_2pc", "append-out", path=str(out / "append"), **UPKEEP))
    newest = orders.read("orders-in").selectExpr(f"n % {KEYS} AS key", "n")
    upsert = {"mode": "upsert", "key": "key", "newest_by": "n"}
    made.add("upsert", write(newest, "delta_2pc", "upsert-out", path=str(out / "upsert"), **upsert, **UPKEEP))
    made.add("files", write(files, "postgres_2pc", "postgres-out", table=WRITTEN))
    pushed = inbox.read("pushed-in").selectExpr("CAST(n AS string) AS value")
    made.add("pushed", write(pushed, "kafka_2pc", "kafka-out", bootstrap_servers=brokers, topic=WRITTEN))
    return made


if __name__ == "__main__":
    sys.exit(ended(job(Path(sys.argv[1]), sys.argv[2]).run(progress=False)))
