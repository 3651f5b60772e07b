"""The contract for sources. This file is all that the author of a new source has to read.

A source is a set of *channels*: units of ordered input, such as a file, a partition of a log or a range of keys. You
say which channels there are, how far one may be read under a limit, and how a range of one is read. The rest is done
for you: versioned offsets, read limits across channels, AvailableNow, the trigger interval, channels that appear
later, finished channels that cost nothing, restart, drain, and the acknowledgement of the last epoch, which Spark
itself never gives.

    class Numbers(ChannelSource):
        options_type = NumbersOptions
        options: NumbersOptions

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

    spark_ext.register(spark, Numbers)
    spark.readStream.format("numbers").options(uid="numbers", count=100).load()

Guaranteed:

- `discover`, `advance`, `latest`, `drained` and `on_epoch_committed` run in one long-lived planner process on the
  driver's machine, one call at a time. `read` runs on executors, in any number of processes at once.
- Positions that you return are stored before the epoch runs. A replayed epoch is read with the same positions.
- A channel that has finished is never read again, in no later run of the job.
- `on_epoch_committed` is called only after the epoch's rows are safe, and in a job also for the last epoch.
- A batch read (`spark.read`) plans with `resume`, `discover` and `advance`, without limits, to the end of each channel
  or to its `latest`, and reads with `split` and `read`. It calls nothing else: nothing is acknowledged.
- A source that ends while others of its query run on has an end of its own: `end_of_input`, the finished flag in the
  ledger, `on_epoch_committed` of its last epoch, and `close`, in this order. From then on nothing is called any more,
  in no later run: its planner discovers and plans nothing. A restore to an earlier epoch opens it again.

**Not** guaranteed:

- That a range becomes an epoch: `advance` may be called for one that is never read, and again for the same one. It
  must not consume anything.
- That a range is read once: `read` may run several times for the same range, at the same time (a retried or
  speculative task) and, after a crash, long after `advance` was called. It must give the same rows each time. A source
  whose input cannot be read twice does not fit this contract.
- That a call comes once: `on_epoch_committed` and the life-cycle hooks come at least once, and may be repeated after
  a crash: `end_of_input` until the flag is stored, the last acknowledgement and `close` after that.
  `on_epoch_committed` may skip epochs; its positions cover those that it skipped.
- That `open` comes before the hooks of the end: a start that finds a source at its end opens nothing, and takes the
  steps that a crash has left.
- That the rows of a source have left the query's state when it is closed: those under a watermark of its own have.
  Those under one that it shares with a source that runs on are safe, and may be in a window that is still open.
- That one instance sees all calls: the life-cycle hooks, and `on_epoch_committed` of the last epoch, are called on
  instances of their own in the driver process, built from the options alone.
- Order between channels. Rows of one channel reach the query in order as long as one task reads them; `split` gives
  that up.
- That the constructor runs once, or on the driver: it runs in many processes, so it must have no side effects, and
  what it makes must be picklable or left out in `__getstate__`.

The design follows bytewax's `inputs.py` (partitions, `next_batch`, `snapshot`) and Flink's FLIP-27 (splits).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from spark_ext.bad_rows.options import BadRowOptions
from spark_ext.bad_rows.row import BadRow as BadRow
from spark_ext.errors import ConfigurationError, DataError
from spark_ext.model.offsets import Json, Position, SourceOffset
from spark_ext.options import Bytes, Milliseconds
from spark_ext.sources.spark_names import EVERY_SOURCE
from spark_ext.spark.session.connector import Connector

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class SourceOptions(BadRowOptions):
    """Options that every source has. Declare yours as fields of a subclass.

    `on_bad_row`, `bad_rows_path`, `max_bad_share` and `max_bad_rows` are among them; see `BadRowOptions`.
    """

    foreign_names: ClassVar[Mapping[str, str]] = EVERY_SOURCE
    pace_fields: ClassVar[frozenset[str]] = frozenset(
        {"discovery_interval", "max_bytes_per_epoch", "max_rows_per_epoch"}
    )
    """Options that say how fast rows are read, and not which. A batch read is made without them."""

    max_rows_per_epoch: int | None = Field(default=None, gt=0)
    """Most rows that one epoch reads, over all channels; None: everything available."""
    max_bytes_per_epoch: Bytes | None = Field(default=None, gt=0)
    """Most bytes that one epoch reads, over all channels; None: everything available."""
    readers: int | None = Field(default=None, gt=0)
    """How many tasks read an epoch, and how many channels are in progress at once; None: Spark's parallelism."""
    discovery_interval: Milliseconds = 10_000
    """How often an unbounded source looks for new channels, ms. A bounded one looks once per run."""

    @classmethod
    def without_pace(cls, given: Mapping[str, str]) -> dict[str, str]:
        """Options as they were given, without those that say how fast rows are read."""
        return {name: value for name, value in given.items() if name.lower() not in cls.pace_fields}


