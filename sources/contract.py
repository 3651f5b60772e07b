"""The one contract for sources. This file is all that the author of a new source has to read.

A source is a set of *channels*: units of ordered input, such as a file, a partition of a log or a range of keys. You
say which channels there are, how far one may be read under a limit, and how a range of one is read. The base class
does the rest: versioned offsets, read limits over channels, AvailableNow, the trigger interval, channels that appear
later, finished channels that cost nothing, restart, drain, and the acknowledgement of the last epoch, which Spark
itself never gives.

    class Numbers(ChannelSource):
        options_type = NumbersOptions

        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "n bigint"

        def discover(self):
            return [Channel("all")]

        def advance(self, channel, start, limit):
            end = min(self.options.count, start + (limit.rows or self.options.count))
            return Advance(end, finished=end == self.options.count, rows=end - start)

        def read(self, channel, start, end):
            yield pa.RecordBatch.from_pydict({"n": range(start, end)})

What is guaranteed to you:

- `discover`, `advance`, `latest` and `on_epoch_committed` run in one long-lived planner process on the driver, one call
  at a time. `read` runs on executors, in any number of processes at once.
- Positions that you return are stored before the epoch runs. A replayed epoch is read with the same positions.
- A channel that has finished is never read again, in no later run of the job.

What is **not** guaranteed:

- `advance` may be called for a range that never becomes an epoch; it must not consume anything.
- `read` may run several times for the same range, also at the same time (a retried or speculative task), and after a
  crash long after `advance` was called: it must give the same rows each time. A source whose input cannot be read
  twice does not fit this contract.
- `on_epoch_committed` and the life-cycle hooks come at least once: after a crash they may come again.
- Rows of one channel reach the query in order only as far as one task reads them: `split` gives that up.
- The constructor runs in many processes: it has no side effects.

The shape owes to bytewax's `inputs.py` (partitions, `next_batch`, `snapshot`) and to Flink's FLIP-27 (splits).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_ext.errors import ConfigurationError
from spark_ext.model.offsets import Json, Position, Range, SourceOffset
from spark_ext.options import Bytes, Milliseconds, Options

if TYPE_CHECKING:
    import pyarrow as pa


class SourceOptions(Options):
    """Options that every source has. Declare yours as fields of a subclass."""

    max_rows_per_epoch: int | None = Field(default=None, gt=0)
    """Most rows that one epoch reads, over all channels; None: all that is there."""

    max_bytes_per_epoch: Bytes | None = Field(default=None, gt=0)
    """Most bytes that one epoch reads, over all channels; None: all that is there."""

    readers: int | None = Field(default=None, gt=0)
    """How many tasks read an epoch, and how many channels are in progress at once; None: Spark's parallelism."""

    discovery_interval: Milliseconds = 10_000
    """How often an unbounded source looks for new channels, ms. A bounded one looks once per run."""


@dataclass(frozen=True)
class Channel:
    """A unit of ordered input."""

    id: str
    """Stable over restarts, unique within the source."""
    begin: Position = 0
    """Position of its first row."""
    data: Json = None
    """What `read` needs to know of it (a path, a size); stored with the position, so keep it small."""


@dataclass(frozen=True)
class Limit:
    """How much `advance` may take of a channel; None means no limit."""

    rows: int | None = None
    bytes: int | None = None
    upto: Position = None
    """Under AvailableNow, for an unbounded source: the position that `latest` gave when the run began."""


@dataclass(frozen=True)
class Advance:
    """Where a channel stands after an epoch."""

    end: Position
    """Past the last row of the epoch; equal to `start` when there is nothing new."""
    finished: bool = False
    """Whether the channel ends there: no row will ever come after `end`."""
    rows: int | None = None
    """Rows between start and end; None when that is not known without reading. Counts against `Limit.rows`."""
    bytes: int | None = None
    """Bytes between start and end, or None. Counts against `Limit.bytes`."""


@dataclass(frozen=True)
class Committed:
    """What has become safe: an epoch that the sink and Spark have committed."""

    positions: Mapping[str, Position]
    """Channel id to position: all rows before it are safe."""
    finished: tuple[str, ...]
    """Channels that finished in this epoch."""
    final: bool
    """Whether it is the source's last epoch. Given by the job's final checkpoint, in the driver process."""

    @classmethod
    def of(cls, offset: SourceOffset, *, final: bool) -> Committed:
        """What an offset says when its epoch is safe."""
        positions: dict[str, Position] = {name: state.at for name, state in offset.running.items()}
        positions.update({finish.channel: finish.at for finish in offset.finished})
        return cls(positions, tuple(finish.channel for finish in offset.finished), final)


@dataclass(frozen=True)
class Seam:
    """Where a source ended, as another one that goes on from there has to know it; see the source `hybrid`."""

    offsets: Mapping[str, int] = field(default_factory=dict)
    """The greatest offset by partition. A partition is named by its columns, joined by a colon; `""` without any."""
    time: int | None = None
    """The greatest event time, microseconds since 1970 UTC; None: not by time, or there was no row."""


