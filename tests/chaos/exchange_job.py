"""Two queries over one exchange of a given kind: `python -m tests.chaos.exchange_job --out DIR --kind kafka ...`.

Generated rows -> `rows` -> the exchange -> `copy` -> the table `copy`. At the end each row has to be there once, and
the rows of each key in their order.
"""

import argparse
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import functions as F

import spark_ext as sx
from tests.chaos.commands import ended, killed_job

ROWS = 24_000
KEYS = 7  # of each channel


def job(out: Path, kind: str, options: dict[str, str]) -> sx.Job:
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "768m"}
    spark = sx.session("chaos-exchange", conf=conf)
    made = killed_job(spark, "chaos", out / "state", exchange_kind=kind, exchange_options=options)
    x = made.exchange("x", partitions=4, key=["channel", "name"], max_in_flight=4_000)
    reader = spark.readStream.format("datagen").options(uid="generated", max_rows_per_epoch=300, readers=2)
    rows = reader.options(rows=ROWS, channels=2).load()
    made.add("rows", x.write(rows.select("channel", (F.col("id") % KEYS).alias("name"), "id")))
    read = x.read("x-copy", max_rows_per_epoch=400)
    return made.add("copy", read.writeStream.format("delta_2pc").options(uid="copy-table", path=str(out / "copy")))


def in_order(table: str) -> bool:
    """Whether the rows of each key are in the order of their ids, over versions, and over the rows of their files."""
    found = DeltaTable(table)
    last: dict[tuple[int, int], int] = {}
    actions = pa.table(found.get_add_actions(flatten=True)).select(["path", "modification_time"]).to_pylist()
    versions: dict[str, int] = {}
    for file in sorted(Path(table, "_delta_log").glob("*.json")):
        for line in file.read_text().splitlines():
            added = json.loads(line).get("add")
            if added is not None:
                versions[added["path"]] = int(file.stem)
    assert len(versions) == len(actions), "no file was compacted"
    for path in sorted(versions, key=lambda path: (versions[path], path)):
        for row in pq.read_table(Path(table, path)).to_pylist():
            key = row["channel"], row["name"]
            if row["id"] <= last.get(key, -1):
                return False
            last[key] = row["id"]
    return True


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=lambda given: Path(given).resolve(), required=True)
    parser.add_argument("--kind", default="arrow")
    parser.add_argument("--options", type=json.loads, default={})
    given = parser.parse_args()
    result = job(given.out, given.kind, given.options).run(progress=False)
    if result.finished and not in_order(str(given.out / "copy")):
        print("rows of a key are not in their order")
        return 1
    return ended(result)


if __name__ == "__main__":
    sys.exit(main())
