"""The start of a job: take the next incarnation, read what earlier ones left, claim the targets, start the queries.

Everything that can be refused is refused before an epoch runs; a start that is refused leaves no query behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_ext.checkpoints.final import FinalCheckpoint
from spark_ext.control.log import ControlLog
from spark_ext.errors import ConfigurationError, SparkExtError, StateError, TransientError
from spark_ext.failures.labels import FailureType
from spark_ext.jobs.checkpointing.retained import unused_number
from spark_ext.jobs.controlling.controller import unread
from spark_ext.jobs.controlling.replacement import as_planned
from spark_ext.jobs.execution_graph import ExecutionGraph
from spark_ext.jobs.starting.assembly import assembled
from spark_ext.jobs.starting.begin import begin, in_all, stop_older
from spark_ext.jobs.starting.flow import consumers_of
from spark_ext.jobs.starting.plan import StartOptions, StartPlan, planned
from spark_ext.listeners.job_listener import JobListener
from spark_ext.masking import logger
from spark_ext.model.lifecycle import State
from spark_ext.model.until import UntilNow
from spark_ext.observing.bookkeeping import Bookkeeping, begin_bookkeeping
from spark_ext.queries.assembly import query_run
from spark_ext.queries.context import JobContext
from spark_ext.queries.describe_failure import diagnosed
from spark_ext.queries.run import QueryRun
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.session import registry
from spark_ext.storage import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.jobs.composition import Composition
    from spark_ext.jobs.coordinator import Coordinator
    from spark_ext.ledger import Ledger
    from spark_ext.ledger.memory import QueryMemory
    from spark_ext.metrics.job_metrics import JobMetrics
    from spark_ext.queries.run import QueryRun
    from spark_ext.queries.spec import QuerySpec
    from spark_ext.settings import JobSettings
    from spark_ext.spark.watching.query_events import Hint

__all__ = ["StartOptions", "needs_spark", "start_job"]

log = logger("spark_ext.job")


def start_job(
    spark: SparkSession,
    name: str,
    ledger: Ledger,
    composition: Composition,
    settings: JobSettings,
    options: StartOptions,
    *,
    metrics: JobMetrics | None = None,
    announce: Callable[[JobContext, Coordinator], None] = lambda context, coordinator: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Coordinator:
    """Start all queries that have not finished. The steps are those of `docs/architecture.md`.

    Args:
        metrics: of the run; None: the settings want none.
        stopping: whether the job has been asked to stop before that.
    """
    tap: Callable[[object], None] = _ignore if metrics is None else metrics.tap
    execution = ExecutionGraph()
    books = begin_bookkeeping(
        spark,
        name,
        ledger,
        settings,
        lambda: execution.runs,
        None if metrics is None else metrics.tap,
        takeover=options.takeover,
        other_hosts=options.other_hosts,
    )
    write_behind = books.context.write_behind
    undo: list[Callable[[], object]] = [
        write_behind.flush,
        partial(books.writer.end, "the start was refused"),
        write_behind.notify_last,
    ]
    try:
        # What waits and what may fail comes after this `try`: a start that is given up has ended in the ledger as well.
        # A job that is stopped meanwhile starts nothing, and what the older one still runs is left as it is.
        halted = not stop_older(_older(spark, ledger.uri), books.context, stopping)
        control = ControlLog(ledger, books.context.incarnation.fence, composition.uids)
        plan = planned(books, composition, control, options, halted=halted)
        context = _context(books, control, plan, options, execution)
        finals = _supervise(plan, context, execution, halted=halted)
        listener = JobListener(partial(_report, execution, context))
        remove_listener = partial(spark.streams.removeListener, listener)
        pollers = books.pollers()
        at_end = (*(() if metrics is None else (metrics.end,)), remove_listener, *(one.close for one in pollers))
        coordinator, parts = assembled(books, composition, control, plan, context, execution, finals, tap, at_end)
        undo.insert(0, coordinator.refuse)
        waiting = [run for run in execution.runs if needs_spark(run, drained=coordinator.drained(run.lineage))]
        _stop_if_asked(coordinator, parts.controller.stop_requested, name, halted=halted)
        announce(context, coordinator)
        begin(waiting, context, coordinator, late=not plan.past.definitions)
        if not coordinator.stopping:
            parts.exchanges.register()
            if plan.past.definitions:
                books.writer.append(plan.past.definitions)
        spark.streams.addListener(listener)
        undo.insert(1, remove_listener)
        in_all(waiting, lambda run: run.start(), context, coordinator, settings.start_timeout / 1000)
        coordinator.start()
        for poller in pollers:
            poller.start()
        undo.clear()
        return coordinator
    except Exception as failure:
        found = _refused(name, failure, books)
        if found is failure:
            raise
        raise found from failure
    finally:
        _undo(name, undo)


def _context(
    books: Bookkeeping, control: ControlLog, plan: StartPlan, options: StartOptions, execution: ExecutionGraph
) -> JobContext:
    memory, state = plan.past.memory, books.ledger.uri
    until = UntilNow(
        partial(execution.upstream, gates_open=not plan.drain), lambda uid: unread(control, execution.find(uid))
    )
    return JobContext(
        **vars(books.context),
        registry=registry.folder_of(books.spark),
        control=control,
        until=until if options.until_now else None,
        hold=options.hold,
        # A barrier is stamped only once the ledger has a row with its number, and the greatest number never expires.
        first_checkpoint=unused_number(state, memory.next_checkpoint_id),
        drain=plan.drain,
        begun=memory.begun,
        passed=plan.configuration.sequence,
        consumers=consumers_of(plan.links, state),
    )


def _supervise(
    plan: StartPlan, context: JobContext, execution: ExecutionGraph, *, halted: bool
) -> dict[str, FinalCheckpoint]:
    """Put the queries under supervision, as an earlier run left them; returns the final checkpoints that it left."""
    memory, finals = plan.past.memory, {}
    before = frozenset(uid for gate in plan.gated for uid in gate.after if memory.of(uid).finished)
    waiting = {gate.uid: tuple(uid for uid in gate.after if uid not in before) for gate in plan.gated}
    execution.plan(plan.graph, waiting)
    for spec in plan.specs:
        known = memory.of(spec.uid)
        before_change = None if halted or known.finished else as_planned(spec, context.state)
        run, final = _restored(known, before_change or spec, context, elsewhere=spec.uid in plan.past.elsewhere)
        if before_change is not None and final is None:
            run.complete_first(spec)
        execution.add(run)
        if final is not None:
            finals[spec.uid] = final
    return finals


def _stop_if_asked(coordinator: Coordinator, event: str, job: str, *, halted: bool) -> None:
    if event:
        log.warning(
            "job '%s' ends at once: an earlier start was asked to stop, by event %s, and ended before it had "
            "stopped; start it again to continue",
            job,
            event,
        )
    if halted:
        coordinator.stop()


def _report(execution: ExecutionGraph, context: JobContext, hint: Hint) -> None:
    """Take an event from Spark's listener thread."""
    for run in execution.runs:
        run.report(hint)
    context.wake.set()


