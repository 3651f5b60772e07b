"""How far the consumers of an exchange have come, by Spark's own logs: what they have committed, and nothing less sure.

Also how full an exchange is, which is how its producer learns that it has to wait: by files alone, as its sources are
planned in processes of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_ext.errors import StateError
from spark_ext.exchange.positions import Front, rows_before
from spark_ext.model.offsets import SourceOffset
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
    """How many rows lie between the producer and its slowest consumer."""

    def __init__(self, log: ExchangeLog, consumers: Sequence[Consumer], partitions: int) -> None:
        self._log = log
        self._fronts = [CommittedFront(consumer, partitions) for consumer in consumers]

    def rows(self) -> int:
        """Rows that some consumer has not committed yet."""
        while True:
            # Positions first: entries before them may be released, but a position is never ahead of the log.
            fronts = [one.look() for one in self._fronts]
            state = self._log.look()
            try:
                before = [self._before(state, front) for front in fronts if front is not None]
                return state.total - min(before, default=state.total)
            except KeyError as gone:
                if self._log.look().released <= gone.args[0]:
                    what = f"entry {gone.args[0]} of the log is missing"
                    do = "restore the exchange's folder from a backup; files in it must not be deleted by hand"
                    kept = "everything that was committed"
                    raise StateError(what, operator="the exchange that the query writes", kept=kept, do=do) from None
                # It was released meanwhile, so its readers have come further.

    def _before(self, state: LogState, front: Front) -> int:
        first = front if front.entry >= state.released else Front(state.released, (0,) * len(front.rows))
        return rows_before(self._log.entry, state, first)