@dataclass(frozen=True)
class Channel:
    """A unit of ordered input."""

    id: str
    """Stable across restarts, unique within the source."""
    begin: Position = 0
    """Position of its first row."""
    data: Json = None
    """What `read` needs to know about it (a path, a size); stored with the position, so keep it small."""


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
    """Rows between start and end, or more where rows were deleted; None when that is not known without
    reading: then the step counts as if it had used up its limit. Counts against `Limit.rows`. An epoch never counts
    more rows of the source than this, however often Spark has repeated its tasks."""
    bytes: int | None = None
    """Bytes between start and end, or None. Counts against `Limit.bytes`."""
    whole: bool = False
    """Whether the step could not be divided, such as a file whose rows span lines: only then may it exceed a limit.
    Under a limit per second the excess is waited for."""


@dataclass(frozen=True)
class Committed:
    """What has become safe: an epoch that the sink and Spark have committed."""

    positions: Mapping[str, Position]
    """Channel id to position: all rows before it are safe."""
    finished: tuple[str, ...]
    """Channels that finished in this epoch; some that finished in earlier ones may be named again."""
    final: bool
    """Whether it is the source's last epoch. Set by the job, in the driver process."""

    @classmethod
    def of(cls, offset: SourceOffset, *, final: bool) -> Committed:
        """What an offset says once its epoch is safe."""
        positions: dict[str, Position] = {name: state.at for name, state in offset.running.items()}
        positions.update({finish.channel: finish.at for finish in offset.finished})
        return cls(positions, tuple(finish.channel for finish in offset.finished), final)


