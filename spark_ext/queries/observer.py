"""Spark's own log of a query, watched: the epochs that have been committed, and the rows that follow from them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from spark_ext.ledger.schema import EpochRow, FinishedRow
from spark_ext.model import query_offsets
from spark_ext.model.offsets import LoggedOffsets
from spark_ext.model.restarts import AvailableNowRun
from spark_ext.queries.records import channel_flags, final_flags, source_flag
from spark_ext.spark.logs import checkpoint_directory

if TYPE_CHECKING:
    from spark_ext.queries.history import EpochHistory
    from spark_ext.queries.spec import QuerySpec
    from spark_ext.spark.logs.spark_log import SparkLog


@dataclass(frozen=True)
class QueryPosition:
    """How far a query has come, by Spark's log."""

    query_id: str | None = None  # Spark's id; None before the first start
    epoch: int = -1  # the newest committed epoch; -1: none
    offsets: LoggedOffsets | None = None  # its offsets
    input_done: bool = False  # whether that epoch has all input, and the state is empty
    finished: frozenset[str] = frozenset()  # sources that have finished by that epoch while others run on

    @property
    def ended_sources(self) -> frozenset[str]:
        """Sources that have ended by that epoch."""
        if self.offsets is None:
            return frozenset()
        offsets = query_offsets.source_offsets(self.offsets)
        return frozenset(uid for uid, offset in offsets.items() if offset.ended)


RECENT = 128  # committed epochs whose offsets are remembered, for the cuts of checkpoints
LIST_EVERY = 1.0  # how often commits are listed, which finds those beyond a gap: Spark removes old ones from its log, s