def _ignore(marker: object) -> None:
    """Nobody counts latency markers."""


def _older(spark: SparkSession, state: str) -> dict[str, Callable[[], object]]:
    """The stops of what an incarnation that was taken over runs in this session, where Spark runs a query only once."""
    prefix = f"{_as_uri(state)}/queries/"
    places = [(backend_of(spark).checkpoint(query), query.stop) for query in spark.streams.active]
    return {place.removeprefix(prefix).partition("/")[0]: stop for place, stop in places if place.startswith(prefix)}


def _as_uri(state: str) -> str:
    """A location as Spark writes it: a local path is `file:/...`."""
    place = local_path(state)
    return state if place is None else f"file:{place}"


def _restored(
    known: QueryMemory, spec: QuerySpec, context: JobContext, *, elsewhere: bool
) -> tuple[QueryRun, FinalCheckpoint | None]:
    """A query as an earlier run left it: finished, in its final checkpoint, or to be started."""
    run = query_run(spec, context, known.lineage, known.flagged, elsewhere=elsewhere)
    if known.finished:
        run.finished_before(known.last_epoch)
        return run, None
    run.restore(known.last_epoch)
    if known.final is None:
        return run, None
    run.resume_final()
    final = FinalCheckpoint(
        run,
        spec,
        known.lineage,
        run.operators,
        context,
        known.final.checkpoint_id,
        passed=known.final.passed,
        flagged=known.flags,
    )
    return run, final


def needs_spark(run: QueryRun, *, drained: bool) -> bool:
    """Whether a query has epochs to run: with all its input committed only its final checkpoint is left.

    The input of Spark's own sources was ended by a drain, where only Spark's log says how far it came.
    """
    if run.state is not State.CREATED or run.input_done:
        return False
    if drained and run.may_end_by_drain:
        if not run.unsettled:
            return False  # the coordinator's first look at the drain ends it where it is
        run.resume_drain()
    return True


_KINDS: Final = {
    FailureType.CONFIGURATION: ConfigurationError,
    FailureType.NETWORK: TransientError,
    FailureType.STATE: StateError,
    FailureType.CHECKPOINT: StateError,
}
"""Which of our errors says that a start has failed; for any other type, the base of all."""


def _refused(job: str, failure: Exception, books: Bookkeeping) -> SparkExtError:
    """The failure of a start as one of our errors; it is an incident like any other."""
    found = diagnosed(failure, f"job '{job}'", -1, books.context.classifier)
    error = found.error.within(f"job '{job}'")
    if isinstance(failure, SparkExtError):
        error = failure
    elif not any(raised.code for raised in found.evidence.chain):
        error = _KINDS.get(found.verdict.type, SparkExtError)(
            f"the job could not be started: {found.verdict.summary}",
            operator=f"job '{job}'",
            kept="all committed epochs",
            do=found.error.do,
        ).with_stack(found.error.stack)
    with suppress(Exception):  # the failure matters more
        books.context.write_behind.incident(
            f"job '{job}'", "failure", str(error), "the start was refused", found.stored, found.verdict.labels
        )
    return error


def _undo(job: str, steps: Sequence[Callable[[], object]]) -> None:
    """Take back a start that was refused. A step that fails keeps none of the others from being taken."""
    for step in steps:
        try:
            step()
        except Exception as problem:
            log.warning("error after the start of job '%s' was refused: %s", job, problem)
