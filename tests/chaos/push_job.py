"""A job that reads an inbox into a Delta table: `python -m tests.chaos.push_job --out DIR`. Run it again until it ends.

With `--turns yes` it is drained once for each line of standard input, in a folder that others change between the turns.
"""

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.errors import SparkExtError
from tests.chaos.commands import ended, killed_job, session
from tests.support.cheap_jvm import FORKS, SHORT

INBOX = "hooks"
SECRET = "PUSH_SECRET"  # the environment variable with the secret of its signatures


def driver(**own: str) -> SparkSession:
    common = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1"}
    if FORKS in os.environ:
        common["spark.python.daemon.module"] = "tests.support.daemon"
    return session("push", {**SHORT, **common, **own})


def job(spark: SparkSession, out: Path) -> sx.Job:
    made = killed_job(spark, "push", state=out / "state", interval="50 ms")
    inbox = made.inbox(INBOX, scheme="standard", secrets=(f"env:{SECRET}",))
    number = F.get_json_object(F.col("body").cast("string"), "$.id").alias("id")
    rows = inbox.read("in").select(number, "event_id", "gateway", "sequence")
    return made.add("q", rows.writeStream.format("delta_2pc").options(uid="out", path=str(out / "out")))


def turns(out: Path) -> None:
    for line in sys.stdin:
        try:
            # Between turns files change under names that workers know.
            made = job(driver(**{"spark.python.worker.reuse": "false"}), out).start()
            made.control.drain()
            how = made.await_termination().state.value
        except SparkExtError as problem:
            how = f"{type(problem).__name__}: {problem.what}"
        print(f"turn {line.strip()}: {how}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=lambda given: Path(given).resolve(), required=True)
    parser.add_argument("--turns")
    given = parser.parse_args()
    if given.turns:
        turns(given.out)
        return 0
    return ended(job(driver(), given.out).run(progress=False))


if __name__ == "__main__":
    sys.exit(main())
