"""A job of small epochs in a process of its own: `python -m benchmarks._sessions_driver FOLDER EPOCHS [REMOTE]`."""

from __future__ import annotations

import sys
from pathlib import Path

import spark_ext as sx

ROWS = 500  # per epoch


def main(folder: Path, epochs: int, remote: str | None = None) -> None:
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    if remote is None:
        spark = sx.session("sessions", master="local[2]", conf=conf)
    else:
        spark = sx.session("sessions", remote=remote)
    rows = spark.readStream.format("datagen").options(uid="in", rows=ROWS * epochs, max_rows_per_epoch=ROWS).load()
    writer = rows.writeStream.format("delta_2pc").options(uid="out", path=str(folder / "table"))
    sx.Job(spark, "sessions", state=folder / "state").add("q", writer).run(progress=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
