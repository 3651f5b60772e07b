"""A short job that uses what most jobs use, run by `spark-ext prepare` so that the JVM loads these classes."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory


def main(storage: str | None = None) -> None:
    """Run it in a folder that is deleted afterwards."""
    from pyspark.sql import functions as F

    import spark_ext as sx

    assert storage in (None, "s3")
    with TemporaryDirectory(prefix="spark-ext-warm-up-") as folder:
        place = Path(folder)
        spark = sx.session(
            "warm-up", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"}, storage="s3" if storage else None
        )
        # A source belongs to one query.
        copied, counted, left, right = (
            sx.with_watermark(spark.readStream.format("datagen").options(uid=uid, rows=200).load(), "ts", "1 minute")
            for uid in ("copied", "counted", "left", "right")
        )
        frames = {
            "copy": copied,
            "counts": counted.groupBy(F.window("ts", "1 minute"), "key").count(),
            "joined": left.select("key", "ts", "seq").join(right.select("key", "ts"), ["key", "ts"], "left_outer"),
        }
        job = sx.Job(spark, "warm-up", state=place / "state")
        for uid, frame in frames.items():
            writer = frame.writeStream.format("delta_2pc")
            job.add(uid, writer.option("uid", f"{uid}-table").option("path", str(place / uid)))
        job.run(progress=False)
        spark.read.format("delta").load(str(place / "copy")).groupBy("key").count().collect()
        job.ledger.epochs().count()
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
