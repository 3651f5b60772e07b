"""A job that is changed while it runs: `python -m tests.chaos.control_job --out DIR`. Run it again until it ends.

Query `a` reads three channels, `b` two and one that ends. Rows hold what functions saw of control events; now and then
they emit some. The exit code is 0 once it was drained, 3 when it was stopped; `--restore` takes a retained checkpoint.
"""

import argparse
import sys
from pathlib import Path

import spark_ext as sx
from tests.support.controlled import generated, pickled_by_value, told

RATE = 150  # rows per second of each source that does not end
ENDS = 400  # rows of the one that does
EMITS = 4  # each task emits in every epoch that is a multiple of this


def job(out: Path) -> sx.Job:
    pickled_by_value()
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "512m", "spark.executor.memory": "512m"}
    spark = sx.session("steered", conf=conf)
    live = {"rows_per_second": RATE, "max_rows_per_epoch": 2 * RATE, "readers": 2}
    a = generated(spark, "a-in", channels=3, **live)
    b = generated(spark, "b-in", channels=2, **live).union(
        generated(spark, "b-ends", channels=2, rows=ENDS, max_rows_per_epoch=20)
    )
    made = sx.Job(
        spark, "steered", state=out / "state", interval="50 ms", checkpoint_interval="1 s", retained_checkpoints=5,
        restart_attempts=50, restart_backoff=20,
    )  # fmt: skip
    for query, frame in (("a", a), ("b", b)):
        rows = told(frame, query, emits=EMITS)
        made.add(query, rows.writeStream.format("delta_2pc").options(uid=f"{query}-table", path=str(out / query)))
    return made


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--restore", type=int)
    given = parser.parse_args()
    made = job(given.out.resolve())
    if given.restore is not None:
        made.restore(given.restore)
        print(f"restored {given.restore}", flush=True)
    result = made.run(progress=False)
    print(result)
    return 0 if result.finished else 3


if __name__ == "__main__":
    sys.exit(main())
