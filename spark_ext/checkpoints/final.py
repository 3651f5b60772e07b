"""The final checkpoint before close: a few steps, each recorded, so that after a crash the remaining ones are taken.

When all input of a query is committed and its state is empty:

1. the operators' `end_of_input` is called;
2. operators that require finalization are waited for, and given further epochs while they need them;
3. the final checkpoint is recorded: one row, the fact. The query is never started again;
4. the finished flags that follow from it are stored;
5. the last epoch is acknowledged to the sources, which Spark never does, and the end to the sink;
6. the query stops, and its operators are closed.

The order is that of Flink's FLIP-147. Hooks of operators come at least once; the rows decide what is left to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Protocol

from spark_ext.control.events import request
from spark_ext.errors import SparkExtError, TransientError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.ledger.schema import CheckpointRow, FinishedRow
from spark_ext.model import lifecycle, query_offsets
from spark_ext.model.checkpoint_metadata import CheckpointMetadata, QueryMetadata
from spark_ext.model.lifecycle import FinalStep

if TYPE_CHECKING:
    from spark_ext.model.logged_offsets import LoggedOffsets
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.operator_hooks import OperatorHooks
    from spark_ext.queries.spec import QuerySpec


class FinalizationTimeout(TransientError):
    """An operator was not finalized in time: the query is neither finished nor closed; the next start continues."""

    code = "FINALIZATION_TIMEOUT"


class FinishingQuery(Protocol):
    """What the final checkpoint needs of a query; `QueryRun` has it."""

    @property
    def who(self) -> str:
        """Job and query, for messages."""

    @property
    def query_id(self) -> str | None:
        """Spark's id."""

    @property
    def committed(self) -> int:
        """The newest committed epoch."""

    @property
    def offsets(self) -> LoggedOffsets | None:
        """Its offsets."""

    def observe(self) -> None:
        """Take in the epochs that have been committed since the last look."""

    def ensure_running(self) -> None:
        """Start the Spark query unless it runs."""

    def stop_spark(self) -> None:
        """Stop the Spark query, if it runs."""

    def metadata(self) -> QueryMetadata:
        """Its part of a checkpoint."""

    def final_flags(self) -> list[FinishedRow]:
        """The finished flags that follow from its final checkpoint."""


class FinalCheckpoint:
    """The last steps of one query. `advance` takes one at a time and is called until `done`.

    Args:
        query: in the state FINISHING.
        spec: its specification.
        lineage: its lineage.
        operators: its operators' hooks.
        context: the job's.
        checkpoint_id: of the final checkpoint; kept from the earlier run when there was one.
        passed: steps that an earlier run has recorded.
        flagged: kind and source of flags, other than those of channels, that an earlier run has stored.
        clock: s; never goes back.
    """

    def __init__(
        self,
        query: FinishingQuery,
        spec: QuerySpec,
        lineage: int,
        operators: OperatorHooks,
        context: JobContext,
        checkpoint_id: int,
        *,
        passed: Collection[str] = (),
        flagged: Collection[tuple[str, str]] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._query = query
        self._spec = spec
        self._lineage = lineage
        self._operators = operators
        self._context = context
        self._id = checkpoint_id
        self._left = list(lifecycle.steps_left(passed))
        self._flagged = frozenset(flagged)
        self._end_announced = bool(passed)
        self._requests = 0
        self._clock = clock
        self._since = clock()

    @property
    def done(self) -> bool:
        """Whether all steps have been taken."""
        return not self._left

    def advance(self) -> bool:
        """Take the next step.

        Returns:
            False when it has to wait: for an operator that is not finalized.

        Raises:
            FinalizationTimeout: an operator was not finalized within the job's limit.
        """
        if not self._end_announced:
            reach(FailPoint.FINAL_BEFORE_END_OF_INPUT)
            self._operators.end_of_input()
            self._end_announced = True
            return True
        step = self._left[0]
        if step is FinalStep.COMPLETED and not self._all_finalized():
            return False
        reach(f"final.before_{step.value.lower()}")
        if step is FinalStep.COMPLETED:
            self._record(step, self._metadata())
        elif step is FinalStep.FLAGGED:
            self._context.write_behind.write_now([*self._missing_flags(), self._row(step)])
        elif step is FinalStep.ACKNOWLEDGED:
            assert self._query.offsets is not None
            self._operators.final_checkpoint(self._query.offsets, self._query.query_id or "", self._query.committed)
            self._record(step)
        else:
            self._query.stop_spark()
            reach(FailPoint.FINAL_STOPPED)
            self._close()
            self._record(step)
        reach(f"final.{step.value.lower()}")
        del self._left[0]
        return True

    def _metadata(self) -> CheckpointMetadata:
        context = self._context
        return CheckpointMetadata(
            context.job, self._lineage, context.incarnation.number, {self._spec.uid: self._query.metadata()}
        )

    def _missing_flags(self) -> list[FinishedRow]:
        return [flag for flag in self._query.final_flags() if (flag.kind, flag.source) not in self._flagged]

    def _row(self, step: FinalStep, metadata: CheckpointMetadata | None = None) -> CheckpointRow:
        return CheckpointRow(
            checkpoint_id=self._id,
            kind="final",
            query=self._spec.uid,
            epoch=self._query.committed,
            status=step.value,
            lineage=self._lineage,
            incarnation=self._context.incarnation.number,
            metadata=None if metadata is None else metadata.to_json(),
            at=datetime.now(timezone.utc),
            reason="",
        )

    def _record(self, step: FinalStep, metadata: CheckpointMetadata | None = None) -> None:
        self._context.write_behind.write_now([self._row(step, metadata)])

    def _all_finalized(self) -> bool:
        self._query.observe()
        # An epoch that was requested belongs to the final checkpoint: an operator may say that it is finalized as
        # soon as its own part of that epoch is done, which is before Spark has committed it.
        under_way = self._requests > self._final_so_far()
        waited_for = (
            "a requested epoch"
            if under_way
            else self._operators.not_finalized(self._query.query_id or "", self._query.committed)
        )
        if waited_for is None:
            return True
        context = self._context
        limit = context.settings.finalization_timeout / 1000
        if self._clock() - self._since > limit:
            raise FinalizationTimeout(
                f"{waited_for} was not finalized within {limit:g} s of the end of input",
                operator=self._query.who,
                kept="all rows are committed; the query is not finished and its operators are not closed",
                do="find out what the operator is waiting for, and run the job again: it continues to wait",
            )
        self._query.ensure_running()
        if not under_way and self._spec.sources:
            self._requests = self._final_so_far() + 1
            request(context.write_behind, self._spec.sources[0].uid, "final_epoch", self._requests)
        return False

    def _final_so_far(self) -> int:
        assert self._query.offsets is not None
        return query_offsets.final_epochs(self._query.offsets)

    def _close(self) -> None:
        for problem in self._operators.close():
            # The rows are safe and the query has stopped: nothing depends on it any more.
            self._context.write_behind.incident(self._query.who, "close", f"close: {problem}", "ignored")


def as_error(problem: Exception, who: str) -> SparkExtError:
    """The failure of a step as one of our errors, for the ledger."""
    if isinstance(problem, SparkExtError):
        return problem
    return TransientError(
        f"a step of the final checkpoint failed: {type(problem).__name__}: {problem}",
        operator=who,
        kept="all rows are committed; the steps that were recorded are not repeated",
        do="fix the cause and run the job again: it continues with the step that failed",
    )
