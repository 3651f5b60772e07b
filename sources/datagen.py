"""`datagen`: rows that are a pure function of seed, channel and row number; for tests and benchmarks.

    spark.readStream.format("datagen").option("uid", "load").option("rows", 1_000_000).load()

| column | type | meaning |
|---|---|---|
| id | bigint | unique over all channels: row number * channels + channel |
| channel | int | 0 .. channels - 1 |
| seq | bigint | row number in the channel, from 0 |
| ts | timestamp | event time: start_time + row number * step_ms, earlier by up to out_of_order |
| key | bigint | 0 .. keys - 1; low keys are more frequent if skew > 0 |
| value | double | uniform in [0, 1) |
| tag | string | `key-<key>` |

The generator is SplitMix64, a hash of a counter: a range of rows does not depend on the rows before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from spark_ext.errors import refused
from spark_ext.model.offsets import Json, Position
from spark_ext.options import CommaSeparated, Milliseconds, instant
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.schemas.columns import fits
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Limit, SourceOptions
from spark_ext.sources.positions import number_in
from spark_ext.sources.runtime.sample import mix, uniform
from spark_ext.sources.spark_names import RATE
from spark_ext.sources.staged import Cutover

BATCH_ROWS = 131_072

SCHEMA = pa.schema(  # the columns; `.schema(...)` may select some of them
    [
        ("id", pa.int64()),
        ("channel", pa.int32()),
        ("seq", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("key", pa.int64()),
        ("value", pa.float64()),
        ("tag", pa.string()),
    ]
)

ROW_BYTES = 64  # assumed size of a row for `max_bytes_per_epoch`: about its size in Arrow
DEFAULT_START = "2024-01-01T00:00:00Z"  # the time of the first row, unless the user gives one
DEFAULT_START_US = 1_704_067_200_000_000  # the same in µs since 1970, so that the default needs no pandas


class DataGenOptions(SourceOptions):
    """Options of `datagen`."""

    foreign_names: ClassVar[Mapping[str, str]] = RATE
    identity_fields: ClassVar[frozenset[str]] = frozenset(
        {"keys", "out_of_order", "seed", "skew", "start_time", "step_ms"}
    )
    pace_fields: ClassVar[frozenset[str]] = SourceOptions.pace_fields | {"rows_per_second"}

    rows: int | None = Field(default=None, ge=0)
    """Total number of rows, spread evenly over the channels; without it and `rows_of` the source is unbounded."""
    rows_of: Annotated[tuple[int, ...] | None, CommaSeparated] = None
    """Number of rows of each channel, such as `1000,2000`: channels then finish at different times. Sets `channels`."""
    channels: int = Field(default=1, gt=0)
    """Number of channels."""
    rows_per_second: float | None = Field(default=None, gt=0)
    """Rows per second of wall-clock time over all channels, from the source's first epoch on."""
    keys: int = Field(default=100, gt=0)
    """Number of keys."""
    skew: float = Field(default=0.0, ge=0)
    """Exponent of Zipf's law over the keys; 0: all equally frequent; 1: key 0 twice as often as key 1."""
    start_time: str = DEFAULT_START
    """Event time of the first row of each channel, ISO 8601."""
    step_ms: Milliseconds = 1
    """Event time between consecutive rows of a channel, ms."""
    out_of_order: Milliseconds = 0
    """Maximum delay by which a row's event time is set back, ms."""
    seed: int = 0
    """Seed of the generator; another seed gives other rows."""

    @field_validator("start_time")
    @classmethod
    def _instant(cls, value: str) -> str:
        instant(value)
        return value

    @model_validator(mode="after")
    def _together(self) -> DataGenOptions:
        if self.rows is not None and self.rows_of is not None:
            raise ValueError("rows and rows_of exclude each other")
        if self.rows_of is not None and ("channels" in self.model_fields_set and self.channels != len(self.rows_of)):
            raise ValueError(f"rows_of has {len(self.rows_of)} numbers for {self.channels} channels")
        if self.rows_of is not None and min(self.rows_of, default=-1) < 0:
            raise ValueError("rows_of needs numbers of 0 and more")
        return self

    def identity(self) -> dict[str, str]:
        """Whatever the rows are a function of."""
        channels = self.channels if self.rows_of is None else len(self.rows_of)
        return {**super().identity(), "channels": str(channels)}


