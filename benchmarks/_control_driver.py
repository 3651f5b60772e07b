"""A driver whose configuration changes: by an event, or as its file is edited and it is stopped and started.

    python -m benchmarks._control_driver FOLDER

The job's function adds `edited`, read from `FOLDER/edited` when the query is built, to what `set_config` says.
The query is rebuilt when the key `built` changes. When the job was stopped and `FOLDER/again` exists, it is started
again in the same Spark session.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_ext as sx

JOB = "bench"


def main(folder: Path) -> None:
    spark = sx.session("change", master="local[2]", conf={"spark.driver.memory": "1g"})

    def build(config: Mapping[str, Any]) -> DataStreamWriter:
        edited = int((folder / "edited").read_text()) + int(config.get("built", 0))

        def add(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            number = edited + int(sx.control.config().get("threshold", 0))
            for batch in batches:
                yield batch.set_column(0, "id", pc.add(batch.column("id"), number))

        rows = spark.readStream.format("datagen").options(uid="in", max_rows_per_epoch=1000).load().select("id", "key")
        writer = rows.mapInArrow(add, rows.schema).writeStream.format("delta_2pc")
        return writer.options(uid="out", path=str(folder / "table"))

    while True:
        sx.Job(spark, JOB, state=folder / "state").add("q", build).run(progress=False)
        if not (folder / "again").exists():
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
