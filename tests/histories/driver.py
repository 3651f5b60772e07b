"""A driver process: runs the jobs that it is sent, one at a time, in one Spark session, until it is killed.

Reads one JSON object per line: `{"do": "run", "definition": {...}, "root": ..., "state": ..., "takeover": true}`, then
perhaps `{"do": "stop"}` or `{"do": "checkpoint"}`, which takes one and stops; instead of `run` also `savepoint`,
`restore`, `read`, of a checkpoint, `follow`, a run of a job that copies what there is of the target, and runs of the
hourly job. Writes one per line: `{"ready": true}` at first, then the outcome of each.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_ext as sx
from spark_ext.errors import SparkExtError
from tests.histories.definition import Definition


class Numbered(StatefulProcessor):
    """The rows of a key, whose ids are `step` apart, by the first id and how many there were."""

    def __init__(self, step: int) -> None:
        self._step = step

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", "first long, count long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        import pandas as pd

        ids = sorted(int(number) for frame in rows for number in frame["id"])
        first, count = self._seen.get() or (ids[0], 0)
        self._seen.update((first, count + len(ids)))
        made = [first + self._step * number for number in range(count, count + len(ids))]
        yield pd.DataFrame({"id": made, "word": ["w"] * len(ids)})

    def close(self) -> None: ...


def computed(rows: DataFrame, now: Definition) -> DataFrame:
    key = F.col("id") % now.keys
    if now.kind == "total":
        timed = rows.withColumn("ts", F.timestamp_seconds(F.col("id") + 86400))
        marked = sx.with_watermark(timed, "ts", "1 second").withColumn("k", key)
        picked = marked.groupBy(F.window("ts", f"{now.window} seconds"), "k").agg(F.expr(f"{now.aggregate}(id)"))
        return picked.toDF("window", "k", "id").selectExpr("id", "'w' AS word")
    if now.kind == "process":
        keyed = rows.withColumn("k", key).groupBy("k")
        return keyed.transformWithStateInPandas(Numbered(now.keys), "id bigint, word string", "Append", "None")
    return rows


def follower(spark: Any, now: Definition, root: Path) -> sx.Job:
    given = {"uid": "in", "path": str(root / "output" / now.target), "follow": "true"}
    rows = spark.readStream.format("delta_snapshot").options(**given)
    job = sx.Job(spark, "follower", state=root / "follower", restart_attempts=0)
    return job.add("follow", rows.load().writeStream.format("delta_2pc").options(uid="to", path=str(root / "followed")))


def hourly(spark: Any, root: Path) -> sx.Job:
    """A job of its own: a source of Spark's with its own trigger, a watermark for each of two sources, and a gate."""
    job = sx.Job(spark, "hourly", state=root / "hourly", restart_attempts=0)

    def files(uid: str, folder: str) -> DataFrame:
        given = {"uid": uid, "path": str(root / "input" / folder), "format": "csv", "watch": "true", "readers": "1"}
        rows = spark.readStream.format("files").schema("id bigint, word string").options(**given).load()
        return rows.withColumn("ts", F.timestamp_seconds(F.col("id") % 10_000 + 86400))

    def to(target: str, rows: DataFrame) -> DataStreamWriter:
        place = {"uid": f"{target}-out", "path": str(root / "output" / target)}
        return rows.select("id").writeStream.format("delta_2pc").options(**place)

    own = spark.readStream.schema("id bigint, word string").csv(str(root / "input" / "a"))
    job.add("own", to("own", own).trigger(availableNow=True))
    left, right = (sx.with_watermark(files(f"in-{one}", one), "ts", "1 second") for one in "ab")
    windows = left.union(right).groupBy(F.window("ts", "8 seconds")).agg(F.max("id").alias("id"))
    job.add("windows", to("windows", windows))
    return job.add("gated", lambda: to("gated", files("in-gated", "b")), after="windows")