class DataGen(ChannelSource):
    """Generated rows. Positions are row numbers; a channel's data are its number of rows and, if paced, its start."""

    options_type = DataGenOptions
    options: DataGenOptions
    clock: Callable[[], float] = staticmethod(time.time)  # seconds since 1970

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._started: int | None = None
        self._after: Mapping[str, int] = {}

    @classmethod
    def name(cls) -> str:
        """`datagen`."""
        return "datagen"

    def schema(self) -> str:
        """See the module."""
        return "id bigint, channel int, seq bigint, ts timestamp, key bigint, value double, tag string"

    @property
    def bounded(self) -> bool:
        """Whether a number of rows was given."""
        return self.options.rows is not None or self.options.rows_of is not None

    @property
    def ends_now(self) -> bool:
        """Whether there is a number of rows, or a pace: without both there is always more to read."""
        return self.bounded or self._paced

    @property
    def _channels(self) -> int:
        return len(self.options.rows_of) if self.options.rows_of is not None else self.options.channels

    @property
    def _paced(self) -> bool:
        return self.options.rows_per_second is not None

    def check_cutover(self, partition: int, *, time: bool | None) -> None:
        """A cutover names the channel and its row number."""
        if partition != 1:
            raise refused(
                "the source datagen begins after a row number of each channel, and cannot begin "
                + ("after a time" if time else "after anything else"),
                f"source '{self.options.uid}'",
                "give the stage before it a seam of two columns, such as 'channel:seq'",
            )

    def follow(self, cutover: Cutover) -> None:
        """Begin after a row number (`seq`) of each channel."""
        if cutover.time is not None:
            self.check_cutover(0, time=True)
        known = {str(number) for number in range(self._channels)}
        if unknown := sorted(cutover.offsets.keys() - known):
            raise refused(
                f"the stage before it has ended at row {cutover.offsets[unknown[0]]} of channel '{unknown[0]}', which "
                "does not exist",
                f"source '{self.options.uid}'",
                "give the stage before it a seam that names the channel and its row number, such as 'channel:seq'",
            )
        self._after = cutover.offsets

    def resume(self, known: Sequence[Channel], finished: frozenset[str]) -> None:
        """Continue from the start time that the first epoch fixed."""
        starts = [channel.data["start"] for channel in known if channel.data and "start" in channel.data]
        self._started = min(starts, default=None)

    def discover(self) -> Iterable[Channel]:
        """All channels, at once."""
        self._check_columns()
        if self._paced and self._started is None:
            self._started = int(self.clock() * 1000)
        return [self._channel(number) for number in range(self._channels)]

    def _channel(self, number: int) -> Channel:
        data = self._data(number)
        begin = self._after.get(str(number), -1) + 1
        return Channel(str(number), min(begin, data.get("rows", begin)), data)

    def _check_columns(self) -> None:
        for field in self._wanted:
            index = SCHEMA.get_field_index(field.name)
            if index < 0 or not fits(SCHEMA.field(index).type, field.type):
                what = f"column '{field.name}' of type {field.type} does not exist"
                do = f"remove .schema(...), or choose from: {self.schema()}"
                raise refused(what, f"source '{self.options.uid}'", do)

    def _data(self, number: int) -> dict[str, int]:
        data = {}
        if self.options.rows_of is not None:
            data["rows"] = self.options.rows_of[number]
        elif self.options.rows is not None:
            each, rest = divmod(self.options.rows, self._channels)
            data["rows"] = each + (number < rest)
        if self._started is not None:
            data["start"] = self._started
        return data

    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        """Advance up to the limits, the pace and the number of rows."""
        last = (channel.data or {}).get("rows")
        ends = [end for end in (last, self._due(channel), limit.upto) if end is not None]
        if limit.rows is not None:
            ends.append(start + limit.rows)
        if limit.bytes is not None:
            ends.append(start + max(1, limit.bytes // ROW_BYTES))
        if not ends:
            # Without a limit an epoch of an unbounded source would not end.
            ends.append(start + 10 * BATCH_ROWS)
        end = max(start, min(ends))
        return Advance(end, end == last, rows=end - start, bytes=(end - start) * ROW_BYTES)

    def _due(self, channel: Channel) -> int | None:
        if self.options.rows_per_second is None:
            return None
        elapsed = max(0.0, self.clock() - channel.data["start"] / 1000)
        return int(elapsed * self.options.rows_per_second / self._channels)

    def seek(self, channel: Channel, at: Position, position: Json) -> Position:
        """The number of a row of the channel (`seq`)."""
        who = f"source '{self.options.uid}', channel '{channel.id}'"
        return number_in(
            position, 0, (channel.data or {}).get("rows"), "the number of a row, as in the column seq", who
        )

    @property
    def knows_when_written(self) -> bool:
        """Whether the rows are paced: a row is then as old as it is late."""
        return self._paced

    def written_before(self, channel: Channel, position: Position, at: float) -> bool:
        """By the time at which the pace reaches the row."""
        assert self.options.rows_per_second is not None
        due: float = channel.data["start"] / 1000 + (position + 1) * self._channels / self.options.rows_per_second
        return due < at

    def latest(self, channel: Channel) -> Position:
        """The row that the pace has reached; None without a pace or an end."""
        last = (channel.data or {}).get("rows")
        ends = [end for end in (last, self._due(channel)) if end is not None]
        return min(ends, default=None)

    def lag(self, channel: Channel, at: Position) -> int | None:
        """Rows up to the end, or up to where the pace is; None without either."""
        latest = self.latest(channel)
        return None if latest is None else max(0, latest - at)

    def split(
        self, channel: Channel, start: Position, end: Position, parts: int
    ) -> Sequence[tuple[Position, Position]]:
        """Anywhere."""
        parts = min(parts, max(1, (end - start) // BATCH_ROWS))
        cuts = [start + (end - start) * part // parts for part in range(parts + 1)]
        return list(pairwise(cuts))

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        number = int(channel.id)
        for first in range(start, end, BATCH_ROWS):
            yield self._batch(number, np.arange(first, min(first + BATCH_ROWS, end), dtype=np.int64))

    @cached_property
    def _wanted(self) -> pa.Schema:
        return SCHEMA if self.declared is None else arrow_schema(self.declared)

    def _batch(self, number: int, seq: npt.NDArray[np.int64]) -> pa.RecordBatch:
        wanted = self._wanted
        made = {field.name: self._column(field.name, number, seq) for field in wanted}
        columns = [made[field.name].cast(field.type) for field in wanted]
        return pa.RecordBatch.from_arrays(columns, schema=wanted)

    def _column(self, name: str, number: int, seq: npt.NDArray[np.int64]) -> pa.Array:
        if name == "id":
            return pa.array(seq * self._channels + number)
        if name == "channel":
            return pa.repeat(pa.scalar(number, pa.int32()), len(seq))
        if name == "seq":
            return pa.array(seq)
        if name == "ts":
            return pa.array(self._times(number, seq)).cast(SCHEMA.field("ts").type)
        if name == "value":
            return pa.array(self._uniform(number, seq, salt=2))
        keys = pa.array(self._keys(number, seq))
        if name == "key":
            return keys
        # Dictionary-encoded first: a text is made once per key, not once per row.
        labels = pc.dictionary_encode(keys)
        texts = pa.array([f"key-{key}" for key in labels.dictionary.to_pylist()], pa.string())
        return pa.DictionaryArray.from_arrays(labels.indices, texts).dictionary_decode()

    def _times(self, number: int, seq: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        back = self._uniform(number, seq, salt=3) * self.options.out_of_order * 1000
        times: npt.NDArray[np.int64] = self._begin + seq * (self.options.step_ms * 1000) - back.astype(np.int64)
        return times

    @cached_property
    def _begin(self) -> int:
        """Microseconds since 1970 UTC."""
        given = self.options.start_time
        # Parsed beforehand: parsing needs pandas, which takes half a second in each planner and reader.
        return DEFAULT_START_US if given == DEFAULT_START else int(instant(given).value) // 1000

    def _keys(self, number: int, seq: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        drawn = self._uniform(number, seq, salt=1)
        if not self.options.skew:
            return (drawn * self.options.keys).astype(np.int64)
        return np.searchsorted(self._shares, drawn, side="right").astype(np.int64)

    @cached_property
    def _shares(self) -> npt.NDArray[np.float64]:
        weights = 1.0 / np.arange(1, self.options.keys + 1) ** self.options.skew
        shares: npt.NDArray[np.float64] = np.cumsum(weights / weights.sum())[:-1]
        return shares

    def _uniform(self, number: int, seq: npt.NDArray[np.int64], salt: int) -> npt.NDArray[np.float64]:
        """Numbers in [0, 1), by SplitMix64 of the row, starting at a hash of seed, channel and column."""
        begin = np.zeros(1, np.uint64)
        for part in (self.options.seed, number, salt):
            begin = mix(begin ^ np.array([part], np.int64).view(np.uint64))
        return uniform(begin, seq.view(np.uint64))
