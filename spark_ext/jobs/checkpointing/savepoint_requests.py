"""Savepoints and retained checkpoints of a running job: asked for, pinned by a worker, recorded, and released again.

The worker that pins the files of a cut also releases exchanges, so nothing of the cut is released in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from spark_ext.checkpoints.pinning import not_writable, pin, refuse_used
from spark_ext.checkpoints.savepoint import retained_folder
from spark_ext.errors import CheckpointError, ConfigurationError, FencedError, SparkExtError
from spark_ext.jobs.checkpointing.retained import release_old
from spark_ext.jobs.checkpointing.savepoints import Cutting, Member, cut_metadata, describe
from spark_ext.ledger.kinds import CheckpointMode
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.schema import CheckpointRow, ExchangeRow, Row
from spark_ext.masking import logger
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.storage import Location, local_path

if TYPE_CHECKING:
    from spark_ext.checkpoints.unaligned import QueryLook, Taken
    from spark_ext.exchange.view import ExchangeView
    from spark_ext.jobs.execution_graph import ExecutionGraph
    from spark_ext.jobs.linking.exchanges import Exchanges
    from spark_ext.ledger import Ledger
    from spark_ext.model.checkpoint_metadata import CheckpointMetadata
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.worker import Outcome

log = logger("spark_ext.job")
Prepare = Callable[[int, Callable[[bool], None]], None]  # see `CheckpointRequest`


class CompletionGate:
    """Whether a checkpoint that is being recorded is complete or given up: decided once, by the first who says so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._completed = False
        self._given_up = ""

    def complete(self) -> None:
        """It is complete, for the thread that records it: what follows makes this known."""
        with self._lock:
            self._completed = not self._given_up
        if self._given_up:
            raise CheckpointError(
                f"the checkpoint was given up while it was being recorded: {self._given_up}",
                operator="the checkpoint",
                kept="all committed epochs",
                do="nothing: its caller has been told",
            )

    def give_up(self, reason: str) -> bool:
        """Nobody waits for it any longer; returns whether it is given up. If not, it is complete, or about to be."""
        with self._lock:
            self._given_up = self._given_up or ("" if self._completed else reason)
            return bool(self._given_up)

    @property
    def given_up(self) -> bool:
        """Whether the ledger says so already."""
        return bool(self._given_up)


class CheckpointRequest:
    """A checkpoint, or with a folder a savepoint, that somebody waits for.

    Args:
        prepare: called with its number before it is triggered, on the coordinator's thread; it is triggered once what
            was handed over with the number is called, with whether it is still wanted. No other one is triggered
            meanwhile.
    """

    def __init__(
        self, folder: str | None = None, prepare: Callable[[int, Callable[[bool], None]], None] | None = None
    ) -> None:
        self.folder, self.prepare = folder, prepare
        self.done = threading.Event()
        self.number: int | None = None  # of the checkpoint, once it is complete
        self.failure: SparkExtError | None = None

    def complete(self, number: int) -> None:
        """It is recorded, under this number."""
        self.number = number
        self.done.set()

    def fail(self, failure: SparkExtError) -> None:
        """It will not be, or nobody knows."""
        self.failure = failure
        self.done.set()

    def wait(self, timeout: float | None) -> int:
        """The number of the checkpoint, once it is complete; `timeout` in s, None: as long as it takes."""
        begin = time.monotonic()
        if not self.done.wait(timeout):
            raise TimeoutError(f"the checkpoint is not complete after {time.monotonic() - begin:.1f} s; it continues")
        if self.failure is not None:
            raise self.failure
        assert self.number is not None
        return self.number


