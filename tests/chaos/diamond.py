"""Linked queries in which everything can fail: `python tests/chaos/diamond.py --out DIR`. Run it again until it ends.

Generated rows -> `rows` -> exchange x -> `minutes` (windows) -> exchange y; x and y -> `both` -> the table `diamond`; x
-> `copy` -> the table `copy`. Meanwhile checkpoints are taken, or a savepoint. `--restore`, `--rescale` and
`--rescale-x` only change it.
"""

import argparse
import random
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.checkpoints.savepoint import MANIFEST
from spark_ext.errors import SparkExtError
from tests.chaos.commands import ended, generated, killed_job

ROWS = 24_000  # number of generated rows, over three channels
GENERATED = {"rows": ROWS, "channels": 3, "keys": 5, "step_ms": 200}
SCHEMA = pa.schema([("kind", pa.string()), ("key", pa.int64()), ("number", pa.int64())])


def expected(rows: int = ROWS) -> dict[str, pa.Table]:
    read = generated({**GENERATED, "rows": rows}, dict.fromkeys("012", rows // 3)).to_pandas()
    single = pd.DataFrame({"kind": "row", "key": read["key"], "number": read["id"]})
    windows = read.groupby([read["ts"].dt.floor("min").rename("minute"), "key"])["id"].sum().reset_index()
    summed = pd.DataFrame({"kind": "minute", "key": windows["key"], "number": windows["id"]})
    return {
        "copy": pa.Table.from_pandas(single, SCHEMA, preserve_index=False),
        "diamond": pa.Table.from_pandas(pd.concat([single, summed]), SCHEMA, preserve_index=False),
    }


def job(out: Path, rows: int = ROWS, partitions: int = 4, **settings: Any) -> sx.Job:
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "768m", "spark.executor.memory": "512m"}
    spark = sx.session("chaos", conf=conf)
    reader = spark.readStream.format("datagen").options(uid="generated", max_rows_per_epoch=1_800, readers=3)
    made = killed_job(spark, "chaos", out / "state", **settings)
    x = made.exchange("x", partitions=partitions, key="key", max_in_flight=8_000)
    y = made.exchange("y", partitions=2)
    made.add("rows", x.write(reader.options(**{**GENERATED, "rows": rows}).load().select("id", "key", "ts")))
    windows = (
        sx.with_watermark(x.read("x-minutes", max_rows_per_epoch=2_500), "ts", "10 minutes")
        .groupBy(F.window("ts", "1 minute"), "key")
        .agg(F.sum("id").alias("number"))
        .select(F.lit("minute").alias("kind"), "key", "number")
    )
    made.add("minutes", y.write(windows))
    columns = (F.lit("row").alias("kind"), "key", F.col("id").alias("number"))
    both = x.read("x-both", max_rows_per_epoch=1_000).select(*columns).union(y.read("y-both"))
    made.add("both", both.writeStream.format("delta_2pc").options(uid="diamond-table", path=str(out / "diamond")))
    copy = x.read("x-copy").select(*columns)
    return made.add("copy", copy.writeStream.format("delta_2pc").options(uid="copy-table", path=str(out / "copy")))


def take_checkpoints(made: sx.Job, over: threading.Event) -> None:
    """At random moments, until the job has ended; one that is refused or aborted is no failure."""
    while not over.wait(random.uniform(0.1, 1.5)):
        try:
            print("checkpoint", made.checkpoint(60))
        except (SparkExtError, TimeoutError) as problem:
            print("no checkpoint:", str(problem).partition("\n")[0])


def take_savepoint(made: sx.Job, folder: Path, aligned: bool, seconds: float) -> None:
    """After some time; one that is refused or aborted is taken again."""
    time.sleep(seconds)
    while not (folder / MANIFEST).exists():
        shutil.rmtree(folder, ignore_errors=True)
        try:
            print("savepoint", made.savepoint(folder, aligned=aligned, timeout=60))
        except (SparkExtError, TimeoutError) as problem:
            print("no savepoint:", str(problem).partition("\n")[0])
            time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--savepoint", type=Path, help="take one into this folder while the job runs")
    parser.add_argument("--aligned", action="store_true", help="an aligned one")
    parser.add_argument("--after", type=float, default=0.0, help="seconds before it is taken")
    parser.add_argument("--restore", type=Path, help="only put the job back to this savepoint")
    parser.add_argument("--rescale", type=int, help="only give the state of `minutes` that many partitions")
    parser.add_argument("--partitions", type=int, default=4, help="of the exchange x")
    parser.add_argument("--rescale-x", action="store_true", help="only give the exchange x its partitions")
    given = parser.parse_args()
    made = job(given.out.resolve(), given.rows, given.partitions)
    if given.restore is not None:
        made.restore(given.restore)
        return 0
    if given.rescale is not None:
        made.rescale("minutes", given.rescale)
        return 0
    if given.rescale_x:
        made.rescale("exchange:x", given.partitions)
        return 0
    made.start()
    over = threading.Event()
    if given.savepoint is None:
        taking = threading.Thread(target=take_checkpoints, args=(made, over), daemon=True)
    else:
        taking = threading.Thread(target=take_savepoint, args=(made, given.savepoint, given.aligned, given.after))
    taking.start()
    result = made.await_termination()
    over.set()
    return ended(result)


if __name__ == "__main__":
    sys.exit(main())
