"""Queries that get stuck: in functions of each kind, sources, planners, sinks, committers, and frozen processes."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

import spark_ext as sx
from spark_ext.model import stalls
from spark_ext.queries.watched import Stall
from spark_ext.spark.watching.attendance import folder_of
from tests.stalls import operators
from tests.support.waiting import until

HOWS = ("lock", "socket", "sleep", "disk")


@dataclass(frozen=True)
class Caught:
    case: str
    expected: str
    seconds: float  # from the last epoch to the incident; infinite if it was not found
    usual: float  # how long an epoch has usually taken before, s
    found: str  # type and origin of the verdict
    place: str  # file and function that are blamed

    @property
    def epochs(self) -> float:
        return self.seconds / self.usual if self.usual else float("inf")

    @property
    def right(self) -> bool:
        """Whether the verdict is the expected one; it names the function that is stuck, if that is the user's."""
        # What computes for too long moves, and is slow.
        slow = " (slow)" if "computes" in self.case else ""
        found = self.found.removesuffix(" (slow)") if "starved" in self.case else self.found
        return found == self.expected + slow and ("user" not in self.expected or "operators.py" in self.place)


class StuckJob:
    def __init__(self, spark: SparkSession, folder: Path, shape: str, work: float = 0.0) -> None:
        self.flags = folder / "flags"
        self.flags.mkdir(parents=True)
        self.application = spark.sparkContext.applicationId
        self.job = sx.Job(spark, "stuck", state=folder / "state", interval="300 ms")
        reader = spark.readStream.format("stopping_numbers").option("uid", "in").option("flags", str(self.flags))
        reader = reader.option("work", str(work))
        rows = reader.option("counts", "1,1").option("live", "true").option("rate", "50").load()
        self.job.add("q", SHAPES[shape](rows, str(self.flags), folder))
        self.shape = shape
        self.stalled: set[int] = set()

    @property
    def epochs(self) -> int:
        return self.job.snapshot().query("q").epochs

    def moves(self, epochs: int) -> None:
        before = self.epochs
        until(lambda: self.epochs >= before + epochs, "epochs are committed", 120)

    def caught(self, case: str, expected: str, stopped: Callable[[], Any], within: float = 60.0) -> Caught:
        run = self.job.runs[0]
        usual = stalls.usual([ms for epoch, ms in run.figures.recent if epoch not in self.stalled])
        with stopped():
            begun = time.monotonic()
            stall: Stall | None = None
            while stall is None and time.monotonic() - begun < within:
                time.sleep(0.05)
                # An epoch that moves so slowly is found in one way or the other.
                stall = run.watched.stall or run.watched.slow
            self.stalled.add(run.committed + 1)
            kind = "" if stall is None else stall.kind
            seconds = time.monotonic() - run.watched.moved_at if stall is not None else float("inf")
        until(lambda: run.watched.stall is None, "it is not stalled any more", 120)
        self.moves(3)
        if stall is None:
            return Caught(case, expected, seconds, usual, "nothing", "")
        frame = stall.holder.frame
        found = f"{stall.holder.type.value} {stall.holder.origin.value}"
        found += " (slow)" if kind == "slow" else ""
        return Caught(case, expected, seconds, usual, found, "" if frame is None else f"{frame.file} {frame.function}")

    @contextmanager
    def executors(self, *, runs: float = 0.0) -> Iterator[None]:
        """With the executors of a cluster frozen, or starved: on a processor that many seconds of each two."""
        app = self.application
        commands = ((one, one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"]))
        processes = [one for one, command in commands if "--executor-id" in command and app in command]
        assert processes
        over = threading.Event()

        def starve() -> None:
            while not over.is_set():
                for process in processes:
                    process.suspend()
                over.wait(2.0)
                if runs or over.is_set():
                    for process in processes:
                        process.resume()
                    time.sleep(runs)

        thread = threading.Thread(target=starve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            for process in processes:
                process.resume()


@contextmanager
def frozen(state: str, role: str) -> Iterator[None]:
    """The Python processes of this role do not run, as long as the block does."""
    notes = [json.loads(path.read_text()) for path in folder_of(state).glob("*.json")]
    processes = [psutil.Process(note["pid"]) for note in notes if note["role"] == role]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def _into_folder(rows: DataFrame, flags: str, folder: Path) -> Any:
    writer = rows.writeStream.format("stopping_folder").option("uid", "out").option("flags", flags)
    return writer.option("path", str(folder / "out"))


def _udf(rows: DataFrame, flags: str, folder: Path) -> Any:
    @F.udf("long")
    def function(n: int) -> int:
        operators.stop_here(flags, "function")
        return n

    return _into_folder(rows.withColumn("m", function("n")), flags, folder)


def _pandas_udf(rows: DataFrame, flags: str, folder: Path) -> Any:
    @F.pandas_udf("long")  # type: ignore[call-overload,untyped-decorator]
    def function(n: pd.Series) -> pd.Series:
        operators.stop_here(flags, "function")
        return n

    return _into_folder(rows.withColumn("m", function("n")), flags, folder)


def _map_in_arrow(rows: DataFrame, flags: str, folder: Path) -> Any:
    def function(batches: Any) -> Any:
        for batch in batches:
            operators.stop_here(flags, "function")
            yield batch

    return _into_folder(rows.mapInArrow(function, rows.schema), flags, folder)


def _stateful(rows: DataFrame, flags: str, folder: Path) -> Any:
    def function(key: Any, frames: Any, state: Any) -> Any:
        operators.stop_here(flags, "function")
        seen = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
        state.update((seen,))
        yield pd.DataFrame({"channel": [key[0]], "n": [seen]})

    grouped = rows.groupBy("channel").applyInPandasWithState(
        function, "channel string, n long", "n long", "update", GroupStateTimeout.NoTimeout
    )
    return grouped.writeStream.format("noop").outputMode("update")


def _foreach_batch(rows: DataFrame, flags: str, folder: Path) -> Any:
    def function(frame: DataFrame, epoch: int) -> None:
        operators.stop_here(flags, "function")
        frame.count()

    return rows.writeStream.foreachBatch(function)


SHAPES: dict[str, Callable[[DataFrame, str, Path], Any]] = {
    "udf": _udf, "pandas_udf": _pandas_udf, "mapInArrow": _map_in_arrow, "applyInPandasWithState": _stateful,
    "foreachBatch": _foreach_batch,
}  # fmt: skip

POINTS = {
    "function": "USER_CODE user", "read": "SOURCE user", "plan": "SOURCE user", "write": "SINK user",
    "commit": "SINK user",
}  # fmt: skip


def _at(job: StuckJob, point: str, how: str) -> AbstractContextManager[None]:
    return operators.stopped_at(job.flags, point, how)


def _freeze(job: StuckJob, role: str) -> AbstractContextManager[None]:
    return frozen(job.job.state_directory, role)


def cases(shape: str, *, cluster: bool = False) -> Iterator[tuple[str, str, Callable[[StuckJob], Any]]]:
    for point in POINTS if shape == "udf" else ("function",):
        for how in HOWS:
            yield f"{shape}: {point}, {how}", POINTS[point], partial(_at, point=point, how=how)
    if shape in ("udf", "foreachBatch"):
        yield f"{shape}: function, computes", POINTS["function"], partial(_at, point="function", how="computes")
    if shape == "udf":
        for role in ("task", "planner", "committer", "task"):
            yield f"frozen {role}", "SYSTEM spark", partial(_freeze, role=role)
        if cluster:
            yield "frozen executors", "SYSTEM spark", StuckJob.executors
            yield "starved executors", "SYSTEM spark", partial(StuckJob.executors, runs=0.005)