class ChannelSource(DataSource):
    """Base of all sources: subclass it, and register the class with `spark_ext.register(spark, YourSource)`.

    Delivery: exactly once together with a sink that commits an epoch once; each row of a finished channel is in
    exactly one committed epoch.
    """

    options_type: ClassVar[type[SourceOptions]] = SourceOptions
    """Your options class."""

    options: SourceOptions  # type: ignore[assignment]
    """The parsed options; annotate it with your class. (Spark's base class has the raw ones under this name.)"""

    given: Mapping[str, str]
    """The options as they were given, secrets among them: never to be shown."""

    requires_finalization: ClassVar[bool] = False
    """Whether the final checkpoint has to wait for `is_finalized`."""

    declared: StructType | None = None
    """The rows' schema: what the user gave to `.schema(...)`, else `schema()`. Set before planning and reading."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self.given = dict(options)
        self.options = self.options_type.parse(self.name(), options)

    # -- to be written ------------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def name(cls) -> str:
        """The format name: `spark.readStream.format(name)`."""

    @abstractmethod
    def schema(self) -> StructType | str:
        """The rows' schema; asked once, at `load()`. Raise `ConfigurationError` here for a path that is not there."""

    @abstractmethod
    def discover(self) -> Iterable[Channel]:
        """All channels that there are now, in the order in which they should be started.

        Channels that have finished may be in it; the base leaves them out.
        """

    @abstractmethod
    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        """How far this epoch may read the channel from `start`. Called often: keep what is costly in `self`."""

    @abstractmethod
    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """The rows of [start, end) in order, the same each time, as Arrow batches with the columns of `schema`.

        `channel` has the id and the data that `discover` gave; its `begin` is not kept.
        """

    # -- may be written -----------------------------------------------------------------------------------------------

    @property
    def bounded(self) -> bool:
        """Whether all channels have an end and no new ones come once they have been discovered."""
        return True

    @property
    def channels_end(self) -> bool:
        """Whether each channel has an end, also when new ones keep coming; then at most `readers` are in progress."""
        return self.bounded

    def resume(self, known: Sequence[Channel], finished: frozenset[str]) -> None:
        """A planner starts: `known` are the channels in the offset, `finished` the ids that are done with.

        Called once, before `discover`, also in the first run. For a source that has to go on with what it once chose,
        such as a table's version.
        """

    def latest(self, channel: Channel) -> Position:
        """The end of what the channel holds now: for lag, and as the limit of an AvailableNow run. None: unknown."""
        return None

    def split(
        self, channel: Channel, start: Position, end: Position, parts: int
    ) -> Sequence[tuple[Position, Position]]:
        """Cut a range into at most `parts` that separate tasks may read; the default keeps it whole and in order."""
        return [(start, end)]

    def on_epoch_committed(self, epoch: Committed) -> None:
        """Acknowledge, delete or move what is safe now. At least once; never before the rows are safe."""

    def is_finalized(self) -> bool:
        """Whether nothing is left to be done outside; asked at the end of input if `requires_finalization`."""
        return True

    def open(self) -> None:
        """The job is about to start this source's query. Not called for a source that has finished."""

    def end_of_input(self) -> None:
        """The last data epoch of this source is committed. Not called on stop, cancel or failure."""

    def close(self) -> None:
        """The final checkpoint is complete and the query has stopped."""

    # -- for sources that are used as, or made of, stages: see `hybrid` -----------------------------------------------

    def follow(self, seam: Seam) -> None:
        """Begin right behind where another source ended. Told before `resume` and `discover`, in each run.

        What begins by offsets begins at the offset after the one given, and with a partition that is not named as it
        would without a seam; what begins by time begins with the first row that is later.

        Raises:
            ConfigurationError: this source cannot begin like that.
        """
        raise ConfigurationError(
            f"the source {self.name()} cannot begin where another one ended",
            operator=f"source '{self.options.uid}'",
            kept="nothing was read",
            do="give the stage a start of its own, and take the option 'seam' away from the stage before",
        )

    @property
    def last_stage(self) -> bool:
        """Whether no other stage comes once all channels that `discover` gives have ended."""
        return True

    def planned(self, stage: Json, pieces: Sequence[Range]) -> Json:
        """An epoch is about to read these pieces: what the stage has to remember from now on, stored with the epoch.

        Args:
            stage: what it remembered so far, an object with at least the stage's `number`; None: nothing, in the first.
            pieces: of this stage.
        """
        return stage

    def next_stage(self, stage: Json) -> Json:
        """All channels of this stage have ended: what `enter` has to know of the next one, its `number` among it.

        Asked only while `last_stage` is False. What is returned is stored before the stage is entered.
        """
        return None

    def enter(self, stage: Json) -> None:
        """Go on with a stage: at its beginning, and, before `resume`, in each later run."""

    # -- done by the base ---------------------------------------------------------------------------------------------

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """What Spark calls; not to be overridden."""
        from spark_ext.sources.runtime.reader import ChannelReader

        self.declared = schema
        return ChannelReader(self, schema)
