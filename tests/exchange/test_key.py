"""To which partition a row goes: by its key alone, in every process and every release."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.exchange.arrow import arrow_parts
from spark_ext.exchange.positions import pieces
from spark_ext.storage import LocalFolder

PARTITIONS: dict[tuple[int | None, str | None], int] = {
    (None, None): 10, (0, ""): 4, (1, "AA"): 12, (-1, "ä€"): 11, (2**40, "UA"): 11, (7, None): 11,
}  # fmt: skip
"""Of 16, by the values of a key. A change would scatter keys over old and new rows, which are never moved."""


def test_a_key_has_one_partition_in_every_process(spark: SparkSession, tmp_path: Path) -> None:
    """Each key is in the rows of two tasks, which are processes."""
    exchange = sx.Job(spark, "keys", state=tmp_path / "state").exchange("e", partitions=16, key=["n", "t"])
    keys = ", ".join(
        f"named_struct('n', cast({'null' if number is None else number} as bigint), "
        f"'t', cast({'null' if text is None else repr(text)} as string))"
        for number, text in PARTITIONS
    )
    reader = spark.readStream.format("datagen").options(uid="in", channels="2", rows="24", readers="2")
    rows = reader.load().selectExpr("id", f"element_at(array({keys}), int(id % {len(PARTITIONS)}) + 1) as k")
    writer = exchange.write(rows.select("id", "k.n", "k.t"))
    run = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    run.awaitTermination()

    made = arrow_parts(LocalFolder(Path(exchange.path)), "test")
    log, found, ids = made.master.log, defaultdict[Any, set[int]](set), list[int]()
    segments = 0
    for number in range(log.look().last + 1):
        entry = log.entry(number)
        assert entry is not None
        segments += len(entry.segments)
    for partition in range(16):
        for piece in pieces(log.entry, partition, [0, 0], [log.look().last + 1, 0], "test"):
            for batch in made.reader.read(piece):
                assert batch.schema.names == ["id", "n", "t"], "the number of the partition is not stored"
                for row in batch.to_pylist():
                    found[row["n"], row["t"]].add(partition)
                    ids.append(row["id"])
    assert sorted(ids) == list(range(24))
    assert segments == 2
    assert found == {key: {partition} for key, partition in PARTITIONS.items()}
