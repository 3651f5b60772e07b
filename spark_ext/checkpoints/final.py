"""The final checkpoint before close: a few steps, each recorded, so that a crash between two resumes right.

When all input of a query is committed and its state is empty:

1. operators hear of the end of input;
2. operators that require finalization are waited for, and given further epochs while they need them;
3. the final checkpoint is recorded: one row, the fact. The query is never started again;
4. the finished flags that follow from it are stored;
5. sources hear that their last epoch is safe, which Spark never tells them; sinks, that no further one comes;
6. the query stops, and its operators are closed.

The order is that of Flink's FLIP-147. Hooks of operators come at least once; the rows decide what is left to do.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_ext.control.events import request
from spark_ext.errors import SparkExtError, TransientError
from spark_ext.failpoints import reach
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.model import lifecycle, query_offsets
from spark_ext.model.checkpoint_metadata import CheckpointMetadata
from spark_ext.model.commits import Epoch
from spark_ext.model.lifecycle import FinalStep
from spark_ext.queries import operators
from spark_ext.sources.contract import Committed

if TYPE_CHECKING:
    from spark_ext.queries.run import QueryRun

log = logging.getLogger("spark_ext.job")


class FinalizationTimeout(TransientError):
    """An operator was not finalized in time: the query is neither finished nor closed, the next start goes on."""

    code = "FINALIZATION_TIMEOUT"


class FinalCheckpoint:
    """The last steps of one query. `advance` does one at a time and is called until `done`.

    Args:
        run: the query.
        passed: steps that an earlier run has recorded.
        checkpoint_id: of the final checkpoint; kept from the earlier run when there was one.
    """

    def __init__(self, run: QueryRun, passed: frozenset[str], checkpoint_id: int) -> None:
        self._run = run
        self._left = list(lifecycle.steps_left(passed))
        self._id = checkpoint_id
        self._told = bool(passed)
        self._requests = 0
        self._since = time.monotonic()

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
        if not self._told:
            reach("final.before_end_of_input")
            self._tell_end_of_input()
            self._told = True
            return True
        step = self._left[0]
        if step is FinalStep.COMPLETED and not self._all_finalized():
            return False
        reach(f"final.before_{step.value.lower()}")
        if step is FinalStep.COMPLETED:
            metadata = CheckpointMetadata(
                self._run.context.job,
                self._run.lineage,
                self._run.context.incarnation.number,
                {self._run.spec.uid: self._run.metadata()},
            )
            self._record(step, metadata)
        elif step is FinalStep.FLAGGED:
            self._run.context.write_behind.write_now([*self._run.flags(), self._row(step)])
        elif step is FinalStep.ACKNOWLEDGED:
            self._acknowledge()
            self._record(step)
        else:
            self._run.stop_spark()
            reach("final.stopped")
            self._close()
            self._record(step)
        reach(f"final.{step.value.lower()}")
        del self._left[0]
        return True

    def _row(self, step: FinalStep, metadata: CheckpointMetadata | None = None) -> CheckpointRow:
        return CheckpointRow(
            checkpoint_id=self._id,
            kind="final",
            query=self._run.spec.uid,
            epoch=self._run.committed,
            status=step.value,
            lineage=self._run.lineage,
            incarnation=self._run.context.incarnation.number,
            metadata=None if metadata is None else metadata.to_json(),
            at=datetime.now(timezone.utc),
            reason="",
        )

    def _record(self, step: FinalStep, metadata: CheckpointMetadata | None = None) -> None:
        self._run.context.write_behind.write_now([self._row(step, metadata)])

    def _tell_end_of_input(self) -> None:
        for source in self._run.spec.sources:
            operators.source(source.format, source.options).end_of_input()
        if self._run.spec.sink is not None:
            operators.sink(self._run.spec.sink.format, self._run.spec.sink.options).end_of_input()

    def _all_finalized(self) -> bool:
        self._run.observe()
        # An epoch that was asked for belongs to the final checkpoint: an operator may say that it is finalized as
        # soon as its own part of that epoch is done, which is before Spark has committed it.
        under_way = self._requests > self._final_so_far()
        waited_for = "an epoch that was asked for" if under_way else self._not_finalized()
        if waited_for is None:
            return True
        context = self._run.context
        limit = context.settings.finalization_timeout / 1000
        if time.monotonic() - self._since > limit:
            raise FinalizationTimeout(
                f"{waited_for} was not finalized within {limit:g} s of the end of input",
                operator=self._run.who,
                kept="all rows are committed; the query is not finished and its operators are not closed",
                do="see to what the operator waits for, and run the job again: it goes on waiting",
            )
        self._run.ensure_running()
        if not under_way and self._run.spec.sources:
            self._requests = self._final_so_far() + 1
            request(context.write_behind, self._run.spec.sources[0].uid, "final_epoch", self._requests)
        return False

    def _final_so_far(self) -> int:
        assert self._run.offsets is not None
        offsets = query_offsets.source_offsets(self._run.offsets)
        return max((offset.final for offset in offsets.values()), default=0)

    def _not_finalized(self) -> str | None:
        """The first operator that still has something to do, in words."""
        for source in self._run.spec.sources:
            if (
                operators.requires_finalization(source.format)
                and not operators.source(source.format, source.options).is_finalized()
            ):
                return f"source '{source.uid}'"
        sink = self._run.spec.sink
        if sink is not None and operators.requires_finalization(sink.format):
            built = operators.sink(sink.format, sink.options)
            if not built.is_finalized(self._epoch(sink.uid)):
                return f"sink '{sink.uid}'"
        return None

    def _epoch(self, sink: str) -> Epoch:
        mine = self._run.context.incarnation
        return Epoch(sink, self._run.lineage, self._run.query_id or "", self._run.committed, mine.number, final=True)

    def _acknowledge(self) -> None:
        assert self._run.offsets is not None
        offsets = query_offsets.source_offsets(self._run.offsets)
        for source in self._run.spec.sources:
            operators.source(source.format, source.options).on_epoch_committed(
                Committed.of(offsets[source.uid], final=True)
            )
        if self._run.spec.sink is not None:
            sink = self._run.spec.sink
            operators.sink(sink.format, sink.options).on_final_checkpoint(self._epoch(sink.uid))

    def _close(self) -> None:
        spec = self._run.spec
        closes = [operators.source(source.format, source.options).close for source in spec.sources]
        if spec.sink is not None:
            closes.append(operators.sink(spec.sink.format, spec.sink.options).close)
        for close in closes:
            try:
                close()
            except Exception as problem:
                # The rows are safe and the query has stopped: this is worth telling, and no more.
                self._run.context.write_behind.incident(self._run.who, "close", f"close: {problem}", "went on")


def as_error(problem: Exception, who: str) -> SparkExtError:
    """What a step's failure is called in the ledger."""
    if isinstance(problem, SparkExtError):
        return problem
    return TransientError(
        f"a step of the final checkpoint failed: {type(problem).__name__}: {problem}",
        operator=who,
        kept="all rows are committed; the steps that were recorded are not repeated",
        do="mend the cause and run the job again: it resumes at the step that failed",
    )
