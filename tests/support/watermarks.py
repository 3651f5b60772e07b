"""Helpers for the tests of the end of input: a source of given rows, a query outside a job, and its results."""

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from spark_ext.model.end_of_input import FORMAT, is_end_of_input_offset
from spark_ext.model.offsets import LoggedOffsets
from spark_ext.queries import operators
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Limit, SourceOptions
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.capabilities import capabilities
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.session import registry
from spark_ext.spark.session.registry import Registration
from tests.support.jobs import register

Given: TypeAlias = "tuple[float | None, str, int]"  # a row: event time in hours after `DAY` (None: null), key, number
_LATE = ("Python worker failed to connect back", "Current State: INITIALIZING")
DAY = datetime(2024, 1, 1, tzinfo=timezone.utc)
SCHEMA = "ts timestamp, k string, n bigint"


class GivenOptions(SourceOptions):
    path: str
    live: bool = False  # if set, rows may be added to the file, and channels never end


class GivenRows(ChannelSource):
    """The rows of a file; event times are in microseconds."""

    options_type = GivenOptions
    options: GivenOptions

    @classmethod
    def name(cls) -> str:
        return "given"

    def schema(self) -> str:
        return SCHEMA

    @property
    def bounded(self) -> bool:
        return not self.options.live

    def _rows(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = json.loads(Path(self.options.path).read_text())
        return found

    def discover(self) -> Iterator[Channel]:
        return map(Channel, self._rows())

    def advance(self, channel: Channel, start: Any, limit: Limit) -> Advance:
        there = len(self._rows()[channel.id])
        end = there if limit.rows is None else min(there, start + limit.rows)
        return Advance(end, finished=self.bounded and end == there, rows=end - start)

    def latest(self, channel: Channel) -> Any:
        return len(self._rows()[channel.id])

    def read(self, channel: Channel, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        columns = list(zip(*self._rows()[channel.id][start:end], strict=True)) or [(), (), ()]
        types = (pa.timestamp("us", "UTC"), pa.string(), pa.int64())
        yield pa.RecordBatch.from_arrays(
            [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)], ["ts", "k", "n"]
        )


def micros(hours: float | None) -> int | None:
    """Event time of a given row, microseconds since 1970."""
    return None if hours is None else int((DAY.timestamp() + hours * 3600) * 1_000_000)


def hour(hours: float) -> datetime:
    """Event time of a given row, as Spark passes it to Python."""
    return (DAY + timedelta(hours=hours)).astimezone().replace(tzinfo=None)


def hourly(df: DataFrame) -> DataFrame:
    return df.groupBy(F.window("ts", "1 hour")).agg(F.sum("n").alias("n")).select("window.start", "n")


class Streams:
    def __init__(self, spark: SparkSession, folder: Path, name: str = "checkpoint") -> None:
        # Workers do not have the tests on their path, so the source's code is pickled by value.
        import tests.support.watermarks

        cloudpickle.register_pickle_by_value(tests.support.watermarks)
        register(spark, GivenRows)
        self.spark = spark
        self.folder = folder
        self.checkpoint = folder / name
        self._place = registry.folder_of(spark, str(folder))
        self.query: StreamingQuery | None = None
        self._published: list[str] = []

    def put(self, uid: str, *channels: Sequence[Given]) -> None:
        content = {str(index): [[micros(hours), k, n] for hours, k, n in rows] for index, rows in enumerate(channels)}
        draft = self.folder / f".{uid}.json"
        draft.write_text(json.dumps(content))
        draft.replace(self._path(uid))

    def read(self, uid: str, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("given").option("uid", uid).option("path", str(self._path(uid)))
        return reader.options(**{name: str(value) for name, value in options.items()}).load()

    def batch(self, uid: str) -> DataFrame:
        rows = [tuple(row) for channel in json.loads(self._path(uid).read_text()).values() for row in channel]
        df = self.spark.createDataFrame(rows, "ts bigint, k string, n bigint")
        return df.selectExpr("timestamp_micros(ts) as ts", "k", "n")

    def _path(self, uid: str) -> Path:
        return self.folder / f"{uid}.json"

    def start(self, df: DataFrame, trigger: Mapping[str, Any] | None = None, *, job: bool = True) -> StreamingQuery:
        """Start the query as a job would, so that its markers can find the checkpoint, or outside any job."""
        ends = {leaf.uid: leaf for leaf in backend_of(df).sources(df) if leaf.format == FORMAT}
        self._published = [uid for uid in ends if uid]
        registry.withdraw(self._published, self._place)
        about = (FORMAT, "test", "0", "q", str(self.folder), str(self.checkpoint), 1, 0)
        registry.publish([Registration(uid, *about) for uid in (self._published if job else ())], self._place)
        if trigger == {"availableNow": True} and not capabilities(self.spark.version).available_now:
            trigger = None  # it would run one epoch
        self._ends = bool(trigger and trigger.keys() & {"availableNow", "once"})

        written = self._written

        def keep(rows: DataFrame, epoch: int) -> None:
            """Into a file: a function of a client of Spark Connect runs in its server."""
            (written / str(epoch)).write_bytes(pickle.dumps([tuple(row) for row in rows.collect()]))

        written.mkdir(exist_ok=True)
        writer = df.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.checkpoint))
        writer = writer.trigger(**(trigger or {"processingTime": "0 seconds"}))
        workers = registry.options_for(self.spark, self._place, 0)
        self._again = backend_of(df).for_workers(writer, workers, operators.is_ours).start
        self.query = self._again()
        return self.query

    def close(self) -> None:
        """Leave nothing in the session: neither the query nor what its markers find."""
        if self.query is not None:
            self.query.stop()
        registry.withdraw(self._published, self._place)

    def settle(self) -> None:
        """Wait until the query has nothing left to do: it ended by itself, or is idle.

        On a busy machine Spark may not wait long enough for a planner process (10 s). The query is then started again,
        as it has not planned anything yet.
        """
        assert self.query is not None
        for late in range(10):
            try:
                if self._ends:
                    self.query.awaitTermination()
                else:
                    self.query.processAllAvailable()
                return
            except StreamingQueryException as failure:
                if late == 9 or not all(words in str(failure) for words in _LATE):
                    raise
                self.query = self._again()

    def run(self, df: DataFrame, trigger: Mapping[str, Any] | None = None, *, job: bool = True) -> None:
        self.start(df, trigger, job=job)
        self.settle()
        assert self.query is not None
        self.query.stop()

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows written, sorted; a row that was written twice appears twice."""
        return sorted(
            (row for file in self._written.iterdir() for row in pickle.loads(file.read_bytes())), key=in_order
        )

    @property
    def _written(self) -> Path:
        return self.folder / f"{self.checkpoint.name}-written"

    def state_rows(self) -> list[int]:
        assert self.query is not None
        epochs = [progress for progress in self.query.recentProgress if progress["stateOperators"]]
        return [operator["numRowsTotal"] for operator in epochs[-1]["stateOperators"]] if epochs else []

    def log(self) -> list[LoggedOffsets]:
        log = SparkLog(str(self.checkpoint))
        newest = log.newest_commit()
        found = [log.offsets(epoch) for epoch in range((newest if newest is not None else -1) + 1)]
        return [one for one in found if one is not None]

    def markers(self, uid: str) -> list[tuple[int, bool]]:
        """(marker, flushed) of one end of input, per committed epoch."""
        return [(raw["marker"], raw["flushed"]) for raw in self._offsets(uid) if is_end_of_input_offset(raw)]

    def ended(self, uid: str) -> list[bool]:
        return [bool(raw.get("ended")) for raw in self._offsets(uid)]

    def _offsets(self, uid: str) -> list[dict[str, Any]]:
        every = (raw for epoch in self.log() for raw in epoch.sources)
        return [raw for raw in every if isinstance(raw, dict) and raw.get("uid") == uid]

    def crash_in(self, epoch: int) -> None:
        """Restore the state after a crash between the sink's and Spark's commit of an epoch, so that it is replayed."""
        for folder, first in (("commits", epoch), ("offsets", epoch + 1)):
            for path in (self.checkpoint / folder).iterdir():
                number = path.name.strip(".").removesuffix(".crc")
                if number.isdigit() and int(number) >= first:
                    path.unlink()
        for file in self._written.iterdir():
            if int(file.name) > epoch:
                file.unlink()


def in_order(row: tuple[Any, ...]) -> tuple[str, ...]:
    """A sort key for rows that may hold nulls: times in chronological order, other values by their text."""
    return tuple(value.isoformat() if isinstance(value, datetime) else repr(value) for value in row)


def sorted_rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in df.collect()), key=in_order)


Shape: TypeAlias = Callable[[Callable[["DataFrame", str, str], "DataFrame"], Callable[[str], "DataFrame"]], "DataFrame"]
"""A plan over sources `a` and `b`, given a watermark function and a reader: built as streaming and as batch."""
