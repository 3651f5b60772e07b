"""From a row of the ledger to the changes of metrics that follow from it. A row that is given again changes nothing.

The rows of a running job are facts that it records anyway: counters made of them agree with the ledger. A row may be
given twice, when a write has failed and is repeated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from spark_ext.ledger.schema import BadRowsRow, CheckpointRow, EpochRow, ExecutionStateRow, FinishedRow, IncidentRow
from spark_ext.metrics import catalogue as m
from spark_ext.metrics.book import Change
from spark_ext.model.latency import Marker
from spark_ext.model.lifecycle import State
from spark_ext.views.incidents import class_of, query_of

GAPS: Final = 1_000  # how many gaps are remembered in a series of numbers; older ones count as seen
_STAYS: Final = frozenset({State.SCHEDULING.value, State.DEPLOYING.value, State.RESTORING.value})
"""States whose durations are a distribution."""

_RECENT: Final = 1_000  # how many incidents are remembered: one that is given again comes soon after


class Numbers:
    """A set of integers that mostly arrive in order: it stays small even for large sets."""

    def __init__(self) -> None:
        self._first: list[int] = []
        self._last: list[int] = []

    def add(self, number: int) -> bool:
        """Add a number; returns whether it is new."""
        at = bisect_right(self._first, number) - 1
        if at >= 0 and number <= self._last[at]:
            return False
        joins_before = at >= 0 and self._last[at] == number - 1
        joins_after = at + 1 < len(self._first) and self._first[at + 1] == number + 1
        if joins_before and joins_after:
            self._last[at] = self._last[at + 1]
            del self._first[at + 1], self._last[at + 1]
        elif joins_before:
            self._last[at] = number
        elif joins_after:
            self._first[at + 1] = number
        else:
            self._first.insert(at + 1, number)
            self._last.insert(at + 1, number)
            if len(self._first) > GAPS + 1:
                del self._first[1], self._last[0]
        return True

    @property
    def gaps(self) -> int:
        """How many gaps are remembered."""
        return max(0, len(self._first) - 1)


class Tally:
    """Makes changes of rows. For one thread at a time."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._numbers: dict[tuple[object, ...], Numbers] = {}
        self._states: dict[str, tuple[str, Any]] = {}
        self._incidents: deque[str] = deque(maxlen=_RECENT)
        self._newest: dict[str, int] = {}

    def take(self, row: Any) -> list[Change]:
        """The changes that follow from a row; none from a row that was given before, or is of another table.

        A latency marker that has passed a commit is given once, as it is in no table.
        """
        if isinstance(row, EpochRow):
            return list(self._epoch(row))
        if isinstance(row, CheckpointRow):
            return list(self._checkpoint(row))
        if isinstance(row, FinishedRow):
            return list(self._finished(row))
        if isinstance(row, ExecutionStateRow):
            return list(self._state(row))
        if isinstance(row, IncidentRow):
            return list(self._incident(row))
        if isinstance(row, BadRowsRow):
            return list(self._bad_rows(row))
        if isinstance(row, Marker):
            return [Change(m.LATENCY, (self._job, row.query, row.source), row.ms / 1000)]
        return []

    def _new(self, number: int, *key: object) -> bool:
        return self._numbers.setdefault(key, Numbers()).add(number)

    def _epoch(self, row: EpochRow) -> Iterator[Change]:
        if not self._new(row.epoch, EpochRow, row.query, row.lineage):
            return
        labels = self._job, row.query
        yield Change(m.EPOCHS, labels)
        yield Change(m.INPUT_ROWS, labels, row.input_rows or 0)
        yield Change(m.LATE_ROWS, labels, row.late_rows or 0)
        if row.duration_ms is not None:
            yield Change(m.EPOCH_DURATION, labels, row.duration_ms / 1000)
        for stage, spent in (row.spent_ms or {}).items():
            yield Change(m.EPOCH_STAGES, (*labels, stage), spent / 1000)
        for part, spent in (row.parts_ms or {}).items():
            yield Change(m.EPOCH_PARTS, (*labels, part), spent / 1000)
        if row.epoch >= self._newest.get(row.query, -1):
            self._newest[row.query] = row.epoch
            yield Change(m.LAST_EPOCH, labels, row.epoch)
            yield Change(m.LAST_COMMIT, labels, row.committed_at.timestamp())

    def _checkpoint(self, row: CheckpointRow) -> Iterator[Change]:
        if row.status not in ("COMPLETED", "FAILED"):
            return
        if not self._new(row.checkpoint_id, CheckpointRow, str(row.status)):
            return
        labels = self._job, str(row.kind), str(row.mode or "")
        yield Change(m.CHECKPOINTS, (*labels, "completed" if row.status == "COMPLETED" else "failed"))
        if row.status == "COMPLETED" and row.triggered_at is not None:
            yield Change(m.CHECKPOINT_DURATION, labels, max(0.0, (row.at - row.triggered_at).total_seconds()))

    def _finished(self, row: FinishedRow) -> Iterator[Change]:
        if row.kind == "channel" and self._new(row.sequence, FinishedRow, row.query, row.source, row.lineage):
            yield Change(m.CHANNELS_FINISHED, (self._job, row.query, row.source))

    def _bad_rows(self, row: BadRowsRow) -> Iterator[Change]:
        if self._new(row.epoch, BadRowsRow, row.query, row.source, row.lineage):
            yield Change(m.BAD_ROWS, (self._job, row.query, row.source), row.rows)
            for rule, rows in (row.rules or {}).items():
                yield Change(m.RULE_FAILURES, (self._job, row.query, rule), rows)

    def _state(self, row: ExecutionStateRow) -> Iterator[Change]:
        entered = row.state, row.since
        if self._states.get(row.operator) == entered:
            return
        if row.operator and row.operator not in self._states:
            # From 0 on: Prometheus does not see that a counter has increased which was not there before.
            labels = self._job, row.operator
            for metric in (m.EPOCHS, m.INPUT_ROWS, m.LATE_ROWS, m.RESTARTS):
                yield Change(metric, labels, 0)
            yield Change(m.INCIDENTS, (*labels, "failure", "ERROR"), 0)
        before = self._states.get(row.operator)
        self._states[row.operator] = entered
        if before is not None and before[0] in _STAYS and row.since > before[1]:
            seconds = (row.since - before[1]).total_seconds()
            yield Change(m.STATE_DURATION, (self._job, row.operator, before[0]), seconds)
        if row.operator and row.state == State.RESTARTING.value:
            yield Change(m.RESTARTS, (self._job, row.operator))

    def _incident(self, row: IncidentRow) -> Iterator[Change]:
        if row.incident_id in self._incidents:
            return
        self._incidents.append(row.incident_id)
        query = query_of({"operator": row.operator})
        yield Change(m.INCIDENTS, (self._job, query, str(row.type), row.severity))
        if row.type == "failure":
            yield Change(m.FAILURES, (self._job, query, class_of(row.labels), origin_of(row.labels)))


def origin_of(labels: Any) -> str:
    """Whose a failure was, by the labels of its incident."""
    value = str((labels or {}).get("origin"))
    return value if value in m.LABELS["origin"].values else m.NONE
