"""Aligned checkpoints of a running job: triggered, watched, completed or aborted, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from math import inf
from typing import TYPE_CHECKING, Any

from spark_ext.checkpoints.aligned import Aligned, Member, unstamped_feed
from spark_ext.checkpoints.unaligned import QueryLook
from spark_ext.errors import CheckpointError, FencedError, SparkExtError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.jobs.checkpointing.savepoint_requests import CheckpointRequest, unknown_end
from spark_ext.jobs.execution_graph import look_at
from spark_ext.ledger.kinds import CheckpointMode
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.model.checkpoint_plan import NotNow, Phase, Reason, plan_checkpoint
from spark_ext.model.lifecycle import State

if TYPE_CHECKING:
    from spark_ext.checkpoints.unaligned import Held
    from spark_ext.jobs.checkpointing.savepoint_requests import CompletionGate, Prepare, Savepoints
    from spark_ext.jobs.execution_graph import ExecutionGraph
    from spark_ext.jobs.linking.exchanges import Exchanges
    from spark_ext.model.dag import JobGraph
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun
    from spark_ext.queries.worker import Outcome


class _Pending:
    """The checkpoint that is under way."""

    def __init__(
        self, checkpoint: Aligned, aligned_by: float, by: float, requests: Sequence[CheckpointRequest]
    ) -> None:
        self.checkpoint = checkpoint
        self.triggered_at = datetime.now(timezone.utc)
        self.aligned_by = aligned_by  # until when it stays aligned, s, monotonic
        self.by = by
        self.requests = tuple(requests)
        self.folder = next((request.folder for request in requests if request.folder is not None), None)
        self.kind = "periodic" if self.folder is None else "savepoint"
        self.gate: CompletionGate | None = None  # set when its cut is complete, and is being recorded

    def see(self, members: Sequence[Member]) -> bool:
        """Take in how far the queries have come; returns whether others are to stamp the barrier now."""
        before, self.checkpoint = self.checkpoint, self.checkpoint.seen(members)
        return self.checkpoint.plan is not before.plan

    def record(self, gate: CompletionGate) -> None:
        """It is being recorded."""
        self.gate = gate


class AlignedCheckpoints:
    """For the coordinator's thread, but for `request`."""

    def __init__(
        self, context: JobContext, execution: ExecutionGraph, exchanges: Exchanges, savepoints: Savepoints
    ) -> None:
        self.failure: CheckpointError | None = None  # set when more have failed in a row than the job tolerates
        self._context, self._execution, self._exchanges, self._savepoints = context, execution, exchanges, savepoints
        self._pending: _Pending | None = None
        self._requests: list[CheckpointRequest] = []
        self._preparing: tuple[CheckpointRequest, int] | None = None
        self._prepared: bool | None = None
        self._lock = threading.Lock()
        self._failed = 0
        self._over = ""  # why no further checkpoints are taken; "" while they may be
        self._looked: dict[str, int] = {}  # by query, the newest epoch that was looked at: each is read once

    @property
    def under_way(self) -> bool:
        """Whether one is pending: no query that waits for others may be built then."""
        return self._pending is not None

    @property
    def held(self) -> Held:
        """The offsets of each query that has delivered its cut of the checkpoint under way.

        What is behind them may not be released until the checkpoint is recorded, however far the query has read since.
        """
        if self._pending is None:
            return {}
        return {query: place.offsets for query, place in self._pending.checkpoint.delivered.items()}

    def request(self, folder: str | None = None, prepare: Prepare | None = None) -> CheckpointRequest:
        """Ask for a checkpoint; for any thread. If one is under way, another one follows it."""
        made = CheckpointRequest(folder, prepare)
        with self._lock:
            if not self._over:
                self._requests.append(made)
        if self._over:
            self._refuse([made], self._over)
        self._context.wake.set()
        return made

    def tick(self, now: float) -> None:
        """Look how far the pending checkpoint has come, or trigger one that was asked for; `now` is s, monotonic."""
        if self._pending is not None:
            self._watch(self._pending, now)
            return
        if self._preparing is not None:
            if self._prepared is not None:
                (request, number), self._preparing = self._preparing, None
                if self._prepared:
                    self._trigger([request], now, number)
                else:
                    self._refuse([request], "it could not be prepared")
            return
        with self._lock:
            asked: list[CheckpointRequest] = []
            later: list[CheckpointRequest] = []
            for request in self._requests:
                # One checkpoint is one savepoint at most, and has been prepared for once.
                taken = request.folder is not None and any(other.folder is not None for other in asked)
                alone = bool(asked) and (request.prepare is not None or asked[0].prepare is not None)
                (later if taken or alone else asked).append(request)
            self._requests = later
        if asked and asked[0].prepare is not None:
            self._preparing, self._prepared = (asked[0], self._savepoints.take_id()), None
            asked[0].prepare(self._preparing[1], self._when_wanted)
        elif asked:
            self._trigger(asked, now)

    def _when_wanted(self, wanted: bool) -> None:
        self._prepared = wanted

    def _trigger(self, asked: list[CheckpointRequest], now: float, number: int | None = None) -> None:
        graph, runs = self._execution.graph, self._execution.runs
        phases = {run.spec.uid: Phase.of(run.state) for run in runs}
        plan = plan_checkpoint(graph, phases | dict.fromkeys(self._execution.waiting, Phase.GATED))
        members = self._members()
        feeding = self._unstamped(graph, members)
        if isinstance(plan, NotNow):
            self._refuse(asked, str(plan))
            return
        settings = self._context.checkpointing
        # What was prepared for takes effect behind this barrier: another cut is of no use.
        strict = any(request.prepare is not None for request in asked)
        aligned_timeout = None if strict else settings.aligned_timeout
        if feeding is not None and aligned_timeout is None:
            self._refuse(
                asked,
                f"query '{feeding}' writes an exchange, and has only sources of Spark's own, which carry no barrier, "
                "or others that have ended",
            )
            return
        by = now + settings.checkpoint_timeout / 1000
        aligned_by = inf if aligned_timeout is None else now + aligned_timeout / 1000
        checkpoint = Aligned(self._savepoints.take_id() if number is None else number, plan)
        self._pending = _Pending(checkpoint, aligned_by, by, asked)
        if aligned_timeout != 0:
            self._write_trigger(self._pending, members)
        reach(FailPoint.CHECKPOINT_TRIGGERED)
        self._watch(self._pending, now)

    def _watch(self, pending: _Pending, now: float) -> None:
        if pending.gate is not None:
            return  # it waits for nobody any more: whether it is complete is for those who record it to say
        members = self._members()
        spreads = pending.see(members)
        checkpoint = pending.checkpoint
        if not checkpoint.missing:
            reach(FailPoint.CHECKPOINT_CUT)
            looks = {run.spec.uid: _at(checkpoint, run) for run in self._execution.runs}
            self._pin(pending, CheckpointMode.ALIGNED, looks)
        elif now >= pending.aligned_by:
            # It has waited long enough: what was stamped stays valid, and the worker that keeps its files chooses a cut
            # of this moment.
            self._pin(pending, CheckpointMode.UNALIGNED, self._execution.looks())
        elif pending.aligned_by == inf and (hopeless := _hopeless(checkpoint, self._execution.runs)):
            self._abort(pending, hopeless, self._execution.runs)
        elif now >= pending.by:
            missing = ", ".join(sorted(checkpoint.missing))
            self._abort(pending, f"it did not complete in time; still missing: {missing}", self._execution.runs)
        elif spreads:
            self._write_trigger(pending, members)

    def _pin(self, pending: _Pending, mode: CheckpointMode, looks: Mapping[str, QueryLook]) -> None:
        def done(outcome: Outcome[None]) -> None:
            if isinstance(outcome.error, FencedError):
                raise outcome.error
            if pending is not self._pending:
                return  # it was aborted meanwhile
            error = outcome.error
            if error is not None:
                reason = error.what if isinstance(error, SparkExtError) else repr(error)
                self._abort(pending, reason, self._execution.runs)
                return
            reach(FailPoint.CHECKPOINT_RECORDED)
            self._pending, self._failed = None, 0
            for run in self._execution.runs:
                run.notify_checkpoint(number, completed=True)
            for request in pending.requests:
                request.complete(number)

        number, at = pending.checkpoint.number, pending.triggered_at
        pending.record(self._savepoints.pin(number, pending.kind, mode, looks, pending.folder, done, at))

    def _abort(self, pending: _Pending, reason: str, runs: Sequence[QueryRun]) -> None:
        operator = f"job '{self._context.job}', checkpoint {pending.checkpoint.number}"
        self._row(pending, "FAILED", None, reason)
        self._context.write_behind.incident(operator, "checkpoint", reason, "aborted")
        self._pending = None
        self._refuse(pending.requests, reason)
        for run in runs:
            run.notify_checkpoint(pending.checkpoint.number, completed=False)
        self._failed += 1
        tolerable = self._context.checkpointing.tolerable_failed_checkpoints
        if tolerable is not None and self._failed > tolerable:
            self.failure = CheckpointError(
                f"{self._failed} checkpoints in a row have failed; the last one: {reason}",
                operator=f"job '{self._context.job}'",
                kept="all committed epochs",
                do="find out what the named queries are waiting for, and start the job again; the setting "
                "tolerable_failed_checkpoints is how many may fail",
            )

    def _give_up(self, pending: _Pending, reason: str, runs: Sequence[QueryRun]) -> None:
        """Abort it, unless it has become complete, and only its row is on its way."""
        if pending.gate is None or pending.gate.give_up(reason):
            self._abort(pending, reason, runs)
            return
        self._pending = None
        for request in pending.requests:
            request.fail(unknown_end(self._context.job, f"checkpoint {pending.checkpoint.number}"))

    def end(self, runs: Sequence[QueryRun], reason: str) -> None:
        """The job is ending: what is pending is aborted, and nobody waits any longer."""
        if self._pending is not None:
            self._give_up(self._pending, reason, runs)
        with self._lock:
            # Nobody would ever look at a request that came later.
            asked, self._requests, self._over = self._requests, [], reason
        if self._preparing is not None:
            asked.append(self._preparing[0])
            self._preparing = None
        self._refuse(asked, reason)

    def _refuse(self, asked: Sequence[CheckpointRequest], reason: str) -> None:
        for request in asked:
            request.fail(
                CheckpointError(
                    f"no checkpoint was taken: {reason}",
                    operator=f"job '{self._context.job}'",
                    kept="all committed epochs; the job continues",
                    do="try again later",
                )
            )

    def _members(self) -> list[Member]:
        found = []
        for run in self._execution.runs:
            fed, recent = self._exchanges.read_by(run), run.recent
            roots = tuple(source.uid for source in run.spec.sources if source.uid not in fed)
            finished = run.state is State.FINISHED
            looked = self._looked.get(run.spec.uid, -1)
            new = tuple(one for one in recent if one[0] > looked) or recent[-1:]
            self._looked[run.spec.uid] = max((epoch for epoch, _ in recent), default=looked)
            left = bool(fed or roots) and not (_natives_left(run) and not self._feeds(run))
            found.append(Member(run.spec.uid, new, finished, left, fed, roots))
        return found

    def _feeds(self, run: QueryRun) -> bool:
        graph = self._execution.graph
        return any(graph.consumers(name) for name in graph[run.spec.uid].writes)

    def _unstamped(self, graph: JobGraph, members: Sequence[Member]) -> str | None:
        """A query by which those behind it would never meet a barrier."""
        left = (run.spec.uid for run in self._execution.runs if _natives_left(run) and self._feeds(run))
        return unstamped_feed(graph, {one.uid: one for one in members}) or next(left, None)

    def _write_trigger(self, pending: _Pending, members: Sequence[Member]) -> None:
        self._row(pending, "TRIGGERED", {"stamps": list(pending.checkpoint.stamps(members))})

    def _row(self, pending: _Pending, status: str, metadata: Any, reason: str = "") -> None:
        incarnation = self._context.incarnation
        self._context.write_behind.put_soon(
            CheckpointRow(
                checkpoint_id=pending.checkpoint.number,
                kind=pending.kind,
                status=status,
                lineage=incarnation.lineage,
                incarnation=incarnation.number,
                metadata=metadata,
                at=datetime.now(timezone.utc),
                reason=reason,
                mode=CheckpointMode.ALIGNED.value,
                triggered_at=pending.triggered_at,
            )
        )