class Savepoints:
    """For the coordinator's thread, but for `request`."""

    def __init__(
        self,
        context: JobContext,
        ledger: Ledger,
        execution: ExecutionGraph,
        exchanges: Exchanges,
        take_id: Callable[[], int],
    ) -> None:
        self._context, self._ledger, self._execution, self._exchanges = context, ledger, execution, exchanges
        self.take_id = take_id  # takes the number of the next checkpoint
        self._lock = threading.Lock()
        self._requests: list[CheckpointRequest] = []
        self._under_way: CheckpointRequest | None = None
        self._gate = CompletionGate()  # of the one that is under way
        self._over = ""  # why no further ones are taken; "" while they may be

    @cached_property
    def _memory(self) -> JobMemory:
        """For a checkpoint that keeps no files: it must not take longer the longer the job's history is."""
        return JobMemory.read(self._ledger)

    def request(self, folder: str) -> CheckpointRequest:
        """Ask for a savepoint at the newest consistent cut; for any thread."""
        made = CheckpointRequest(folder)
        with self._lock:
            if not self._over:
                self._requests.append(made)
        if self._over:
            self._fail(made, self._over)
        self._context.wake.set()
        return made

    def tick(self) -> None:
        """Begin the next one that was asked for."""
        if self._under_way is not None:
            return
        with self._lock:
            asked = self._requests.pop(0) if self._requests else None
        if asked is None:
            return
        self._under_way, number = asked, self.take_id()

        def done(outcome: Outcome[None]) -> None:
            self._under_way = None
            if outcome.error is None:
                asked.complete(number)
            elif isinstance(outcome.error, FencedError):
                self._fail(asked, str(outcome.error.what))
                raise outcome.error
            else:
                self._fail(asked, outcome.error)

        looks = self._execution.looks()
        self._gate = self.pin(number, "savepoint", CheckpointMode.UNALIGNED, looks, asked.folder, done)

    def pin(
        self,
        number: int,
        kind: str,
        mode: CheckpointMode,
        looks: Mapping[str, QueryLook],
        folder: str | None,
        then: Callable[[Outcome[None]], None],
        triggered_at: datetime | None = None,
    ) -> CompletionGate:
        """Take the newest cut that looks allow, keep what belongs to it, and record it.

        Without a folder it is kept only if the setting `retained_checkpoints` says so. `then` gets the outcome, on the
        coordinator's thread. As long as it is not complete, the gate gives it up.
        """
        gate = CompletionGate()
        context, members = self._context, [Member.of_run(run) for run in self._execution.runs]
        retained = context.checkpointing.retained_checkpoints
        place = folder
        if folder is None and retained:
            place = f"{retained_folder(context.state)}/{number}"

        def work(taken: Taken, views: Mapping[str, ExchangeView]) -> None:
            graph, links = self._execution.graph, self._exchanges.links
            cutting = Cutting(context.job, context.incarnation, number, kind, mode, taken, graph, members, links, views)
            try:
                if place is None:
                    metadata = cut_metadata(cutting, self._memory)
                    gate.complete()
                else:
                    what = describe(cutting, self._ledger)
                    spark = backend_of(members[0].spec.writer).frame(members[0].spec.writer).sparkSession
                    pin(spark, place, what, gate.complete)
                    metadata = what.metadata
                    self._exchanges.hold(place, metadata)
                context.write_behind.write_now(completed(cutting, metadata, triggered_at or taken.at, place))
            except Exception as problem:
                if not gate.given_up:
                    with suppress(Exception):  # what has gone wrong first is what the caller has to know
                        self._record_failure(cutting, problem, triggered_at or taken.at)
                raise
            if folder is None and retained:
                release_old(context.state, retained, context.incarnation, context.write_behind.write_now)

        what = f"checkpoint {number}" if place is None else f"savepoint {place}"
        self._exchanges.with_cut(what, looks, work, then)
        return gate

    def _record_failure(self, one: Cutting, problem: Exception, at: datetime) -> None:
        if isinstance(problem, FencedError):
            return
        reason = problem.what if isinstance(problem, SparkExtError) else f"{type(problem).__name__}: {problem}"
        self._context.write_behind.write_now([_row(one, "FAILED", None, at, None, reason)])
        operator = f"job '{one.job}', checkpoint {one.number}"
        self._context.write_behind.incident(operator, "checkpoint", reason, "given up")

    def end(self, reason: str) -> None:
        """The job is ending: nobody waits any longer for what has not begun."""
        with self._lock:
            asked, self._requests, self._over = self._requests, [], reason
        under_way, self._under_way = self._under_way, None
        if under_way is not None and not under_way.done.is_set():
            if self._gate.give_up(reason):
                self._fail(under_way, reason)
            else:
                under_way.fail(unknown_end(self._context.job, f"the savepoint {under_way.folder}"))
        for request in asked:
            self._fail(request, reason)

    def _fail(self, request: CheckpointRequest, why: str | Exception) -> None:
        if isinstance(why, SparkExtError):
            request.fail(why)
            return
        request.fail(
            CheckpointError(
                f"no savepoint was taken: {why}",
                operator=f"job '{self._context.job}'",
                kept="all committed epochs",
                do="try again; a job that has ended can take one too, with job.savepoint(path)",
            )
        )


