"""A job to be killed, a function of its harness: `python -m tests.support.killable JOB FOLDER`; a test continues it."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.sql import functions
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_ext as sx
from spark_ext.jobs.job import Job
from tests.support import cheap_jvm, operators
from tests.support.jobs import JobHarness
from tests.support.processes import Tree
from tests.support.saved import first_rows, held
from tests.support.waiting import until

LATER: Final = "ts + interval 1 hour ts"  # of `numbers`: behind 1970, where the first watermark is


def mixed(lab: JobHarness) -> Job:
    """A query over 10,000 bounded rows and 100 live rows per second, beside a query that ends."""
    frame = lab.source("bounded", counts="10000").union(lab.source("live", counts="1", live="true", rate=100))
    made = lab.job(frame, interval="50 ms", checkpoint_interval="100 ms")
    lab.add(made, lab.source("a", counts="1000"), query="a", out="a")
    return made


def beside(lab: JobHarness) -> Job:
    """A query over a bounded source, which ends once a file `gate` is there, and 100 live rows per second."""
    given = {"counts": "900,600", "readers": 2, "max_rows_per_epoch": 300, "step_ms": 10}
    rows = lab.source("bounded", gate=lab.folder / "gate", **given).selectExpr("channel", "n", LATER)
    rows = sx.with_watermark(rows, "ts", "1 minute").dropDuplicatesWithinWatermark(["channel", "n"])
    live = lab.source("live", counts="1", live="true", rate=100)
    frame = rows.select("channel", "n").union(live.select(functions.lit("live").alias("channel"), "n"))
    made = sx.Job(
        lab.spark, "lab", state=lab.folder / "state", interval="50 ms", checkpoint_interval="1 s", restart_attempts=20
    )
    writer = frame.writeStream.format("delta_2pc").options(uid="q-out", path=str(lab.folder / "out"))
    return made.add("q", writer)


def recovered(lab: JobHarness, readers: int = 4) -> Job:
    """Stands still when two of 4 channels of 1,000 rows are half read, and 2,000 of 5,000 rows of an exchange."""
    lab.spark.conf.set("spark.sql.shuffle.partitions", "4")
    made = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    rows = lab.source(
        "in", counts="1000,1000,1000,1000", readers=readers, gate=lab.folder / "gate", gate_at="1000,1000,500,500"
    )
    lab.add(made, first_rows(rows, "channel", "n"), query="q", out="out")
    x = made.exchange("x", partitions=1)
    made.add("a", x.write(lab.source("a-in", counts="5000")))
    read = held(x.read("b-in", max_rows_per_epoch=500), lab.folder / "at-2000", 2000)
    lab.add(made, held(read, lab.folder / "at-3500", 3500), query="b", out="b")
    return made


def dirty(lab: JobHarness) -> Job:
    """A query over 6,000 rows, every tenth of them bad, in epochs of 1,000; each start has other readers."""
    starts = len(lab.events("start"))
    operators.record(lab.log, "start")
    reader = lab.spark.readStream.format("dirty").option("uid", "in").option("counts", "3000,3000")
    reader = reader.options(on_bad_row="quarantine", max_rows_per_epoch=1000, readers=2 + starts % 3)
    return lab.job(reader.load())


def judged(lab: JobHarness) -> Job:
    """A query over 6,000 rows in epochs of 1,000, with a rule of each kind; each start has other readers."""
    starts = len(lab.events("start"))
    operators.record(lab.log, "start")
    given = {"counts": "3000,3000", "max_rows_per_epoch": 1000, "readers": 2 + starts % 3}
    rows = lab.source("in", **given).select("channel", "n")
    rows = sx.expect(rows, "odd", "n % 5 <> 0", on_fail="quarantine")
    rows = sx.expect(rows, "small", "n % 3 <> 0", on_fail="drop")
    rows = sx.expect(rows, "seen", "n % 7 <> 0", on_fail="count")
    made = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    writer = rows.writeStream.format("delta_2pc").options(uid="out", path=str(lab.folder / "out"))
    return made.add("q", writer.option("on_bad_row", "quarantine"))


def followed(lab: JobHarness) -> Job:
    """A query over the changes of the table `table`, in epochs of 40 rows; each start has other readers."""
    starts = len(lab.events("start"))
    operators.record(lab.log, "start")
    reader = lab.spark.readStream.format("delta_snapshot").options(uid="in", path=str(lab.folder / "table"))
    reader = reader.options(follow="true", changes="true", version=0, poll_interval=100)
    rows = reader.options(max_rows_per_epoch=40, readers=1 + starts % 3).load().drop("_commit_timestamp")
    return lab.job(rows, restart_attempts=1000, restart_backoff=20, checkpoint_interval="1 s")


def rebuilt(
    lab: JobHarness, source: str = "live", out: str = "out", *, most: float = math.inf
) -> Callable[[Mapping[str, Any]], DataStreamWriter]:
    """The function of a query over live rows; each says with which `factor` the query was built."""

    def build(config: Mapping[str, Any]) -> DataStreamWriter:
        factor = config.get("factor", 1)
        if not isinstance(factor, int):
            raise ValueError(f"{factor} is no number")
        if factor > most:
            raise ValueError(f"{factor} is too much")
        rows = lab.source(source, counts="1", live="true", rate=200).withColumn("factor", functions.lit(factor))
        return rows.writeStream.format("folder").option("uid", out).option("path", str(lab.folder / out))

    return build


def rebuilding(lab: JobHarness) -> Job:
    return sx.Job(lab.spark, "lab", state=lab.folder / "state", interval="20 ms").add("q", rebuilt(lab))


JOBS: Final[dict[str, Callable[[JobHarness], Job]]] = {
    "beside": beside, "dirty": dirty, "followed": followed, "judged": judged, "mixed": mixed, "rebuilding": rebuilding,
    "recovered": recovered,
}  # fmt: skip


@contextmanager
def running(
    job: Callable[[JobHarness], Job], folder: Path, env: Mapping[str, str] | None = None, *restore: Path
) -> Iterator[Tree]:
    """Run the job in a separate driver, or only restore it; all its processes are terminated afterwards."""
    command: list[str | Path] = [sys.executable, "-m", "tests.support.killable", job.__name__, folder, *restore]
    with Tree(command, folder / "driver.log", {"PYTHONPATH": str(Path(__file__).parents[2]), **(env or {})}) as driver:
        yield driver


def kill(driver: Tree) -> None:
    """`kill -9` the driver; its JVM notices that and exits by itself."""
    driver.kill()
    until(lambda: not driver.members(), "the killed driver's JVM and workers have ended")


def main(job: str, folder: str, savepoint: str = "") -> None:
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "512m", **cheap_jvm.SHORT}
    made = JOBS[job](JobHarness(cheap_jvm.session("killable", conf), Path(folder)))
    if savepoint:
        made.restore(savepoint)
    else:
        made.run(progress=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