def _natives_left(run: QueryRun) -> bool:
    """Whether one of Spark's own sources may run on for as long as it likes when all others of its query have ended."""
    spec, ends = run.spec, run.spec.available_now or run.state is not State.RUNNING
    ended = run.position.ended_sources
    return bool(spec.natives and spec.sources) and not ends and ended.issuperset(one.uid for one in spec.sources)


# States in which a query delivers no barrier any more.
_GONE = {State.CANCELED: Reason.CANCELED, State.SUSPENDED: Reason.SUSPENDED}


def _hopeless(checkpoint: Aligned, runs: Sequence[QueryRun]) -> str:
    """Why it cannot complete any more; "" as long as it may."""
    for uid in sorted(checkpoint.lost):
        return f"query '{uid}' has committed epochs that Spark deleted before they were looked at"
    for run in runs:
        # Of a job that is ending `end` says so.
        if run.spec.uid in checkpoint.missing and run.state in _GONE and not run.stopping:
            return str(NotNow(_GONE[run.state], run.spec.uid))
    return ""


def _at(checkpoint: Aligned, run: QueryRun) -> QueryLook:
    """A look at a query at the place that it has delivered: it may have committed any number of epochs since."""
    place, look = checkpoint.delivered.get(run.spec.uid), look_at(run)
    if place is None:
        return replace(look, exact=True)
    epochs = () if place.epoch is None or place.offsets is None else ((place.epoch, place.offsets),)
    return QueryLook(look.application, epochs, exact=True)
