"""What a query does about its failures: of an epoch, a start, or a step of the final checkpoint."""

from __future__ import annotations

from spark_ext.errors import SparkExtError, StallError
from spark_ext.failures.labels import Response
from spark_ext.model.lifecycle import State
from spark_ext.model.restarts import ANY_RUN, Action, AvailableNowRun, Cause, Decision
from spark_ext.queries.describe_failure import Diagnosis, diagnosed
from spark_ext.queries.restartable import RestartableQuery


class FailingQuery(RestartableQuery):
    """The part of a query that judges failures, decides what follows, records it, and carries it out."""

    response: Response | None = None
    """What is to be done about the failure for which it was given up; None: it was not."""

    def _diagnosed(self, failure: BaseException) -> Diagnosis:
        return diagnosed(failure, self.who, self.committed, self._context.classifier, self.spec.uid)

    def _failure_incident(self, what: str, action: str, found: Diagnosis, *, last: bool = False) -> str:
        """Record a failure; returns the incident's id.

        Args:
            what: has happened.
            action: is taken.
            found: the diagnosis.
            last: whether the query is given up. That is another incident than the one that was retried: listeners are
                notified of it, and not of each attempt.
        """
        fingerprint = f"{found.fingerprint}-last" if last else found.fingerprint
        return self._context.write_behind.incident(
            self.who, "failure", what, action, found.stored, found.verdict.labels, fingerprint=fingerprint
        )

    def _decide(self, cause: Cause, found: Diagnosis | None, now: float, run: AvailableNowRun = ANY_RUN) -> None:
        if found is None:
            self._act(self._restarts.after(cause, None, now, run), None)
        else:
            decision = self._restarts.after(cause, found.error, now, run, found.handling, found.sign)
            self._act(decision, found)

    def _act(self, decision: Decision, found: Diagnosis | None) -> None:
        """Carry out what was decided after an end or a failure: every failure takes this way."""
        if decision.action is Action.FAIL:
            assert found is not None
            self.fail(found.error, found, decision.reason)
        elif decision.action is Action.RESTART:
            action = f"restart {decision.failures.count} in {decision.delay_ms} ms"
            assert found is not None
            incident = self._failure_incident(decision.reason, action, found)
            if self._state in (State.RUNNING, State.RESTARTING):
                # One that was built late, and could not be started yet, has not run.
                self._become(State.RESTARTING, decision.reason, incident)
        elif decision.action is Action.RUN_AGAIN:
            if decision.delay_ms and self._state is not State.FINISHING:
                self._become(State.RESTARTING, "it ended without a committed epoch")
        elif decision.action is Action.FINISH:
            if self._state is not State.FINISHING:
                self._become(State.FINISHING, decision.reason)
        elif decision.action is Action.CANCEL:
            self._become(State.CANCELED, decision.reason)

    def look_closer(self, *, paused: bool) -> None:
        """See `ObservedQuery`; a query that is stalled fails, if the job's settings say so."""
        super().look_closer(paused=paused)
        stall = self.watched.stall
        if stall is not None and self._context.settings.on_stall == "fail" and self._state is State.RUNNING:
            error = StallError(
                f"no progress since {stall.since:%H:%M:%S} UTC: {stall.holder.what}",
                operator=self.who,
                kept="all committed epochs",
                do="look at the stacks of the incident, correct what holds the query, and start the job again",
            )
            self.fail(error)

    def fail(self, error: SparkExtError, found: Diagnosis | None = None, reason: str = "") -> None:
        """The query has failed for good; Spark's query is stopped if it runs.

        Args:
            error: why.
            found: the diagnosis, for the ledger's incident.
            reason: why it is given up; "": as the error says.
        """
        self._error = error
        found = found or self._diagnosed(error)
        self.response = found.handling.response
        incident = self._failure_incident(reason or str(error), "stopped: FAILED", found, last=True)
        self._become(State.FAILED, reason or str(error), incident)
        if self._live:
            self._worker.do("stop", self._query.stop, self._stop_returned)
