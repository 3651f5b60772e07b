"""What follows the end of a Spark query: is it restarted, when, and for how long is a failure retried. Pure.

In a run that ends with what is there (`job.run(until="now")`) each source reads up to what it holds at the beginning.
A query that reads what others write follows them: it has caught up when it has found nothing left to read after those
that feed it had ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from spark_ext.errors import CommitError, PreparedLostError, SparkExtError, StorageError, TerminalError, TransientError
from spark_ext.failures.labels import Response
from spark_ext.model.lifecycle import State

RUN_AGAIN_MS = 1000  # wait before a drained query that has not committed what was planned is started again, ms


@dataclass(frozen=True)
class RestartPolicy:
    """When a failed query is restarted: exponential back-off, and a maximum of consecutive restarts.

    Each epoch that commits starts the count again, so that an epoch that fails every time (a poison epoch) is not
    retried blindly. The form is Flink's exponential-delay strategy. While an external server or disk is unavailable,
    restarts continue for a time, however many there are: a database failover takes a minute, and a query that cannot
    connect fails at once, so that a few attempts would be used up in seconds.
    """

    attempts: int = 3  # maximum of consecutive restarts without a committed epoch; 0: never restart
    initial_ms: int = 100  # wait before the first restart, ms
    factor: float = 4.0  # by how much each further wait is longer
    max_ms: int = 30_000  # longest wait, ms
    outage_ms: int = 300_000  # how long restarts go on in an outage, ms since the first failure; not if `attempts` is 0

    def delay_ms(self, failures: int, outage_ms: float | None = None) -> int | None:
        """How long to wait after the n-th consecutive failure (from 1), ms; None: give up.

        `outage_ms` is the time since the first of them if an outage is the cause.
        """
        patient = self.attempts > 0 and outage_ms is not None and outage_ms < self.outage_ms
        if failures > self.attempts and not patient:
            return None
        # The exponent stays small: a float would overflow in an outage of days.
        return min(self.max_ms, round(self.initial_ms * self.factor ** min(failures - 1, 30)))


def is_outage(error: SparkExtError | None) -> bool:
    """Whether something external is unavailable or full, or was until now: such failures are retried for longer."""
    return isinstance(error, (StorageError, CommitError, PreparedLostError))


@dataclass(frozen=True)
class Handling:
    """What is to be done about a failure, by its class or by the table of decisions."""

    response: Response = Response.RESTART
    attempts: int | None = None  # consecutive restarts; None: as the policy has it
    outage: bool = False  # whether restarts continue for as long as an outage may last
    most: int | None = None  # restarts within `window_ms`, committed epochs or not; None: any number
    window_ms: int = 3_600_000

    @classmethod
    def of(cls, error: SparkExtError | None) -> Handling | None:
        """What the class of one of our errors says; None if it says nothing."""
        if isinstance(error, TerminalError):
            return cls(Response.STOP)
        if is_outage(error):
            return cls(outage=True)
        return cls() if isinstance(error, TransientError) else None


class Cause(Enum):
    """Why a Spark query has ended."""

    FAILURE = "failure"
    STOPPED = "stopped"  # the job stopped it
    STEP = "step"  # it has not ended: a step of its final checkpoint has failed
    DRAINED = "drained"  # the job stopped it for a drain: the cut is the epoch that was planned last
    CAUGHT_UP = "caught up"  # it ends with what is there: by itself, or stopped; see `AvailableNowRun`
    OUTSIDE = "outside"  # somebody else stopped it

    @classmethod
    def of(cls, *, failed: bool, draining: bool, stopping: bool, ends_now: bool) -> Cause:
        """The cause, from how the query ended and what the job had asked of it."""
        if failed:
            return cls.FAILURE
        if stopping:
            return cls.STOPPED
        if draining:
            return cls.DRAINED
        return cls.CAUGHT_UP if ends_now else cls.OUTSIDE


@dataclass(frozen=True)
class Failures:
    """Consecutive failures: without a committed epoch in between."""

    count: int = 0
    since: float = 0.0  # when the first of them came, s on the clock of `decide`
    sign: str = ""  # what the last of them looked like, epoch included
    alike: int = 0  # how many of the last ones looked like it
    restarts: tuple[float, ...] = ()  # times of restarts, as old as `Handling.most` needs

    def and_one_at(self, now: float, sign: str = "") -> Failures:
        """With one more."""
        alike = self.alike + 1 if sign and sign == self.sign else 1
        return replace(self, count=self.count + 1, since=self.since if self.count else now, sign=sign, alike=alike)

    def progressed(self) -> Failures:
        """An epoch was committed: the next failure is the first."""
        return Failures(restarts=self.restarts)


@dataclass(frozen=True)
class AvailableNowRun:
    """What a run with the trigger `availableNow`, or one that was stopped for a drain, has left in Spark's log."""

    committed: bool = True
    moved: bool = True  # an epoch was committed in this run
    nothing_left: bool = True  # Spark found nothing to plan in any source, or has planned the one epoch that it was to
    repeated: bool = False  # it was to run one epoch, and that was one that an earlier run had planned
    upstream_ended: bool = True  # the queries that feed it had ended before this run of it began


ANY_RUN = AvailableNowRun()  # of a query without that trigger, and without a drain


