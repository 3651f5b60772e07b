"""The source `exchange`: what another query of the job writes, from its beginning to its end.

    flights = job.exchange("flights", partitions=16, key="carrier")
    job.add("enrich", flights.write(enriched))
    job.add("daily", daily(flights.read("daily-in")).writeStream.format("delta_2pc")...)

A channel is a partition, and its position is `[entry, row]`: an entry of the exchange's log, and how many of its rows
have been read. All partitions advance together, by whole epochs of the producer as long as the limits allow. The source
ends when the producer has finished and everything has been read. See `docs/linked-queries.md`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from spark_ext.errors import RESET, OffsetError, StateError, refused
from spark_ext.exchange.kinds import opened, parts
from spark_ext.exchange.positions import At, Front, advance, as_read_by, pieces, rows_before
from spark_ext.model.offsets import Position
from spark_ext.options import Pairs
from spark_ext.sources.aligned import AlignedSource, Together
from spark_ext.sources.contract import Channel, ChannelSource, Limit, SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_ext.exchange.contract import ExchangeLog, Parts
    from spark_ext.exchange.descriptor import Descriptor
    from spark_ext.exchange.entries import LogState


KNOWN_S: Final = 1.0  # age at which what is known of the log is looked up again for the lag, s


class ExchangeSourceOptions(SourceOptions):
    """Options of `exchange`."""

    path: str = Field(min_length=1)
    """The exchange's folder: `exchanges/<name>` in the job's state directory."""
    kind: str = "arrow"
    """How the exchange is stored."""
    kind_options: Pairs = Field(default_factory=dict)
    """Options of the kind, a JSON object. `Exchange.read` sets them."""
    watermarks: str = ""
    """Columns that the producer's watermark is about, and its delay, ms, as JSON. `Exchange.read` sets it."""

    def identity(self) -> dict[str, str]:
        """The exchange's name: its folder moves with the job's state directory."""
        return {"path": self.path.rstrip("/").rpartition("/")[2]}


class ExchangeSource(AlignedSource, ChannelSource):
    """Rows of an exchange. Delivery: exactly once together with a sink that commits an epoch once; order per partition.

    Not guaranteed: an order between partitions, or which partition a row is in when the exchange has no key.
    """

    options_type = ExchangeSourceOptions
    options: ExchangeSourceOptions

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._known: frozenset[str] = frozenset()
        self._about: Descriptor | None = None
        self._known_state: LogState | None = None
        self._known_at = 0.0  # when that was, s, monotonic

    def __getstate__(self) -> dict[str, Any]:
        # A process that reads looks at the description itself: the exchange may be another one by then.
        return {
            **{name: value for name, value in self.__dict__.items() if name != "_parts"},
            "_about": None,
            "_known_state": None,
        }

    @classmethod
    def name(cls) -> str:
        """`exchange`."""
        return "exchange"

    @property
    def _who(self) -> str:
        return f"source '{self.options.uid}' (exchange {self.options.path})"

    @cached_property
    def _parts(self) -> Parts:
        return parts(self.options.kind, self.options.path, self._who, self.options.kind_options)

    def _described(self) -> Descriptor:
        if self._about is None:
            self._about = self._parts.master.describe()
        if self._about is None:
            raise refused(
                "this folder contains no exchange",
                self._who,
                "correct the path; in a job, read it with job.exchange(<name>).read(<uid>), which needs no exchange "
                "to be there yet",
            )
        return self._about

    def schema(self) -> StructType:
        """The schema of the exchange's rows."""
        return self._described().schema

    def resume(self, known: Sequence[Channel], finished: frozenset[str]) -> None:
        """Refuse positions in another exchange, such as one that was deleted and created again."""
        about = self._described()
        self._known = finished | {channel.id for channel in known}
        for channel in known:
            self._refuse_other(channel.data, about)

    def _refuse_other(self, read: str, about: Descriptor | None) -> None:
        if about is None or about.id != read:
            what = f"the exchange is not the one that was read: it was deleted{' and created again' if about else ''}"
            do = f"restore the exchange's folder from a backup, or discard the history with {RESET}"
            raise OffsetError(what, operator=self._who, kept="nothing was read", do=do)

    def discover(self) -> Iterable[Channel]:
        """All partitions."""
        about, state = self._described(), self._parts.master.log.look()
        if state.released_rows and not self._known:
            raise StateError(
                f"the first {state.released_rows} rows of the exchange have been released: all queries that were "
                "known to read it had done so, and this one has read nothing yet",
                operator=self._who,
                kept="the exchange is unchanged; nothing was read",
                do="discard the history of the query that writes it, which then writes it again, with "
                f"{RESET}; the exchange's setting keep decides how long rows are kept",
            )
        # The entries before may be deleted: a range that began with them could not be read.
        first = state.passes_over(state.released) or state.released
        return [Channel(str(number), [first, 0], about.id) for number in range(about.partitions)]

    def advance_together(
        self, positions: Mapping[str, Position], limit: Limit, watermark: int | None
    ) -> Together | None:
        """See `spark_ext.exchange.positions.advance`."""
        log = self._parts.master.log
        about = self._described()
        front = Front.of(positions, about.partitions, self._who)
        state = self._refresh()
        if front.entry > state.last + 1:
            raise OffsetError(
                f"the exchange ends with entry {state.last}, and this source has read up to entry {front.entry - 1}: "
                "it was put back to an earlier state, or its log was deleted",
                operator=self._who,
                kept="nothing was read",
                do=f"restore the whole state directory from one backup, or discard the history with {RESET}",
            )
        if front.entry < state.released:
            raise OffsetError(
                f"entries {front.entry} to {state.released - 1} of the exchange have been released, and this source "
                "has not read them: it is not registered with the exchange, or its checkpoint is an older one",
                operator=self._who,
                kept="the exchange is unchanged; nothing was read",
                do=f"restore the whole job from one checkpoint, or discard the history with {RESET}",
            )
        step = advance(state, self._own(log), front, limit.rows, limit.bytes, watermark=watermark)
        if not step.moved:
            return None
        # The log that was looked at may be that of an exchange which was created again under this process.
        self._refuse_other(about.id, self._parts.master.describe())
        ends = {str(number): step.front.position(number) for number in range(len(step.front.rows))}
        return Together(ends, step.sealed, step.barrier or 0, step.rows, step.bytes, step.watermark)

    def _own(self, log: ExchangeLog) -> At:
        return as_read_by(log.entry, self.options.uid)

    def _refresh(self) -> LogState:
        self._known_state, self._known_at = self._parts.master.log.look(), time.monotonic()
        return self._known_state

    def lag_together(self, positions: Mapping[str, Position]) -> int | None:
        """Rows that the producer had committed at most a second ago, and that come after these positions."""
        state = self._known_state
        if state is None:
            return None
        if time.monotonic() - self._known_at > KNOWN_S:
            state = self._refresh()
        front = Front.of(positions, self._described().partitions, self._who)
        try:
            return state.total - rows_before(self._own(self._parts.master.log), state, front)
        except KeyError:
            return None

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """The rows of a range of one partition."""
        # A task uses what the tasks before it in this process have left open; a log that was put back is read anew.
        options = self.options
        found = opened(options.kind, options.path, str(channel.data), self._who, options.kind_options)
        self._refuse_other(str(channel.data), found.master.describe())
        found.master.log.look()
        for piece in pieces(self._own(found.master.log), int(channel.id), start, end, self._who):
            yield from found.reader.read(piece)
