"""Small jobs for tests, built from the operators in `tests.support.operators`."""

from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import spark_ext as sx
from spark_ext import failpoints
from spark_ext.jobs.job import Job
from spark_ext.jobs.result import JobResult
from spark_ext.ledger import Ledger
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sources.contract import ChannelSource
from spark_ext.spark.backend.kinds import backend_of, is_connect
from spark_ext.spark.capabilities import capabilities
from spark_ext.spark.logs.epoch_files import state_partitions
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.session import formats
from tests.support import operators
from tests.support.history import History
from tests.support.waiting import until

OPERATORS: Final = (operators.Numbers, operators.Dirty, operators.Growing, operators.Folder, operators.PatientFolder)
_registered: WeakKeyDictionary[SparkSession, tuple[dict[str, str], dict[str, type[Any]]]] = WeakKeyDictionary()
"""By session: the workers' environment and all formats, as they were registered last."""


def register(spark: SparkSession, *kinds: type[ChannelSource] | type[TwoPhaseCommitSink]) -> None:
    """Register operators, or those of the tests, whose code is pickled by value: workers do not have it on their path.

    Does nothing while everything is as registered last: two dozen registrations take as long as an epoch.
    """
    kinds = kinds or OPERATORS
    backend = backend_of(spark)
    environment = backend.environment(spark)
    present = ({**environment, **failpoints.for_workers()}, {**formats.known(), **{one.name(): one for one in kinds}})
    if _registered.get(spark) == present:
        backend.activate_if_none(spark)
        return
    cloudpickle.register_pickle_by_value(operators)
    sx.register(spark, *kinds)
    _registered[spark] = (dict(environment), formats.known())


def numbers(spark: SparkSession, uid: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("numbers").option("uid", uid)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


class JobHarness:
    """A directory with one job: state, outputs and the event log."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.log = str(folder / "events.jsonl")
        register(spark)

    def source(self, uid: str = "in", **options: Any) -> DataFrame:
        return numbers(self.spark, uid, log=self.log, **options)

    def job(
        self, frame: DataFrame, *, sink: str = "folder", query: str = "q", out: str = "out", **settings: Any
    ) -> Job:
        """A job with one query that writes to a folder; `sink_<option>` is passed to the sink, the rest to the job."""
        given = {name: value for name, value in settings.items() if not name.startswith("sink_")}
        job = sx.Job(self.spark, "lab", state=self.folder / "state", **given)
        self.add(job, frame, sink=sink, query=query, out=out, **settings)
        return job

    def run(self, frame: DataFrame, **settings: Any) -> JobResult:
        return self.job(frame, **settings).run(progress=False)

    @property
    def ledger(self) -> Ledger:
        return Ledger(str(self.folder / "state"))

    @property
    def rescales(self) -> bool:
        """Whether state can be distributed over another number of partitions in this session."""
        return capabilities(self.spark.version).rescale and not is_connect(self.spark)

    def history(self) -> History:
        return History.read(self.folder / "state", [self.log])

    def add(self, job: Job, frame: DataFrame, *, sink: str = "folder", query: str, out: str, **settings: Any) -> None:
        writer = frame.writeStream.format(sink).option("uid", f"{query}-out").option("path", str(self.folder / out))
        writer = writer.option("log", self.log)
        for name, value in settings.items():
            if name.startswith("sink_"):
                writer = writer.option(name.removeprefix("sink_"), str(value))
        job.add(query, writer)

    def events(self, *names: str) -> list[dict[str, Any]]:
        return operators.events(self.log, *names)

    def rows(self, out: str = "out") -> list[dict[str, Any]]:
        return operators.rows(self.folder / out)

    def numbers(self, out: str = "out") -> list[tuple[str, int]]:
        """(channel, n) of all visible rows, sorted; a repeated row appears twice."""
        return sorted((row["channel"], row["n"]) for row in self.rows(out))

    def checkpoint(self, query: str = "q") -> Path:
        return self.folder / "state" / "queries" / query / "checkpoint"


def stopped(job: Job) -> None:
    """Run a job until its query `q` has committed rows, and stop it."""
    job.start()
    try:
        until(lambda: job.snapshot().query("q").rows > 0, "an epoch with rows")
    finally:
        job.stop()


def partitions(checkpoint: Path) -> int:
    """Those of the newest committed state."""
    newest = SparkLog(str(checkpoint)).newest_commit()
    assert newest is not None
    return state_partitions(str(checkpoint), newest)


def expected(*counts: int) -> list[tuple[str, int]]:
    return sorted((str(channel), n) for channel, count in enumerate(counts) for n in range(count))


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> JobHarness:
    return JobHarness(spark, tmp_path)
