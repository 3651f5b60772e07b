"""The final checkpoint of one query, step by step in the query's worker."""

from __future__ import annotations

from spark_ext.checkpoints.final import Advance, FinalCheckpoint
from spark_ext.errors import FinalizationTimeout
from spark_ext.queries.run import QueryRun


class Finishing:
    """Gives a query's worker one step after the other. For the coordinator's thread.

    Args:
        run: in the state FINISHING.
        final: its final checkpoint.
    """

    def __init__(self, run: QueryRun, final: FinalCheckpoint) -> None:
        self._run = run
        self._final = final

    def tick(self, now: float) -> None:
        """Give the next step if it can be taken now.

        Args:
            now: s, on the run's clock.
        """
        run, final = self._run, self._final
        if not run.may_finish(now):
            return
        position = run.position

        def step() -> Advance | FinalizationTimeout:
            try:
                return final.advance(position)
            except FinalizationTimeout as late:
                return late

        run.take_step("a step of the final checkpoint", step, self._taken)

    def _taken(self, came: Advance | FinalizationTimeout) -> None:
        run = self._run
        if run.state.ended:
            return
        if isinstance(came, FinalizationTimeout):
            run.fail(came)
        elif came is Advance.STEP:
            run.step_taken(recorded=self._final.recorded)
            if self._final.done:
                run.finished()
        elif came is Advance.EPOCH:
            run.ensure_running()