def unknown_end(job: str, what: str) -> CheckpointError:
    """The error for who waits for a checkpoint that is complete, but not known to be recorded when the job ends."""
    return CheckpointError(
        f"the job has ended while {what} was being recorded",
        operator=f"job '{job}'",
        kept="all committed epochs",
        do="look it up in job.ledger.checkpoints(): it can be used if it is COMPLETED there",
    )


def completed(one: Cutting, metadata: CheckpointMetadata, at: datetime, place: str | None) -> list[Row]:
    """The rows of a checkpoint that is complete: last the fact, before it what it holds in exchanges if it is kept."""
    rows: list[Row] = []
    if place is not None:
        writes = {name: node.uid for node in one.graph for name in node.writes}
        epochs = {name: metadata.queries[query].epoch for name, query in writes.items() if query in metadata.queries}
        rows += [
            ExchangeRow(
                exchange=name,
                event="held",
                lineage=one.incarnation.lineage,
                epoch=epochs.get(name),
                position=part.first,
                checkpoint_id=one.number,
                incarnation=one.incarnation.number,
                at=datetime.now(timezone.utc),
            )
            for name, part in metadata.exchanges.items()
        ]
    return [*rows, _row(one, "COMPLETED", metadata.to_json(), at, place)]


def _row(
    one: Cutting, status: str, metadata: Any, triggered: datetime, place: str | None, reason: str = ""
) -> CheckpointRow:
    return CheckpointRow(
        checkpoint_id=one.number,
        kind=one.kind,
        status=status,
        lineage=one.incarnation.lineage,
        incarnation=one.incarnation.number,
        metadata=metadata,
        at=datetime.now(timezone.utc),
        reason=reason,
        mode=one.mode.value,
        triggered_at=triggered,
        rows_in_flight=one.taken.rows_in_flight,
        path=place,
    )


def check_root(path: str, roots: Sequence[str], job: str, state: str) -> None:
    """Refuse a savepoint over HTTP that is not below a root; without roots, below the state directory's parent."""
    allowed = roots or (Location.of(state, {}).uri.rpartition("/")[0],)
    if not any(root and _is_below(Location.of(path, {}).uri, Location.of(root, {}).uri) for root in allowed):
        raise ConfigurationError(
            f"over HTTP, a savepoint may only be written below {', '.join(allowed)}",
            operator=f"job '{job}'",
            kept="the folder and the job are unchanged",
            do="give a folder there, or name its root in the setting 'savepoint_roots'",
        )


def _is_below(folder: str, root: str) -> bool:
    place, base = local_path(folder), local_path(root)
    if place is not None and base is not None:
        return place.resolve().is_relative_to(base.resolve())
    return folder.startswith(f"{root.rstrip('/')}/") and ".." not in folder.split("/")


def check_folder(path: str, job: str, state: str) -> str:
    """The folder of a savepoint, absolute; refuses one that is in use, or in the state directory."""
    folder, operator = Location.of(str(path), {}).uri, f"job '{job}'"
    if _is_below(f"{folder.rstrip('/')}/", state):
        raise ConfigurationError(
            f"the folder {folder} is inside the state directory, which a restore replaces in part",
            operator=operator,
            kept="the folder and the job are unchanged",
            do="give the savepoint a folder outside of it; on the same file system files are linked, not copied",
        )
    try:
        refuse_used(folder, operator)
    except OSError as problem:
        raise not_writable(folder, operator, problem) from problem
    return folder
