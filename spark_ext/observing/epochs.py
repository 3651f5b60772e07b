"""The epochs of a query that others run: from its reports, and, where it can be read, from its checkpoint directory.

Neither alone is enough: a report may be dropped, and a checkpoint may be out of reach. Spark commits epochs in the
order of their numbers, so what either of them says of an epoch says the same of all before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from spark_ext.ledger.schema import EpochRow
from spark_ext.masking import logger
from spark_ext.queries.history import EpochHistory
from spark_ext.spark.logs.spark_log import SparkLog

if TYPE_CHECKING:
    from spark_ext.spark.watching.query_events import Hint

log = logger("spark_ext.observing")

LIST_EVERY: Final = 1.0
"""How often commits are listed, which finds those beyond a gap, s."""


def missed(commits: Iterable[tuple[int, float]], started: float, before: int | None, first: int | None) -> list[int]:
    """Which commits of a checkpoint that a run finds there, or has made since, are still to be recorded. Pure.

    Args:
        commits: number and time, s since 1970, of those that Spark still has.
        started: when the run began, s since 1970.
        before: the newest epoch that was recorded; None: the query was never seen.
        first: the first epoch that the run has reported; None: none yet.

    Returns:
        Their numbers, ascending. Of a query that was never seen those of earlier runs are not recorded.
    """
    if before is not None:
        return sorted(number for number, _ in commits if number > before)
    return sorted(number for number, at in commits if at >= started or (first is not None and number >= first))


def newest(before: int, reported: int, logged: int | None) -> int:
    """The newest committed epoch that is known. Pure.

    Args:
        reported: by Spark's reports; -1: none.
        logged: in the checkpoint directory; None if it is missing or cannot be read.
    """
    return max(before, reported, -1 if logged is None else logged)


class ObservedEpochs:
    """The epochs of one query in one lineage. For one thread.

    Args:
        clock: s; never goes back.
        divides: whether the parts of epochs are wanted.
    """

    def __init__(self, clock: Callable[[], float], *, divides: bool = False) -> None:
        self.committed = -1
        """The newest one that is known; -1: none."""
        self.history = EpochHistory(clock, divides)
        self._clock = clock
        self._log: SparkLog | None = None
        self._listed_at = 0.0
        self._unknown = True
        """Whether nothing says yet how far the query had come."""

    def begin(self, checkpoint: str, started: float, before: int | None, first: int | None) -> None:
        """A run has begun.

        Args:
            checkpoint: path or URI, as Spark has resolved it.
            started: when, s since 1970.
            before: the newest epoch that was recorded of this query; None: it was never seen.
            first: the first epoch that the run has reported; None: none yet.
        """
        self._log = opened(checkpoint)
        times = dict(self._commits())
        found = missed(times.items(), started, before, first)
        earlier = [number for number in times if number not in found]
        self.committed = max([-1 if before is None else before, self.committed, *earlier])
        self._unknown = before is None and self._log is None
        self.history.begin_after(max(self.history.reported_upto, self.committed))
        for number in found:
            if number > self.committed:
                # No figures come of what an earlier run has committed unobserved.
                own = times[number] >= started or (first is not None and number >= first)
                self._add(number, in_this_run=own)

    @property
    def readable(self) -> bool:
        """Whether the checkpoint directory can be read from here."""
        return self._log is not None

    def has_state(self) -> bool:
        """Whether an epoch that runs now continues from state."""
        with suppress(OSError):
            return self._log is not None and self.committed >= 0 and bool(self._log.names("state"))
        return False

    def settled(self) -> bool:
        """Whether every planned epoch is committed; False if that is unknown."""
        with suppress(OSError):
            planned = None if self._log is None else self._log.newest_offsets()
            return planned is None or planned <= self.committed
        return True

    def report(self, hint: Hint) -> None:
        """Take figures."""
        if self._unknown and hint.epoch is not None:
            self._unknown = False
            self.committed = max(self.committed, hint.epoch - 1)
            self.history.begin_after(max(self.history.reported_upto, self.committed))
        self.history.report(hint)

    def poll(self) -> bool:
        """Take in what has been committed since the last look; returns whether anything has."""
        found = newest(self.committed, self.history.reported_upto, self._newest_commit())
        if found <= self.committed:
            return False
        for epoch in range(self.committed + 1, found + 1):
            self._add(epoch)
        return True

    def rows(self, shared: Mapping[str, Any], *, everything: bool = False) -> list[EpochRow]:
        """Rows of committed epochs, each once, in order.

        Args:
            everything: also those whose figures have not come yet.
        """
        ready = self.history.ready(everything=everything)
        return [epoch.row(self._committed_at(epoch.number), shared) for epoch in ready]

    # -- within -------------------------------------------------------------------------------------------------------

    def _add(self, epoch: int, *, in_this_run: bool = True) -> None:
        offsets = None
        with suppress(Exception):  # removed since, or of a format that is not known
            offsets = None if self._log is None else self._log.offsets(epoch)
        self.history.committed(epoch, offsets, in_this_run=in_this_run)
        self.committed = epoch

    def _commits(self) -> list[tuple[int, float]]:
        with suppress(OSError):
            if self._log is not None:
                times = [(number, self._log.committed_at(number)) for number in self._log.commits()]
                return [(number, at) for number, at in times if at is not None]
        return []

    def _newest_commit(self) -> int | None:
        if self._log is None:
            return None
        try:
            found = self.committed
            while self._log.is_committed(found + 1):
                found += 1
            if self._clock() - self._listed_at >= LIST_EVERY:
                self._listed_at = self._clock()
                listed = self._log.newest_commit()
                found = found if listed is None else max(found, listed)
            return found
        except OSError:
            return None

    def _committed_at(self, epoch: int) -> datetime:
        at = None
        with suppress(OSError):
            at = None if self._log is None else self._log.committed_at(epoch)
        return datetime.now(timezone.utc) if at is None else datetime.fromtimestamp(at, tz=timezone.utc)


def opened(checkpoint: str) -> SparkLog | None:
    """A checkpoint directory for reading; None if it is somewhere that cannot be read from here."""
    try:
        found = SparkLog(checkpoint)
        found.names("commits")
        return found
    except Exception as problem:
        log.info("could not read checkpoint %s; using the reports of its query: %s", checkpoint, problem)
        return None
