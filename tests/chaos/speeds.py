"""Windows over two exchanges of unequal speed: `python -m tests.chaos.speeds --out DIR`. Run it again until it ends.

Generated rows, most of which do not pass a filter -> `left` -> x and `right` -> y, each with its watermark; x and y ->
`windows`, which takes over both. `single` has the same in one query, and the tables of both are compared at the end.
"""

import sys
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import spark_ext as sx
from tests.chaos.commands import ended, killed_job, session
from tests.chaos.verify import Content

SIDES = {"left": {"rows": 12_000, "step_ms": 400, "keys": 40}, "right": {"rows": 1_200, "step_ms": 4_000, "keys": 9}}
PER_EPOCH = {"left": 1_500, "right": 75}
LATE = "5 minutes"  # more than rows of a side are out of order, over its channels and within each


def job(out: Path) -> sx.Job:
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "768m", "spark.executor.memory": "512m"}
    spark = session("chaos", conf)
    made = killed_job(spark, "chaos", out / "state")

    def passing(side: str, uid: str) -> DataFrame:
        reader = spark.readStream.format("datagen").options(uid=uid, channels=2, out_of_order="30 s", readers=2)
        reader = reader.options(max_rows_per_epoch=PER_EPOCH[side], **SIDES[side])
        return (
            sx.with_watermark(reader.load(), "ts", LATE).where("key = 3").select(F.lit(side).alias("side"), "id", "ts")
        )

    def write(query: str, rows: DataFrame) -> None:
        counts = (F.count("*").alias("n"), F.sum("id").alias("ids"))
        minutes = rows.groupBy(F.window("ts", "2 minutes"), "side").agg(*counts)
        flat = minutes.select(F.col("window.start").alias("minute"), "side", "n", "ids")
        made.add(query, flat.writeStream.format("delta_2pc").options(uid=f"{query}-table", path=str(out / query)))

    sides = {"left": made.exchange("x", partitions=2), "right": made.exchange("y", partitions=2)}
    for side, exchange in sides.items():
        made.add(side, exchange.write(passing(side, f"{side}-rows")))
    read = [sx.with_watermark(one.read(f"{one.name}-in"), "ts", LATE) for one in sides.values()]
    write("windows", read[0].union(read[1]))
    write("single", passing("left", "single-left").union(passing("right", "single-right")))
    return made


def main() -> int:
    out = Path(sys.argv[sys.argv.index("--out") + 1]).resolve()
    result = job(out).run(progress=False)
    tables = [DeltaTable(str(out / name)).to_pyarrow_table() for name in ("windows", "single") if result.finished]
    if result.finished and Content(tables[0]).rows != Content(tables[1]).rows:
        print("the windows are not those of the one query")
        return 1
    return ended(result)


if __name__ == "__main__":
    sys.exit(main())
