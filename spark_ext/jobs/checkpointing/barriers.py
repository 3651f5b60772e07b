"""Aligned checkpoints of a running job: triggered, watched, completed or aborted, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from math import inf
from typing import TYPE_CHECKING, Any

from spark_ext.checkpoints.aligned import Aligned, Member, Place, unstamped_feed
from spark_ext.checkpoints.unaligned import QueryLook
from spark_ext.errors import CheckpointError, FencedError, SparkExtError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.jobs.checkpointing.checkpoint_request import Request
from spark_ext.jobs.checkpointing.periodic import part_of, point_of
from spark_ext.jobs.checkpointing.savepoint_requests import unknown_end
from spark_ext.ledger.kinds import CheckpointMode
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.model.checkpoint_metadata import CheckpointMetadata, QueryMetadata
from spark_ext.model.checkpoint_plan import NotNow, Phase, Reason, plan_checkpoint
from spark_ext.model.lifecycle import State
from spark_ext.queries.observer import QueryPosition

if TYPE_CHECKING:
    from spark_ext.checkpoints.unaligned import Held, Taken
    from spark_ext.jobs.checkpointing.savepoint_requests import Pinned, Savepoints, Verdict
    from spark_ext.model.dag import JobGraph
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun
    from spark_ext.queries.worker import Outcome


@dataclass
class _Pending:
    checkpoint: Aligned
    triggered_at: datetime
    aligned_by: float
    """Until when it stays aligned, s, monotonic."""
    by: float
    requests: list[Request]
    verdict: Verdict | None = None
    """Its cut is complete, and is being recorded; None: not yet."""

    @property
    def folder(self) -> str | None:
        """Of the savepoint that it is to be; None: it is none."""
        return next((request.folder for request in self.requests if request.folder is not None), None)


class AlignedCheckpoints:
    """For the coordinator's thread, but for `request`.

    Args:
        context: the job's.
        take_id: the next checkpoint's id.
        graph: the job's, as it is now.
        reads: the exchange of each source of a query that reads one.
        newest: the newest unaligned cut.
        savepoints: record what has been delivered, and keep it where that is wanted.
    """

    def __init__(
        self,
        context: JobContext,
        take_id: Callable[[], int],
        graph: Callable[[], JobGraph],
        reads: Callable[[QueryRun], Mapping[str, str]],
        newest: Callable[[], Taken | None],
        savepoints: Savepoints | None = None,
    ) -> None:
        self.failure: CheckpointError | None = None
        """Set when more checkpoints in a row have failed than the job tolerates."""
        self._context = context
        self._take_id = take_id
        self._graph = graph
        self._reads = reads
        self._newest = newest
        self._savepoints = savepoints
        self._pending: _Pending | None = None
        self._requests: list[Request] = []
        self._preparing: tuple[Request, int] | None = None
        self._prepared: bool | None = None
        self._lock = threading.Lock()
        self._failed = 0
        self._over = ""
        """Why there are no further checkpoints; "" as long as there may be."""
        self._looked: dict[str, int] = {}
        """By query, the newest epoch that was looked at: each is read once."""

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

    def request(
        self,
        folder: str | None = None,
        prepare: Callable[[int, Callable[[bool], None]], None] | None = None,
    ) -> Request:
        """Ask for a checkpoint; for any thread. If one is under way, another one follows it.

        Args:
            folder: of the savepoint that it is to be; None: it is none.
            prepare: see `Request`.
        """
        made = Request(folder, prepare)
        with self._lock:
            if not self._over:
                self._requests.append(made)
        if self._over:
            self._refuse([made], self._over)
        self._context.wake.set()
        return made

    def tick(self, now: float, runs: Sequence[QueryRun], waiting: Sequence[str]) -> None:
        """Look how far the pending checkpoint has come, or trigger one that was asked for.

        Args:
            now: s, monotonic.
            runs: the queries.
            waiting: queries that are not built yet.
        """
        if self._pending is not None:
            self._watch(self._pending, now, runs)
            return
        if self._preparing is not None:
            self._when_prepared(*self._preparing, now, runs, waiting)
            return
        with self._lock:
            asked: list[Request] = []
            later: list[Request] = []
            for request in self._requests:
                # One checkpoint is one savepoint at most, and has been prepared for once.
                taken = request.folder is not None and any(other.folder is not None for other in asked)
                alone = bool(asked) and (request.prepare is not None or asked[0].prepare is not None)
                (later if taken or alone else asked).append(request)
            self._requests = later
        if asked and asked[0].prepare is not None:
            self._preparing, self._prepared = (asked[0], self._take_id()), None
            asked[0].prepare(self._preparing[1], self._when_wanted)
        elif asked:
            self._trigger(asked, now, runs, waiting)

    def _when_wanted(self, wanted: bool) -> None:
        self._prepared = wanted

    def _when_prepared(
        self, request: Request, number: int, now: float, runs: Sequence[QueryRun], waiting: Sequence[str]
    ) -> None:
        if self._prepared is None:
            return
        self._preparing = None
        if self._prepared:
            self._trigger([request], now, runs, waiting, number)
        else:
            self._refuse([request], "it could not be prepared")

    def _trigger(
        self,
        asked: list[Request],
        now: float,
        runs: Sequence[QueryRun],
        waiting: Sequence[str],
        number: int | None = None,
    ) -> None:
        graph = self._graph()
        phases = {run.spec.uid: Phase.of(run.state) for run in runs} | dict.fromkeys(waiting, Phase.GATED)
        plan = plan_checkpoint(graph, phases)
        members = self._members(runs)
        feeding = self._unstamped(graph, members, runs)
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
        at = datetime.now(timezone.utc)
        checkpoint = Aligned(self._take_id() if number is None else number, plan)
        self._pending = _Pending(checkpoint, at, aligned_by, by, asked)
        if aligned_timeout != 0:
            self._write_trigger(self._pending, members)
        reach(FailPoint.CHECKPOINT_TRIGGERED)
        self._watch(self._pending, now, runs)

    def _watch(self, pending: _Pending, now: float, runs: Sequence[QueryRun]) -> None:
        if pending.verdict is not None:
            return  # it waits for nobody any more: whether it is complete is for those who record it to say
        before = pending.checkpoint
        members = self._members(runs)
        pending.checkpoint = after = before.seen(members)
        if after.complete:
            self._complete(pending, runs)
        elif now >= pending.aligned_by and self._savepoints is not None:
            # A cut of this moment, which the worker that keeps its files chooses.
            looks = {run.spec.uid: look_at(run) for run in runs}
            self._pin(pending, CheckpointMode.UNALIGNED, looks, runs)
        elif now >= pending.aligned_by and (taken := self._newest()) and taken.at > pending.triggered_at:
            self._turn_unaligned(pending, runs, taken)
        elif pending.aligned_by == inf and (hopeless := _hopeless(after, runs)):
            self._abort(pending, hopeless, runs)
        elif now >= pending.by:
            missing = ", ".join(sorted(after.missing))
            self._abort(pending, f"it did not complete in time; still missing: {missing}", runs)
        elif after.plan is not before.plan:
            self._write_trigger(pending, members)

    def _complete(self, pending: _Pending, runs: Sequence[QueryRun]) -> None:
        checkpoint = pending.checkpoint
        reach(FailPoint.CHECKPOINT_CUT)
        if self._savepoints is not None:
            self._pin(pending, CheckpointMode.ALIGNED, {run.spec.uid: _at(checkpoint, run) for run in runs}, runs)
            return
        parts = {}
        for run in runs:
            place = checkpoint.delivered.get(run.spec.uid, Place(None, None))
            if run.spec.uid in checkpoint.delivered:
                epoch = -1 if place.epoch is None else place.epoch
                parts[run.spec.uid] = run.metadata(QueryPosition(run.query_id, epoch, place.offsets), finished=False)
            else:
                parts[run.spec.uid] = run.metadata()
        self._row(pending, "COMPLETED", self._metadata(parts))
        self._completed(pending, runs)

    def _turn_unaligned(self, pending: _Pending, runs: Sequence[QueryRun], taken: Taken) -> None:
        """It has waited long enough: what was stamped stays valid, and the cut is one that need not wait."""
        parts = {run.spec.uid: part_of(run, point_of(run, taken), taken) for run in runs}
        self._row(pending, "COMPLETED", self._metadata(parts), taken=taken)
        self._completed(pending, runs)

    def _pin(
        self, pending: _Pending, mode: CheckpointMode, looks: Mapping[str, QueryLook], runs: Sequence[QueryRun]
    ) -> None:
        assert self._savepoints is not None

        def done(outcome: Outcome[Pinned]) -> None:
            if isinstance(outcome.error, FencedError):
                raise outcome.error
            if pending is not self._pending:
                return  # it was aborted meanwhile
            if outcome.error is None:
                self._completed(pending, runs)
            else:
                error = outcome.error
                self._abort(pending, error.what if isinstance(error, SparkExtError) else repr(error), runs)

        kind = "periodic" if pending.folder is None else "savepoint"
        number, at = pending.checkpoint.number, pending.triggered_at
        pending.verdict = self._savepoints.pin(number, kind, mode, runs, looks, pending.folder, done, at)

    def _metadata(self, parts: dict[str, QueryMetadata]) -> Any:
        incarnation = self._context.incarnation
        return CheckpointMetadata(self._context.job, incarnation.lineage, incarnation.number, parts).to_json()

    def _completed(self, pending: _Pending, runs: Sequence[QueryRun]) -> None:
        reach(FailPoint.CHECKPOINT_RECORDED)
        self._pending, self._failed = None, 0
        for run in runs:
            run.notify_checkpoint(pending.checkpoint.number, completed=True)
        for request in pending.requests:
            request.number = pending.checkpoint.number
            request.done.set()

    def _abort(self, pending: _Pending, reason: str, runs: Sequence[QueryRun]) -> None:
        who = f"job '{self._context.job}', checkpoint {pending.checkpoint.number}"
        self._row(pending, "FAILED", None, reason)
        self._context.write_behind.incident(who, "checkpoint", reason, "aborted")
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
        if pending.verdict is None or pending.verdict.give_up(reason):
            self._abort(pending, reason, runs)
            return
        self._pending = None
        for request in pending.requests:
            request.failure = unknown_end(self._context.job, f"checkpoint {pending.checkpoint.number}")
            request.done.set()

    def end(self, runs: Sequence[QueryRun], reason: str) -> None:
        """The job is ending: what is pending is aborted, and nobody waits any longer.

        Args:
            runs: the queries.
            reason: why.
        """
        if self._pending is not None:
            self._give_up(self._pending, reason, runs)
        with self._lock:
            # Nobody would ever look at a request that came later.
            asked, self._requests, self._over = self._requests, [], reason
        if self._preparing is not None:
            asked.append(self._preparing[0])
            self._preparing = None
        self._refuse(asked, reason)

    def _refuse(self, asked: Sequence[Request], reason: str) -> None:
        for request in asked:
            request.failure = CheckpointError(
                f"no checkpoint was taken: {reason}",
                operator=f"job '{self._context.job}'",
                kept="all committed epochs; the job continues",
                do="try again later",
            )
            request.done.set()

    def _members(self, runs: Sequence[QueryRun]) -> list[Member]:
        found = []
        for run in runs:
            fed = dict(self._reads(run))
            roots = tuple(source.uid for source in run.spec.sources if source.uid not in fed)
            finished = run.state is State.FINISHED
            recent = run.recent
            looked = self._looked.get(run.spec.uid, -1)
            new = tuple(one for one in recent if one[0] > looked) or recent[-1:]
            self._looked[run.spec.uid] = max((epoch for epoch, _ in recent), default=looked)
            left = bool(fed or roots) and not (_natives_left(run) and not self._feeds(run))
            found.append(Member(run.spec.uid, new, finished, left, fed, roots))
        return found

    def _feeds(self, run: QueryRun) -> bool:
        graph = self._graph()
        return any(graph.consumers(name) for name in graph[run.spec.uid].writes)

    def _unstamped(self, graph: JobGraph, members: Sequence[Member], runs: Sequence[QueryRun]) -> str | None:
        """A query by which those behind it would never meet a barrier."""
        left = (run.spec.uid for run in runs if _natives_left(run) and self._feeds(run))
        return unstamped_feed(graph, {one.uid: one for one in members}) or next(left, None)

    def _write_trigger(self, pending: _Pending, members: Sequence[Member]) -> None:
        self._row(pending, "TRIGGERED", {"stamps": list(pending.checkpoint.stamps(members))})

    def _row(self, pending: _Pending, status: str, metadata: Any, reason: str = "", taken: Taken | None = None) -> None:
        mode = CheckpointMode.ALIGNED if taken is None else CheckpointMode.UNALIGNED
        incarnation = self._context.incarnation
        self._context.write_behind.put_soon(
            CheckpointRow(
                checkpoint_id=pending.checkpoint.number,
                kind="periodic" if pending.folder is None else "savepoint",
                query="",
                epoch=None,
                status=status,
                lineage=incarnation.lineage,
                incarnation=incarnation.number,
                metadata=metadata,
                at=datetime.now(timezone.utc),
                reason=reason,
                mode=mode.value,
                triggered_at=pending.triggered_at,
                rows_in_flight=None if taken is None else taken.rows_in_flight,
            )
        )


def _natives_left(run: QueryRun) -> bool:
    """Whether one of Spark's own sources may run on for as long as it likes when all others of its query have ended."""
    spec, ends = run.spec, run.spec.available_now or run.state is not State.RUNNING
    ended = run.position.ended_sources
    return bool(spec.natives and spec.sources) and not ends and ended.issuperset(one.uid for one in spec.sources)


