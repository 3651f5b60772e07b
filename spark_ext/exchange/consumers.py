"""How far the consumers of an exchange have come, by Spark's own logs: what they have committed, and nothing less sure.

Also how full an exchange is, which is how its producer learns that it has to wait: by files alone, as its sources are
planned in processes of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_ext.errors import StateError
from spark_ext.exchange.positions import Front, as_read_by, rows_before
from spark_ext.model.offsets import SourceOffset
from spark_ext.model.pressure import Level
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog

if TYPE_CHECKING:
    from spark_ext.exchange.contract import ExchangeLog
    from spark_ext.exchange.entries import LogState
    from spark_ext.model.offsets import LoggedOffsets


@dataclass(frozen=True)
class Consumer:
    """A source that reads an exchange."""

    uid: str
    checkpoint: str  # path or URI of the checkpoint directory of its query
    query: str


def front_of(logged: LoggedOffsets | None, uid: str, partitions: int) -> Front | None:
    """Where a consumer stands after an epoch, or before its first one; None: it has read everything, to the seal."""
    offset: SourceOffset | None = None if logged is None else source_offsets(logged).get(uid)
    if offset is None or not (offset.running or offset.ended):
        return Front(0, (0,) * partitions)
    if offset.ended:
        return None
    return Front.of({name: state.at for name, state in offset.running.items()}, partitions, f"source '{uid}'")


class CommittedFront:
    """The committed position of one consumer, looked up on file; a look costs little when nothing has changed."""

    def __init__(self, consumer: Consumer, partitions: int) -> None:
        self._consumer, self._partitions = consumer, partitions
        self._log = SparkLog(consumer.checkpoint)
        self._epoch = -1
        self._front: Front | None = Front(0, (0,) * partitions)

    def look(self) -> Front | None:
        """Its position; None: it has read everything."""
        if self._front is None:
            return None
        # Spark deletes old commits: when the last one seen is gone, the next one may be gone as well.
        seen = self._epoch >= 0 and self._log.is_committed(self._epoch)
        if seen and not self._log.is_committed(self._epoch + 1):
            return self._front
        newest = self._log.newest_commit()
        logged = None if newest is None else self._log.offsets(newest)
        if newest is not None and logged is not None:
            self._epoch, self._front = newest, front_of(logged, self._consumer.uid, self._partitions)
        return self._front


class Fill:
    """How much lies between the producer and its slowest consumer; a look costs as much as is new."""

    def __init__(self, log: ExchangeLog, consumers: Sequence[Consumer], partitions: int) -> None:
        self._log = log
        self._fronts = [(one, CommittedFront(one, partitions)) for one in consumers]
        self._sizes = _Sizes(log)

    def level(self) -> Level:
        """What some consumer has not committed yet."""
        while True:
            # Positions first: entries before them may be released, but a position is never ahead of the log.
            fronts = [(consumer, one.look()) for consumer, one in self._fronts]
            state = self._log.look()
            try:
                self._sizes.follow(state)
                stored = self._sizes.between(state.released, state.last)
                left = [(consumer, self._within(state, front)) for consumer, front in fronts if front is not None]
                before = [
                    (rows_before(as_read_by(self._log.entry, consumer.uid), state, front), consumer.query, front)
                    for consumer, front in left
                ]
                if not before:
                    return Level(stored=stored)
                rows, query, front = min(before, key=lambda one: one[0])
                return Level(state.total - rows, self._bytes_from(state, front), stored, query)
            except KeyError as gone:
                if self._log.look().released <= gone.args[0]:
                    what = f"entry {gone.args[0]} of the log is missing"
                    do = "restore the exchange's folder from a backup; files in it must not be deleted by hand"
                    kept = "everything that was committed"
                    operator = "the exchange that the query writes"
                    raise StateError(what, operator=operator, kept=kept, do=do) from None
                # It was released meanwhile, so its readers have come further.

    def _within(self, state: LogState, front: Front) -> Front:
        return front if front.entry >= state.released else Front(state.released, (0,) * len(front.rows))

    def _bytes_from(self, state: LogState, front: Front) -> int:
        """Bytes of visible entries from a position on; of an entry that was read in part, in proportion to its rows."""
        found, number = 0, front.entry
        entry = self._log.entry(number) if any(front.rows) else None
        if entry is not None:
            found -= entry.bytes * sum(front.rows) // max(1, entry.row_count)
        for cut in state.cuts:  # ascending
            if cut.number >= number:
                found += self._sizes.between(number, cut.after)
                number = cut.number + 1
        return max(0, found + self._sizes.between(number, state.last))


class _Sizes:
    """The sizes of a log's entries, as running sums over those that are not released."""

    def __init__(self, log: ExchangeLog) -> None:
        self._log = log
        self._first = 0
        self._sums = [0]  # bytes of the entries from the first one up to, and without, each number

    def follow(self, state: LogState) -> None:
        """Take what is new, and forget what is released."""
        end = self._first + len(self._sums) - 1
        if not self._first <= state.released <= end or end > state.last + 1:
            self._first, self._sums = state.released, [0]
        elif state.released - self._first > len(self._sums) // 2:
            del self._sums[: state.released - self._first]
            self._first = state.released
        for number in range(self._first + len(self._sums) - 1, state.last + 1):
            entry = self._log.entry(number)
            self._sums.append(self._sums[-1] + (0 if entry is None else entry.bytes))

    def between(self, first: int, last: int) -> int:
        """Bytes of the entries from one to another, both included."""
        begin, end = max(first, self._first) - self._first, last + 1 - self._first
        return self._sums[end] - self._sums[begin] if end > begin else 0