class EpochObserver:
    """Reads Spark's log of one query, and keeps what of it has been seen and stored."""

    def __init__(
        self,
        spec: QuerySpec,
        log: SparkLog,
        lineage: int,
        incarnation: int,
        flagged: Mapping[str, int],
        *,
        history: EpochHistory,
        clock: Callable[[], float],
    ) -> None:
        self.lineage = lineage
        self.history = history
        self.ended_before: frozenset[str] = frozenset()  # sources that had ended before this start of the job
        self._spec = spec
        self._log = log
        self._incarnation = incarnation
        self._flagged = dict(flagged)
        self.position = QueryPosition()  # at the last poll
        self._clock = clock
        self._listed_at = clock()
        self._recent: deque[tuple[int, LoggedOffsets]] = deque(maxlen=RECENT)

    @property
    def recent(self) -> tuple[tuple[int, LoggedOffsets], ...]:
        """The newest committed epochs whose offsets were seen, ascending."""
        return tuple(self._recent)

    def logged(self) -> list[tuple[int, LoggedOffsets]]:
        """All committed epochs that Spark still has, ascending."""
        found = ((epoch, self._log.offsets(epoch)) for epoch in self._log.commits())
        return [(epoch, offsets) for epoch, offsets in found if offsets is not None]

    def committed_at(self, epoch: int) -> float | None:
        """When Spark recorded the commit of an epoch, s since 1970, by the clock of the storage; None: not known."""
        return self._log.committed_at(epoch)

    def restore(self, known: tuple[str, int] | None, operator: str) -> None:
        """Read what earlier runs have left: the facts from which this one continues."""
        left = checkpoint_directory.look(self._log, known, operator, self._spec.uid)
        self._move(QueryPosition(left.query_id, left.committed, left.offsets))
        self.ended_before = self.position.ended_sources
        self._remember(left.committed, left.offsets)
        self.history.begin_after(left.committed)
        # What an earlier run had committed and not written down when it ended: history has no gaps. Spark may have
        # removed the offsets of old epochs.
        for epoch in range(0 if known is None else known[1] + 1, left.committed + 1):
            self.history.committed(epoch, self._log.offsets(epoch), in_this_run=False)

    def recall(self, known: tuple[str, int]) -> None:
        """Take the position of a query that has finished from the ledger: its checkpoint may be gone."""
        query_id, epoch = known
        self._move(QueryPosition(query_id, epoch, self._log.offsets(epoch)))
        self._remember(epoch, self.position.offsets)

    def started(self, query_id: str) -> None:
        """Spark has started the query under this id."""
        self.position = replace(self.position, query_id=query_id)

    def newest_planned(self) -> LoggedOffsets | None:
        """Offsets of the newest epoch that Spark has planned, committed or not; None: none was planned."""
        newest = self._log.newest_offsets()
        return None if newest is None else self._log.offsets(newest)

    def run_since(self, committed: int, newest: LoggedOffsets | None) -> AvailableNowRun:
        """What a run with the trigger `availableNow`, or one that was stopped for a drain, has left.

        `committed` is the newest epoch that was committed before it, `newest` the newest one that is planned.
        """
        return AvailableNowRun(
            committed=newest is None or newest.epoch <= self.position.epoch, moved=self.position.epoch > committed
        )

    def adopt(self, spec: QuerySpec) -> None:
        """The query has been rebuilt, with the same operators."""
        self._spec = spec

    def poll(self) -> list[FinishedRow] | None:
        """Take in the epochs that have been committed since the last poll, however many they are.

        Returns new finished flags of channels, to be stored; None when no further epoch has been committed.
        """
        before, newest = self.position.epoch, self._newest_commit()
        logged = self._log.offsets(newest) if newest > before else None
        if logged is None:
            # Also when Spark removed that epoch in this moment, because it has committed many more.
            return None
        # All is read before anything is taken in: a read that fails leaves all of it to the next poll.
        between = {epoch: self._log.offsets(epoch) for epoch in range(before + 1, newest)}
        for epoch in range(before + 1, newest + 1):
            # Epochs that Spark has removed are known to be committed, and their offsets are not known any more.
            offsets = logged if epoch == newest else between[epoch]
            self.history.committed(epoch, offsets)
            self._remember(epoch, offsets)
        self._move(replace(self.position, epoch=newest, offsets=logged))
        flags = channel_flags(logged, self._flagged, self._row(self.position), datetime.now(timezone.utc))
        for flag in flags:
            self._flagged[flag.source] = flag.sequence
        return flags

    def _remember(self, epoch: int, offsets: LoggedOffsets | None) -> None:
        if offsets is not None:
            self._recent.append((epoch, offsets))

    def _newest_commit(self) -> int:
        """The newest committed epoch, by one lookup per epoch; by a listing when the next one may have been removed."""
        newest = self.position.epoch
        while self._log.is_committed(newest + 1):
            newest += 1
        now = self._clock()
        if now - self._listed_at >= LIST_EVERY or self.history.reported_upto > newest + 1:
            listed = self._log.newest_commit()
            self._listed_at = now
            return newest if listed is None else max(newest, listed)
        return newest

    def _move(self, position: QueryPosition) -> None:
        offsets, spec = position.offsets, self._spec
        done = (
            offsets is not None
            and bool(spec.sources)
            and not spec.natives
            and query_offsets.input_ended(offsets, (source.uid for source in spec.sources))
            and query_offsets.flushed(offsets, (end.uid for end in spec.ends))
        )
        finished = frozenset[str]() if offsets is None else self._finished(offsets)
        self.position = replace(position, input_done=done, finished=finished)

    def _finished(self, offsets: LoggedOffsets) -> frozenset[str]:
        spec, uids = self._spec, [source.uid for source in self._spec.sources]
        return query_offsets.finished_beside(offsets, uids, spec.watched, natives=bool(spec.natives))

    def source_flag(self, kind: str, uid: str, position: QueryPosition) -> FinishedRow:
        """The flag of a source that has finished by a position, with the epoch from which on that is so.

        For the query's worker. If Spark has removed that epoch, it is the first one that is known.
        """
        assert position.offsets is not None
        epoch = position.epoch
        while (before := self._log.offsets(epoch - 1)) is not None and uid in self._finished(before):
            epoch -= 1
        row = self._row(replace(position, epoch=epoch))
        return source_flag(kind, uid, position.offsets, row, datetime.now(timezone.utc))

    def final_flags(self, position: QueryPosition) -> list[FinishedRow]:
        """The flags that follow from the query's final checkpoint, and any of a channel that was not stored yet."""
        now, row = datetime.now(timezone.utc), self._row(position)
        if position.offsets is None:
            return [*final_flags(None, row, now)]
        return [*channel_flags(position.offsets, self._flagged, row, now), *final_flags(position.offsets, row, now)]

    def epoch_rows(self, *, everything: bool = False) -> Iterator[EpochRow]:
        """Rows of committed epochs, each once, in order; with `everything`, also those without figures so far."""
        shared = {
            "query": self._spec.uid,
            "query_id": self.position.query_id or "",
            "lineage": self.lineage,
            "incarnation": self._incarnation,
        }
        for epoch in self.history.ready(everything=everything):
            at = self._log.committed_at(epoch.number)
            yield epoch.row(datetime.fromtimestamp(at or time.time(), tz=timezone.utc), shared)

    def _row(self, position: QueryPosition) -> dict[str, Any]:
        """What the query's flags share."""
        return {
            "query": self._spec.uid,
            "epoch": position.epoch,
            "lineage": self.lineage,
            "incarnation": self._incarnation,
        }
