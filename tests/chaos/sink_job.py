"""One query that copies generated rows, known in advance, into a sink in many small epochs. Run it until it ends.

It takes `--out DIR --sink http_2pc --options '{"url": ...}'`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

import spark_ext as sx
from tests.chaos.commands import generated, killed_job, the_job

ROWS_OF = (2_000, 3_000, 4_000)  # rows of each channel; the channels end one after the other
EPOCH_ROWS = int(os.environ.get("CHAOS_EPOCH_ROWS", "100"))  # rows per epoch; 100 give about ninety epochs
BAD_EVERY = 10  # one of this many ids is refused, where the sink puts bad rows aside
SCHEMA = pa.schema([("id", pa.int64()), ("channel", pa.int32()), ("value", pa.float64()), ("tag", pa.string())])
SOURCE: dict[str, Any] = {"rows_of": ",".join(map(str, ROWS_OF)), "keys": 5}


def expected() -> pa.Table:
    ends = {str(channel): count for channel, count in enumerate(ROWS_OF)}
    return generated(SOURCE, ends).select(SCHEMA.names).cast(SCHEMA)


KEYS = 701  # keys of each channel when rows replace each other
# The rows as upserts: `{at}` is the time by which the newest row of a key wins. Times rise in each channel, or do not;
# both tell all rows apart, as 12007 is a prime beyond all ids.
UPSERTS = ("id % 701 AS id", "channel", "value", "tag", "{at} AS at", "value < 0.2 AS gone")
IN_ORDER, SHUFFLED = "id", "id * 5003 % 12007"


def expected_upserts(*, shuffled: bool) -> pa.Table:
    """The newest row of each key that is not deleted, by pandas."""
    rows = expected().to_pandas()
    rows["at"] = rows["id"] * 5003 % 12007 if shuffled else rows["id"]
    rows["id"] %= KEYS
    newest = rows.sort_values("at").drop_duplicates(["id", "channel"], keep="last")
    return pa.Table.from_pandas(newest[newest["value"] >= 0.2], preserve_index=False).select(SCHEMA.names).cast(SCHEMA)


def job(out: Path, sink: str, options: dict[str, str]) -> sx.Job:
    spark = sx.session("chaos-sink", conf={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "512m"})
    reader = spark.readStream.format("datagen").options(uid="generated", max_rows_per_epoch=EPOCH_ROWS, readers=2)
    rows = reader.options(**SOURCE).load().select(*SCHEMA.names)
    if options.get("on_bad_row") == "quarantine":
        # The target refuses a null here: each tenth row goes to the table of bad rows.
        rows = rows.withColumn("ok", F.when(F.col("id") % BAD_EVERY != 0, F.lit(1)))
    if sink == "kafka_2pc":
        rows = rows.select(F.col("id").cast("string").alias("key"), F.to_json(F.struct(*SCHEMA.names)).alias("value"))
    if options.get("mode") == "upsert":
        at = SHUFFLED if options["tombstones"] == "keep" else IN_ORDER
        rows = rows.selectExpr(*(column.format(at=at) for column in UPSERTS))
    made = killed_job(spark, "chaos", out / "state")
    if sink == "exchange_2pc":
        return made.add("copy", made.exchange("copied", partitions=4, key=options["key"]).write(rows))
    return made.add("copy", rows.writeStream.format(sink).option("uid", "copied").options(**options))


if __name__ == "__main__":
    sys.exit(the_job(job, sink=str, options=json.loads))