_GONE = {State.CANCELED: Reason.CANCELED, State.SUSPENDED: Reason.SUSPENDED}
"""States in which a query delivers no barrier any more."""


def _hopeless(checkpoint: Aligned, runs: Sequence[QueryRun]) -> str:
    """Why it cannot complete any more; "" as long as it may."""
    for uid in sorted(checkpoint.lost):
        return f"query '{uid}' has committed epochs that Spark deleted before they were looked at"
    for run in runs:
        # Of a job that is ending `end` says so.
        if run.spec.uid in checkpoint.missing and run.state in _GONE and not run.stopping:
            return str(NotNow(_GONE[run.state], run.spec.uid))
    return ""


def look_at(run: QueryRun) -> QueryLook:
    """A look at a query as it is now."""
    return QueryLook(run.application, run.recent, run.state is State.FINISHED, run.committed)


def _at(checkpoint: Aligned, run: QueryRun) -> QueryLook:
    """A look at a query at its place in the checkpoint.

    The place was kept when the query delivered it: it may have committed any number of epochs since.
    """
    place = checkpoint.delivered.get(run.spec.uid)
    if place is None:
        return replace(look_at(run), exact=True)
    epochs = () if place.epoch is None or place.offsets is None else ((place.epoch, place.offsets),)
    return QueryLook(run.application, epochs, exact=True)