class Action(Enum):
    """What follows the end of a Spark query."""

    RESTART = "restart"  # start it again after a wait
    RUN_AGAIN = "run again"  # start it again: what was planned is not committed yet, or was planned by an earlier run
    AWAIT_UPSTREAM = "await upstream"  # start it again when those that feed it have committed more, or have ended
    SUSPEND = "suspend"  # it has read what was there: its part of the run is done
    FINISH = "finish"  # its input has ended: the final checkpoint is next
    CANCEL = "cancel"  # leave it where it is; a later start of the job continues from there
    FAIL = "fail"  # it has failed for good


@dataclass(frozen=True)
class Decision:
    """What is done, and why."""

    action: Action
    reason: str = ""
    delay_ms: int = 0  # wait before a RESTART or RUN_AGAIN, ms
    failures: Failures = Failures()  # consecutive failures from here on


def decide(
    cause: Cause,
    error: SparkExtError | None,
    failures: Failures,
    policy: RestartPolicy,
    now: float,
    *,
    stopping: bool = False,
    draining: bool = False,
    run: AvailableNowRun = ANY_RUN,
    handling: Handling | None = None,
    sign: str = "",
) -> Decision:
    """What follows the end of a Spark query; `failures` are those before this one, `now` is monotonic, s.

    A failure is no reason for a restart while the job is stopping. If it is draining, what was planned when the drain
    came is part of the job: a sink may have decided on it, and shown a part of it. `run` is that of a query with the
    trigger `availableNow`, or of one that is drained.
    """
    if cause in (Cause.FAILURE, Cause.STEP):
        if stopping:
            return Decision(Action.CANCEL, "stopped; the query failed while it was being stopped", failures=failures)
        if draining and cause is Cause.FAILURE and run.committed:
            return Decision(Action.FINISH, "drained; the query failed while it was being stopped", failures=failures)
        handling = Handling.of(error) or handling or Handling()
        return _after_failure(error, failures.and_one_at(now, sign), policy, now, handling)
    if cause is Cause.DRAINED:
        if run.committed:
            return Decision(Action.FINISH, "drained", failures=failures)
        return Decision(Action.RUN_AGAIN, delay_ms=0 if run.moved else RUN_AGAIN_MS, failures=failures)
    if cause is Cause.STOPPED:
        return Decision(Action.CANCEL, "stopped", failures=failures)
    if cause is Cause.CAUGHT_UP and run.committed:
        if run.repeated:
            return Decision(Action.RUN_AGAIN, failures=failures)
        if run.nothing_left:
            return Decision(Action.SUSPEND if run.upstream_ended else Action.AWAIT_UPSTREAM, failures=failures)
    return Decision(Action.CANCEL, "the query was stopped from outside the job", failures=failures)


def _after_failure(
    error: SparkExtError | None, failures: Failures, policy: RestartPolicy, now: float, handling: Handling
) -> Decision:
    outage = (now - failures.since) * 1000 if handling.outage else None
    delay = None
    if handling.response is Response.RESTART_ONCE:
        delay = replace(policy, attempts=min(1, policy.attempts)).delay_ms(failures.count)
    elif handling.response is Response.RESTART:
        given = handling.attempts
        policy = policy if given is None else replace(policy, attempts=given)
        delay = policy.delay_ms(failures.count, outage)
    if delay is None:
        return Decision(Action.FAIL, f"{error}{_poison(failures)}", failures=failures)
    if handling.most is not None:
        recent = tuple(at for at in failures.restarts if (now - at) * 1000 < handling.window_ms)
        if len(recent) >= handling.most:
            reason = f"{error}\nrestarted {len(recent)} times within {handling.window_ms / 1000:g} s, the limit"
            return Decision(Action.FAIL, reason, failures=failures)
        failures = replace(failures, restarts=(*recent, now))
    return Decision(Action.RESTART, str(error), delay, failures)


def _poison(failures: Failures) -> str:
    return f"\na poison epoch: it has failed {failures.alike} times in the same way" if failures.alike > 1 else ""


@dataclass(frozen=True)
class Upstream:
    """What a query needs to know about those that feed it."""

    ended: bool = True  # whether they commit nothing more in this run
    epochs: int = 0  # a number that grows with each epoch that they commit


@dataclass(frozen=True)
class UntilNow:
    """What the queries of such a run share."""

    upstream: Callable[[str], Upstream] = lambda query: Upstream()  # by the uid of a query: about those that feed it
    unread: Callable[[str], str] = lambda query: ""
    """By the uid of a query: what has kept it from reading all that is there; "" for nothing. May read the ledger."""


@dataclass(frozen=True)
class Stands:
    """Where a query of the run stands."""

    state: State
    committed: int = -1


def upstream_of(
    producers: Collection[str], runs: Mapping[str, Stands], waiting: Mapping[str, Collection[str]]
) -> Upstream:
    """About the queries that feed another one; `waiting` are those not built, with those for whose end each waits."""

    def over(uid: str) -> bool:
        if uid in runs:
            return runs[uid].state.ended
        # Not built: it has finished and left the job, or never will be in this run.
        return uid not in waiting or any(stays_open(one) for one in waiting[uid])

    def stays_open(uid: str) -> bool:
        """Whether a query ends this run without having finished, so that what waits for its end is not built."""
        if uid in runs:
            return runs[uid].state.ended and runs[uid].state is not State.FINISHED
        return uid in waiting and over(uid)

    return Upstream(
        ended=all(over(uid) for uid in producers),
        epochs=sum(runs[uid].committed + 1 for uid in producers if uid in runs),
    )
