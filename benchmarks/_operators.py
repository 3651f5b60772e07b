"""A source and a sink for benchmarks: rows in steps of a known size, and a sink that does nothing.

Both are pickled by value, as the workers do not have this directory on their path.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.types import StructType

import spark_ext as sx
from spark_ext.sinks.runtime.writer import ArrowWriter
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Limit, SourceOptions
from spark_ext.spark.watching.worker_process import begin_task, tune

BATCH_ROWS = 65_536


class StepsOptions(SourceOptions):
    """Options of `Steps`, in which an epoch is one step of each channel."""

    steps: int = Field(gt=0)  # number of steps after which a channel ends
    rows: int = Field(default=1000, ge=0)  # rows per step of a channel
    empty_from: int = 0  # first step without rows
    empty_upto: int = 0  # the end of the steps without rows (exclusive)
    channels: int = Field(default=2, gt=0)
    short: int = 0  # number of further channels that end with their first step, which has no rows
    hook_s: int = 0  # how long the hook at the end of its input takes, s


class Steps(ChannelSource):
    """Rows (id, ts, key, value) whose number per epoch is known."""

    options_type = StepsOptions
    options: StepsOptions

    @classmethod
    def name(cls) -> str:
        return "steps"

    def schema(self) -> str:
        return "id bigint, ts timestamp, key int, value double"

    @property
    def channels_end(self) -> bool:
        # So that all channels are in progress at once, whatever the number of tasks.
        return False

    def discover(self) -> Iterator[Channel]:
        for number in range(self.options.channels):
            yield Channel(f"channel-{number:06d}", 0, number)
        for number in range(self.options.short):
            yield Channel(f"short-{number:06d}", 0, -1)

    def advance(self, channel: Channel, start: int, limit: Limit) -> Advance:
        if channel.data == -1:
            return Advance(0, True, rows=0)
        return Advance(start + 1, start + 1 == self.options.steps, rows=self._rows(start))

    def end_of_input(self) -> None:
        time.sleep(self.options.hook_s)

    def _rows(self, step: int) -> int:
        return 0 if self.options.empty_from <= step < self.options.empty_upto else self.options.rows

    def read(self, channel: Channel, start: int, end: int) -> Iterator[pa.RecordBatch]:
        for step in range(start, end):
            rows, first = self._rows(step), step * self.options.rows
            for begin in range(0, rows, BATCH_ROWS):
                numbers = np.arange(first + begin, first + min(begin + BATCH_ROWS, rows), dtype=np.int64)
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array(numbers),
                        pa.array(numbers * 1_000_000, pa.timestamp("us", "UTC")),
                        pa.array((numbers % 1000).astype(np.int32)),
                        pa.array(numbers * 0.5),
                    ],
                    names=["id", "ts", "key", "value"],
                )


class DecodedOptions(SourceOptions):
    """Options of `Decoded`."""

    path: str  # the folder that `decode` has written


class Decoded(ChannelSource):
    """The rows of Parquet files without the work of decoding them: what any source in Python costs."""

    options_type = DecodedOptions
    options: DecodedOptions

    @classmethod
    def name(cls) -> str:
        return "decoded"

    def schema(self) -> str:
        return "id bigint, ts timestamp, key int, value double, tag string"

    def discover(self) -> Iterator[Channel]:
        for path in sorted(Path(self.options.path).glob("*.arrow")):
            yield Channel(path.name, 0, 1)

    def advance(self, channel: Channel, start: int, limit: Limit) -> Advance:
        return Advance(1, True)

    def read(self, channel: Channel, start: int, end: int) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(Path(self.options.path, channel.id))) as mapped, pa.ipc.open_file(mapped) as rows:
            for number in range(rows.num_record_batches):
                yield rows.get_batch(number)


def decode(folder: Path, into: Path) -> None:
    """Write the rows of each Parquet file as Arrow."""
    into.mkdir()
    for path in folder.glob("*.parquet"):
        rows = pq.read_table(path)
        with pa.OSFile(str(into / f"{path.stem}.arrow"), "wb") as out, pa.ipc.new_file(out, rows.schema) as file:
            file.write_table(rows, max_chunksize=BATCH_ROWS)


class Nothing(DataSource):
    """A Python sink that accepts all rows and does nothing: the cost of any Python sink in Spark.

    It tunes its workers as spark-ext's sinks do (`worker_process`); otherwise those would cost less than nothing.
    """

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> ArrowWriter:
        return _NothingWriter()


class _NothingWriter(ArrowWriter):
    def __init__(self) -> None:
        tune()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        begin_task()
        for _ in iterator:
            pass
        tune()
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        tune()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        pass


def register(spark: SparkSession) -> None:
    import benchmarks._operators as here

    cloudpickle.register_pickle_by_value(here)
    sx.register(spark, Steps, Decoded, Nothing)


def steps(spark: SparkSession, *, uid: str = "in", **options: int) -> DataFrame:
    reader = spark.readStream.format("steps").option("uid", uid)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()