class ChannelSource(Connector):
    """Base of all sources: subclass it, and register the class with `spark_ext.register(spark, YourSource)`.

    Delivery: exactly once together with a sink that commits an epoch once; each row of a finished channel is in
    exactly one committed epoch.

    Args:
        options: as Spark hands them over: text, under names in any case.

    Raises:
        ConfigurationError: an option is unknown, missing or has a bad value.
    """

    options_type: ClassVar[type[SourceOptions]] = SourceOptions
    """Your options class."""

    options: SourceOptions
    """The parsed options; annotate it with your class."""

    given: Mapping[str, str]
    """The options as they were given, secrets among them: never show or store them."""

    requires_finalization: ClassVar[bool] = False
    """Whether the final checkpoint has to wait for `is_finalized`.

    If other sources of the query run on, only this one's flag, last acknowledgement and `close` wait; the query does
    not, and makes no further epochs for it. After `finalization_timeout` that is an incident; it is asked on.
    """

    names_changes: ClassVar[bool] = False
    """Whether a channel that has finished has changed if `discover` gives it other data: an incident then names it."""

    channels_name: str = "channels"
    """What channels are, in the plural: the progress of a plan that takes long counts them."""

    only_in_jobs: ClassVar[str] = ""
    """Why a batch read (`spark.read`) is refused, such as that planning leaves something behind; "": it is possible."""

    declared: StructType | None = None
    """The rows' schema: what the user gave to `.schema(...)`, else `schema()`. Set before planning and reading."""

    _collect: Callable[[BadRow], None] | None = None
    """Set while a range is read whose bad rows are collected."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.given = dict(options)
        self.options = self.options_type.parse(self.name(), options)

    # -- required -----------------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def name(cls) -> str:
        """The format name: `spark.readStream.format(name)`."""

    @abstractmethod
    def schema(self) -> StructType | str:
        """The rows' schema, as Spark's type or as DDL; asked once, at `load()`.

        Raise `ConfigurationError` here for what can be refused early, such as a path that does not exist.
        """

    @abstractmethod
    def discover(self) -> Iterable[Channel]:
        """All channels that exist now, in the order in which they should be started.

        Those that have not been started are discovered again by the next planner. If channels do not end
        (`channels_end`), neither a pause nor a rate limit keeps one from being started: it is in the next epoch's
        offset, without rows. A small `max_rows_per_epoch` may. So if they have to begin together, return no rows for a
        new channel when there is a limit.

        Channels that have finished may be among them: they are left out by their ids.
        """

    @abstractmethod
    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        """How far this epoch may read the channel from `start`. Called often: keep what is costly in `self`.

        For a channel that has been started before, `channel.begin` is None.
        """

    @abstractmethod
    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """The rows of [start, end) in order, the same each time, as Arrow batches with the columns of `declared`.

        `channel` has the id and the data that `discover` gave; its `begin` is None. Columns of another type are cast;
        a batch that cannot be cast fails the query with a `DataError`.
        """

    # -- for you to call ----------------------------------------------------------------------------------------------

    @property
    def collects_bad_rows(self) -> bool:
        """Whether `bad_row` returns, so that it is worth looking for the other bad rows of a batch."""
        return self._collect is not None

    def bad_row(self, row: BadRow, error: DataError | None = None) -> None:
        """In `read`: a row does not parse or fit, and is left out of what is returned.

        With `on_bad_row=quarantine` the row is collected, and `read` continues behind it. A range that is read again
        must have the same bad rows. What is damaged as a whole, such as a file, is no row: raise an error.

        Args:
            row: the row.
            error: what is raised with `on_bad_row=fail`; None: an error with the position and the reason.

        Raises:
            DataError: with `on_bad_row=fail`; or there are more bad rows than `max_bad_rows` allows.
        """
        if self._collect is not None:
            self._collect(row)
            return
        raise error or DataError(
            f"a row is bad: {row.reason}",
            operator=f"source '{self.options.uid}', {row.position!r}",
            kept="everything up to the previous epoch; no row of this one was committed",
            do="correct the row or the declared schema, or load with on_bad_row=quarantine",
        )

    # -- optional -----------------------------------------------------------------------------------------------------

    @property
    def bounded(self) -> bool:
        """Whether all channels have an end and no new ones come once they have been discovered."""
        return True

    @property
    def channels_end(self) -> bool:
        """Whether each channel has an end, even if new ones keep coming; then at most `readers` are in progress."""
        return self.bounded

    @property
    def ends_now(self) -> bool:
        """Whether a run that ends with what is there (`job.run(until="now")`) finds an end here.

        It does if each channel has an end, or `latest` says where it is now.
        """
        return self.channels_end or type(self).latest is not ChannelSource.latest

    def resume(self, known: Sequence[Channel], finished: frozenset[str]) -> None:
        """A planner starts: `known` are the channels in the offset, `finished` the ids of those that have finished.

        Called once, before `discover`, in the first run too. For a source that has to continue with a choice that it
        made in its first run, such as a table's version.
        """

    def latest(self, channel: Channel) -> Position:
        """The end of what the channel holds now: for lag, and as the limit of an AvailableNow run. None: unknown."""
        return None

    def lag(self, channel: Channel, at: Position) -> int | None:
        """Rows of a channel that exist and come after a position; None if that is not cheaply known.

        For display, and never for a decision. Asked for each channel whenever an epoch has been planned, so it must not
        wait for anything for long. A channel that has not started is asked for at its `begin`. While an epoch runs for
        longer than the setting `lag_interval` it is asked again, on another thread of the planner, but never while a
        method of the planner runs: what it says should be true at that moment, not as of the epoch's plan.
        """
        return None

    def split(
        self, channel: Channel, start: Position, end: Position, parts: int
    ) -> Sequence[tuple[Position, Position]]:
        """Cut a range into at most `parts` that separate tasks may read; the default keeps it whole and in order."""
        return [(start, end)]

    @property
    def least_tasks(self) -> int:
        """At least how many tasks read an epoch, even if Spark has fewer slots; 0: as `readers` says.

        With it, `split` is asked for more parts of larger ranges, and not only when there are fewer ranges than tasks.
        Positions have to be numbers.
        """
        return 0

    def seek(self, channel: Channel, at: Position, position: Json) -> Position:
        """Check a position to which an operator wants to send a channel, and return it in the source's own form.

        Called in the planner, for a channel that has started and not finished; `at` is where it stands. Positions
        before it are read again, those between are skipped. Raise `ConfigurationError` for one that does not exist;
        the default refuses all.
        """
        raise ConfigurationError(f"a channel of the source '{self.name()}' cannot be sent to another position")

    @property
    def knows_when_written(self) -> bool:
        """Whether `written_before` can be asked; without it a limit for old rows only (`older_than`) is rejected."""
        return False

    def written_before(self, channel: Channel, position: Position, at: float) -> bool:
        """Whether the row at a position is known to have been written before a time.

        Asked for each channel of each epoch while a limit for old rows is in force.

        Args:
            channel: it has started, or is about to.
            position: of its next row.
            at: s since 1970 UTC.
        """
        return False

    def drained(self, unread: Collection[str]) -> bool:
        """The job is drained: whether the source ends where it is. By default it does, at once.

        For a source that has promised those who send that it reads what it was sent: it tells them to stop, and is
        planned on until it has read what they have sent. Asked before each epoch, in the planner, until it returns
        True, also after a restart. A source that is paused is read on only once it is resumed.

        Args:
            unread: ids of the channels that have been discovered, and have not finished.
        """
        return True

    def on_epoch_committed(self, epoch: Committed) -> None:
        """Acknowledge, delete or move what is safe now. At least once; never before the rows are safe."""

    def on_checkpoint_completed(self, checkpoint: int) -> None:
        """An aligned checkpoint of the job is complete. At least once per checkpoint while the job runs.

        Called in the driver, on an instance of its own; what it raises is recorded, and changes nothing.
        """

    def on_checkpoint_aborted(self, checkpoint: int) -> None:
        """An aligned checkpoint of the job was given up; the next one does not depend on it. Called as above."""

    def is_finalized(self) -> bool:
        """Whether nothing is left to be done outside; asked after `end_of_input` if `requires_finalization`."""
        return True

    def open(self) -> None:
        """The job is about to start this source's query. Not called for a source that has ended."""

    def end_of_input(self) -> None:
        """The last data epoch of this source is committed. Not called on stop, cancel or failure.

        Under a watermark of its own, what the watermark holds of it has been emitted as well. A query that ends with
        this source calls it once all its state is empty.
        """

    def close(self) -> None:
        """The flag of the source is stored, and its last epoch acknowledged: nothing is called any more.

        If the query ends with this source, it has stopped.
        """
