"""The final checkpoint before close: a few steps, each recorded, so that after a crash the remaining ones are taken.

When all input of a query is committed and its state is empty (a source that has finished before, and was closed while
the query ran on, takes no part; see `queries/source_ends.py`):

1. further epochs come while timers fire or the state changes, and then the operators' `end_of_input` is called;
2. operators that require finalization are waited for, and given further epochs while they need them;
3. the final checkpoint is recorded: one row, the fact. The query is never started again;
4. the finished flags that follow from it are stored;
5. the last epoch is acknowledged to the sources, which Spark never does, and the end to the sink;
6. the query stops, and its operators are closed.

The order is that of Flink's FLIP-147. Hooks of operators come at least once; the rows decide what is left to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Final

from spark_ext.control.job_events import request
from spark_ext.errors import FinalizationTimeout
from spark_ext.failpoints import FailPoint, reach
from spark_ext.ledger.kinds import FinishedKind
from spark_ext.ledger.schema import CheckpointRow, FinishedRow, Row
from spark_ext.model import lifecycle, query_offsets
from spark_ext.model.checkpoint_metadata import CheckpointMetadata
from spark_ext.model.lifecycle import FinalStep

if TYPE_CHECKING:
    from spark_ext.model.offsets import LoggedOffsets
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.observer import QueryPosition
    from spark_ext.queries.operator_hooks import OperatorHooks
    from spark_ext.queries.run import QueryRun


FIGURES_WITHIN: Final = 10.0  # how long Spark's figures of an epoch are waited for, s; it is then assumed to have fired
FIRE_EVERY: Final = 1.0  # pause between two epochs that wait for timers in processing time, s


class Advance(Enum):
    """The outcome of an attempt to take the next step."""

    STEP = "step"  # it was taken
    WAIT = "wait"  # what the last epoch has done to the state is not known, or the next one is not due
    EPOCH = "epoch"  # a further epoch has been requested, and is not committed: the query has to run


class FinalCheckpoint:
    """The last steps of one query: `advance` takes one at a time, on the query's worker, until `done`."""

    def __init__(
        self,
        query: QueryRun,
        operators: OperatorHooks,
        context: JobContext,
        checkpoint_id: int,
        *,
        passed: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._query, self._spec, self._lineage = query, query.spec, query.lineage
        self._operators, self._context, self._id = operators, context, checkpoint_id
        self._left = list(lifecycle.steps_left(passed))
        self._end_announced = bool(passed)
        self._requests = 0
        self._writing: FinalStep | None = None
        self._rows: list[Row] = []
        self._clock, self._since = clock, clock()
        self._requested_at = self._since
        self._awaited: int | None = None  # the first epoch that tells what is left in the state

    @property
    def done(self) -> bool:
        """Whether all steps have been taken."""
        return not self._left

    @property
    def recorded(self) -> bool:
        """Whether the fact is recorded: the query has finished, and Spark is not needed any more."""
        return FinalStep.COMPLETED not in self._left

    def advance(self, position: QueryPosition) -> Advance:
        """Take the next step."""
        if not self._end_announced:
            waits = self._empty_state(position)
            if waits is not None:
                return waits
            reach(FailPoint.FINAL_BEFORE_END_OF_INPUT)
            self._operators.end_of_input()
            self._end_announced, self._since = True, self._clock()
            return Advance.STEP
        step = self._left[0]
        waits = self._wait_for_operators(position) if step is FinalStep.COMPLETED else None
        if waits is not None:
            return waits
        reach(f"final.before_{step.value.lower()}")
        if step is FinalStep.COMPLETED:
            self._record(step, position, lambda: [self._row(step, position, self._metadata(position))])
        elif step is FinalStep.FLAGGED:
            self._record(step, position, lambda: [*self._missing_flags(position), self._row(step, position)])
        elif step is FinalStep.ACKNOWLEDGED:
            if position.offsets is not None:
                self._operators.final_checkpoint(position.offsets, position.query_id or "", position.epoch)
            self._record(step, position)
        else:
            self._query.stop_spark()
            reach(FailPoint.FINAL_STOPPED)
            self._close()
            self._record(step, position)
        del self._left[0]
        reach(f"final.{step.value.lower()}")
        return Advance.STEP

    def _metadata(self, position: QueryPosition) -> CheckpointMetadata:
        context = self._context
        return CheckpointMetadata(
            context.job, self._lineage, context.incarnation.number, {self._spec.uid: self._query.metadata(position)}
        )

    def _missing_flags(self, position: QueryPosition) -> list[FinishedRow]:
        flags, there = self._query.final_flags(position), self._query.finished_sources.flags
        return [flag for flag in flags if (flag.kind, flag.source) not in there]

    def _row(
        self, step: FinalStep, position: QueryPosition, metadata: CheckpointMetadata | None = None
    ) -> CheckpointRow:
        return CheckpointRow(
            checkpoint_id=self._id,
            kind="final",
            query=self._spec.uid,
            epoch=position.epoch if position.epoch >= 0 else None,
            status=step.value,
            lineage=self._lineage,
            incarnation=self._context.incarnation.number,
            metadata=None if metadata is None else metadata.to_json(),
            at=datetime.now(timezone.utc),
        )

    def _record(
        self, step: FinalStep, position: QueryPosition, rows: Callable[[], Sequence[Row]] | None = None
    ) -> None:
        """Write the rows of a step. A further attempt has the same rows: the ledger adds those that are missing."""
        if step is not self._writing:
            self._rows = [self._row(step, position)] if rows is None else list(rows())
            self._writing = step
        self._context.write_behind.write_now(self._rows)

    def _empty_state(self, position: QueryPosition) -> Advance | None:
        """One more epoch at the end of time, if the last one may have left timers that are due; None: it has not."""
        offsets, spec, now = position.offsets, self._spec, self._clock()
        late = now - self._since > self._context.settings.finalization_timeout / 1000
        if offsets is None or not spec.ends or spec.natives or late:
            return None
        if self._requests > query_offsets.final_epochs(offsets):
            return Advance.EPOCH
        if self._awaited is None:
            self._awaited = position.epoch  # Spark runs one after the other for timers in processing time
        known = self._query.state_after(self._awaited)
        if known is None and self._query.live and now - self._requested_at < FIGURES_WITHIN:
            return Advance.WAIT
        rows, changes = known or (None, 1)
        rows = int(spec.has_timers) if rows is None else rows
        if not rows or not (changes or spec.fires_timers):
            return None
        if not changes and now - self._requested_at < FIRE_EVERY:
            return Advance.WAIT
        self._request(offsets)
        return Advance.EPOCH

    def _request(self, offsets: LoggedOffsets) -> None:
        self._requests, self._requested_at = query_offsets.final_epochs(offsets) + 1, self._clock()
        self._awaited = None
        request(self._context.control, f"source:{self._asked}", "final_epoch", self._requests)

    def _wait_for_operators(self, position: QueryPosition) -> Advance | None:
        """What has to be waited for before the fact can be recorded; None: nothing."""
        offsets = position.offsets
        if offsets is None:
            return None  # without an epoch there is nothing to finalize
        # An epoch that was requested belongs to the final checkpoint: an operator may say that it is finalized as
        # soon as its own part of that epoch is done, which is before Spark has committed it.
        under_way = self._requests > query_offsets.final_epochs(offsets)
        waited_for = (
            "a requested epoch" if under_way else self._operators.not_finalized(position.query_id or "", position.epoch)
        )
        if waited_for is None:
            return None
        limit = self._context.settings.finalization_timeout / 1000
        if self._clock() - self._since > limit:
            raise FinalizationTimeout(
                f"{waited_for} was not finalized within {limit:g} s of the end of input",
                operator=self._query.operator,
                kept="all rows are committed; the query is not finished and its operators are not closed",
                do="find out what the operator is waiting for, and run the job again: it continues to wait",
            )
        if not under_way:
            self._request(offsets)
        return Advance.EPOCH

    @property
    def _asked(self) -> str:
        """The source that makes further epochs: one that has not finished before the query, and still looks for events.

        The source that has finished last is not flagged before the query's final checkpoint.
        """
        flagged = self._query.finished_sources.of(FinishedKind.SOURCE)
        return next(source.uid for source in self._spec.sources if source.uid not in flagged)

    def _close(self) -> None:
        for problem in self._operators.close():
            # The rows are safe and the query has stopped: nothing depends on it any more.
            self._context.write_behind.incident(self._query.operator, "close", f"close: {problem}", "ignored")