def built(spark: Any, now: Definition, root: Path, state: Path, takeover: bool) -> sx.Job:
    job = sx.Job(spark, "history", state=state, takeover=takeover, restart_backoff=20, restart_attempts=5)

    def add(
        query: str, source: str, sink: str, folder: str, target: str, renamed_from: str | None = None,
        kind: Definition | None = None,
    ) -> None:  # fmt: skip
        reader = spark.readStream.format("files").schema("id bigint, word string").options(format="csv", readers=1)
        reader = reader.options(uid=source, path=str(root / "input" / folder), max_rows_per_epoch=now.rows)
        frame = reader.load() if kind is None else computed(reader.load(), kind)
        given = {"uid": sink, "path": str(root / "output" / target)}
        if now.format == "files_2pc":
            given["format"] = "parquet"
        writer = frame.writeStream.format(now.format).options(**given)
        named: dict[str, Any] = {"renamed_from": renamed_from} if renamed_from else {}
        job.add(query, writer, **named)

    def first() -> None:
        add(now.query, now.source, now.sink, now.folder, now.target, now.renamed_from, now)

    def second() -> None:
        add("more", "more-in", "more-out", "c", "more")

    parts = [first, *([second] if now.more else [])]
    for part in reversed(parts) if now.more_first else parts:
        part()
    return job.remove("more") if now.removed else job


class Drive:
    def __init__(self) -> None:
        conf = {"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "512m", "spark.ui.enabled": "false"}
        self._spark = sx.session("histories", master="local[2]", conf=conf)
        self._job: sx.Job | None = None
        self._stop = threading.Event()
        self._taken: list[int] = []

    def run(self, given: dict[str, Any]) -> None:
        self._stop.clear()
        self._taken.clear()
        root = Path(given["root"])
        try:
            now = Definition(**given["definition"])
            if given["do"] == "follow":
                follower(self._spark, now, root).run(until="now", progress=False)
                self.say(outcome="FOLLOWED")
                return
            if "hourly" in given["do"]:
                self.say(outcome=self.run_hourly(given["do"], root))
                return
            job = built(self._spark, now, root, Path(given["state"]), given.get("takeover", False))
            if given["do"] == "read":
                self.say(outcome="READ", ids=self.as_of(job, given["checkpoint"], given["sink"]))
                return
            if given["do"] != "run":
                act = job.savepoint if given["do"] == "savepoint" else job.restore
                act(root / "savepoint")
                self.say(outcome="SAVED" if given["do"] == "savepoint" else "RESTORED")
                return
            job.start()
        except SparkExtError as problem:
            self.say(outcome="REFUSED", error=type(problem).__name__, text=str(problem))
            return
        except Exception as problem:
            self.say(outcome="CRASHED", error=type(problem).__name__, text=str(problem))
            return
        self._job = job
        if self._stop.is_set():
            job.stop()
        try:
            result = job.await_termination()
            before = {query.uid: query.finished_before for query in result.queries}
            numbers = self._taken if now.format == "delta_2pc" else []
            taken = [{"checkpoint": number, "ids": self.as_of(job, number, now.sink)} for number in numbers]
            self.say(outcome=result.state.value, finished_before=before, taken=taken)
        except SparkExtError as problem:
            self.say(outcome="FAILED", error=type(problem.__cause__ or problem).__name__, text=str(problem))
        except Exception as problem:
            self.say(outcome="CRASHED", error=type(problem).__name__, text=str(problem))
        finally:
            self._job = None

    def run_hourly(self, what: str, root: Path) -> str:
        """Run the hourly job until now, perhaps with a query paused; returns its state."""
        job = hourly(self._spark, root)
        paused = what.endswith("pause")
        if paused:
            job.control.pause("query:windows")
        state = job.run(until="now", emit="all" if what.startswith("last") else "closed", progress=False).state
        if paused:
            hourly(self._spark, root).control.resume("query:windows")
        return state.value

    @staticmethod
    def as_of(job: sx.Job, checkpoint: int, sink: str) -> list[int]:
        return [row["id"] for row in job.as_of(checkpoint).read(sink).collect()]

    def checkpoint(self) -> None:
        job = self._job
        if job is None:
            return self.stop()
        with suppress(SparkExtError, TimeoutError):
            self._taken.append(job.checkpoint(60))
        job.stop()

    def stop(self) -> None:
        self._stop.set()
        job = self._job
        if job is not None:
            job.stop()

    @staticmethod
    def say(**what: Any) -> None:
        os.write(SAY, (json.dumps(what) + "\n").encode())


# Spark and its workers write to standard output as well.
SAY = os.dup(1)
os.dup2(2, 1)


def main() -> None:
    drive = Drive()
    drive.say(ready=True)
    for line in sys.stdin:
        given = json.loads(line)
        act = {"stop": drive.stop, "checkpoint": drive.checkpoint}.get(given["do"], partial(drive.run, given))
        threading.Thread(target=act, daemon=True).start()


if __name__ == "__main__":
    main()
