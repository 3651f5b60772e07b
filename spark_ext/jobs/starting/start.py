"""The start of a job: take the next incarnation, read what earlier ones left, claim the targets, start the queries.

Everything that can be refused is refused before an epoch runs; a start that is refused leaves no query behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from spark_ext.checkpoints.final import FinalCheckpoint
from spark_ext.control.job_events import in_force, request
from spark_ext.control.log import ControlLog
from spark_ext.errors import EnvironmentProblem, SparkExtError, StorageError
from spark_ext.jobs.checkpointing.barriers import AlignedCheckpoints
from spark_ext.jobs.checkpointing.periodic import PeriodicCheckpoints
from spark_ext.jobs.checkpointing.retained import unused_number
from spark_ext.jobs.checkpointing.savepoint_requests import Savepoints
from spark_ext.jobs.controlling.controller import Controller, unread
from spark_ext.jobs.controlling.driver_directives import DriverDirectives, JobActions
from spark_ext.jobs.controlling.lookup_versions import LookupVersions
from spark_ext.jobs.controlling.rebuild import Rebuilds, as_planned
from spark_ext.jobs.coordinator import Coordinator, JobParts
from spark_ext.jobs.ending import EndRequest
from spark_ext.jobs.execution_graph import ExecutionGraph
from spark_ext.jobs.latency import measured_latency
from spark_ext.jobs.linking.exchanges import Exchanges, consumers_of
from spark_ext.jobs.linking.gates import Gates
from spark_ext.jobs.linking.inboxes import Inboxes
from spark_ext.jobs.renamed_targets import add_events, addressed_to_nobody, with_renames
from spark_ext.jobs.starting.flow import LateQueries, restarted_exchanges
from spark_ext.jobs.starting.plan import (
    Examined,
    StartOptions,
    examined,
    refusal_of,
    refuse_followers,
    refuse_misfits,
    refuse_missing_targets,
)
from spark_ext.jobs.starting.recorded_past import RecordedState, complete_rescales, recall
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.view import event_of
from spark_ext.listeners.job_listener import JobListener
from spark_ext.masking import logger
from spark_ext.model.lifecycle import State
from spark_ext.model.restarts import UntilNow
from spark_ext.observing.bookkeeping import Bookkeeping, begin_bookkeeping
from spark_ext.observing.upkeep import Upkeep
from spark_ext.queries.assembly import query_run
from spark_ext.queries.context import JobContext, checkpoint_of
from spark_ext.queries.describe_failure import diagnosed
from spark_ext.queries.run import QueryRun
from spark_ext.queries.worker import Outcome, Worker
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.session import registry
from spark_ext.storage import LocalFolder, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.jobs.composition import Composition
    from spark_ext.ledger import Ledger
    from spark_ext.ledger.memory import QueryMemory
    from spark_ext.metrics.job_metrics import JobMetrics
    from spark_ext.model.configuration import Configuration
    from spark_ext.model.control import Event
    from spark_ext.observing.bookkeeping import Bookkeeping
    from spark_ext.queries.context import WatchContext
    from spark_ext.queries.spec import QuerySpec
    from spark_ext.settings import JobSettings
    from spark_ext.spark.watching.query_events import Hint

log = logger("spark_ext.job")
LOOK_EVERY = 0.05  # pause between two looks at the workers, s, if none of them reports


@dataclass(frozen=True)
class StartPlan:
    """A job that may be started."""

    examined: Examined
    past: RecordedState
    configuration: Configuration  # in force when the queries were built
    drain: int  # the newest lineage for which a drain is in force; 0: none
    present: Callable[[Event], Event]  # gives an event of an earlier start the target that it has now


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
    """Start all queries that have not finished. The steps are those of `docs/architecture.md`."""
    _require_file_system(name, ledger.uri)
    execution = ExecutionGraph()
    books = begin_bookkeeping(
        spark,
        name,
        ledger,
        settings,
        lambda: execution.runs,
        metrics,
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
        lookups = LookupVersions(name, control, composition.lookups)
        plan = _planned(books, composition, control, lookups, options, halted=halted)
        context = _context(books, control, plan, options, execution)
        finals = _supervise(plan, context, execution, halted=halted)
        listener = JobListener(partial(_report, execution, context))
        remove_listener = partial(backend_of(spark).remove_listener, spark, listener)
        pollers = books.pollers()
        at_end = (*(() if metrics is None else (metrics.end,)), remove_listener, *(one.close for one in pollers))
        coordinator, parts = _assembled(books, composition, control, lookups, plan, context, execution, finals, at_end)
        undo.insert(0, coordinator.refuse)
        waiting = [run for run in execution.runs if needs_spark(run, drained=parts.request.drained(run.lineage))]
        _stop_if_asked(coordinator, parts.controller.stop_requested, name, halted=halted)
        announce(context, coordinator)
        books.begin_events()
        _begin(waiting, context, coordinator, late=not plan.past.definitions)
        if not coordinator.stopping:
            _withdraw_older(waiting, context)
            parts.exchanges.register()
            parts.inboxes.register(parts.request.drained)
            if plan.past.definitions:
                books.writer.append(plan.past.definitions)
        backend_of(spark).add_listener(spark, listener)
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


def _require_file_system(job: str, state: str) -> None:
    place, lacking = local_path(state), None
    if place is not None:
        with suppress(OSError):  # the first write reports a directory that cannot be written
            lacking = LocalFolder(place).lacking()
    if lacking is not None:
        raise EnvironmentProblem(
            f"the file system of the state directory {state} lacks {lacking}, with which commits are made",
            operator=f"job '{job}'",
            kept="nothing was started",
            do="use a disk, a network drive such as NFS, or an object store",
        )


def _planned(
    books: Bookkeeping,
    composition: Composition,
    control: ControlLog,
    lookups: LookupVersions,
    options: StartOptions,
    *,
    halted: bool,
) -> StartPlan:
    """Read what earlier starts have left, build the queries, and compare them with it, unless the job was stopped."""
    ledger, write_behind, job = books.ledger, books.context.write_behind, books.context.job
    memory = JobMemory.read(ledger)
    books.inherit()
    control.compact()
    configuration = with_renames(control.configuration(), memory.lineages, composition.declared.renamed)
    complete_rescales(ledger.uri, memory, composition.uids)
    found = examined(composition, memory, ledger, configuration, books.context.incarnation, options, halted=halted)
    specs, gated = found.specs, found.gated
    past = RecordedState(memory)
    if found.start is not None:
        past = recall(found.start, books.writer)
        refuse_missing_targets(specs, found.start, job)
        refuse_misfits(found.start, configuration, job)
        books.incidents.adopt(past.memory, composition.uids, write_behind)
    present = add_events(control, past.memory.lineages)
    unfinished = {
        spec.uid: checkpoint_of(ledger.uri, spec.uid) for spec in specs if not past.memory.of(spec.uid).finished
    }
    if composition.lookups and unfinished and not halted:
        open_reloads = in_force(ledger.open_control_events(), "reload")
        lookups.begin([event_of(row) for row in open_reloads], unfinished)
    for notice in past.notices:
        write_behind.incident(f"job '{job}', query '{notice.query}'", "definition", notice.what, notice.action)
    sources = [one.uid for spec in specs for one in spec.sources]
    for target in () if gated else addressed_to_nobody(configuration, composition.uids, sources):
        what = f"control events for {target} are in force nowhere: the job has no {target}"
        write_behind.incident(f"job '{job}'", "control", what, "kept for a start that has it")
    if options.drain:
        request(control, "job", "drain", origin="python")
    drain = max((event.lineage for event in in_force(ledger.open_control_events(), "drain")), default=0)
    if not (options.until_now or options.hold):
        refuse_followers(found, past.memory, drain, job)
    return StartPlan(found, past, configuration, drain, present)


def _context(
    books: Bookkeeping, control: ControlLog, plan: StartPlan, options: StartOptions, execution: ExecutionGraph
) -> JobContext:
    memory, state = plan.past.memory, books.ledger.uri
    until = UntilNow(
        partial(execution.upstream, gates_open=not plan.drain), lambda uid: unread(control, execution.find(uid))
    )
    return JobContext(
        **vars(books.context),
        registry=registry.folder_of(books.spark, state),
        control=control,
        until=until if options.until_now else None,
        early=options.early,
        hold=options.hold,
        # A barrier is stamped only once the ledger has a row with its number, and the greatest number never expires.
        first_checkpoint=unused_number(state, memory.next_checkpoint_id),
        drain=plan.drain,
        begun=memory.begun,
        passed=plan.configuration.sequence,
        consumers=consumers_of(plan.examined.links, state),
        syncs=bool(plan.examined.inboxes),
    )


def _supervise(
    plan: StartPlan, context: JobContext, execution: ExecutionGraph, *, halted: bool
) -> dict[str, FinalCheckpoint]:
    """Put the queries under supervision, as an earlier run left them; returns the final checkpoints that it left."""
    memory, finals = plan.past.memory, {}
    before = frozenset(uid for gate in plan.examined.gated for uid in gate.after if memory.of(uid).finished)
    waiting = {gate.uid: tuple(uid for uid in gate.after if uid not in before) for gate in plan.examined.gated}
    execution.plan(plan.examined.graph, waiting)
    for spec in plan.examined.specs:
        known = memory.of(spec.uid)
        before_change = None if halted or known.finished else as_planned(spec, context.state)
        run, final = _restored(known, before_change or spec, context, elsewhere=spec.uid in plan.past.elsewhere)
        if before_change is not None and final is None:
            run.launcher.complete_first(spec)
        execution.add(run)
        if final is not None:
            finals[spec.uid] = final
    return finals


def _restored(
    known: QueryMemory, spec: QuerySpec, context: JobContext, *, elsewhere: bool
) -> tuple[QueryRun, FinalCheckpoint | None]:
    """A query as an earlier run left it: finished, in its final checkpoint, or to be started."""
    run = query_run(spec, context, known.lineage, known.flagged, known.flags, elsewhere=elsewhere)
    if known.finished:
        run.finished_before(known.last_epoch)
        return run, None
    run.restore(known.last_epoch)
    if known.final is None:
        return run, None
    run.resume_final()
    final = FinalCheckpoint(run, run.operators, context, known.final.checkpoint_id, passed=known.final.passed)
    return run, final


def _assembled(
    books: Bookkeeping,
    composition: Composition,
    control: ControlLog,
    lookups: LookupVersions,
    plan: StartPlan,
    context: JobContext,
    execution: ExecutionGraph,
    finals: Mapping[str, FinalCheckpoint],
    at_end: Sequence[Callable[[], object]],
) -> tuple[Coordinator, JobParts]:
    """The coordinator of a job, and what it moves."""
    ledger, memory = books.ledger, plan.past.memory

    def finished(uid: str) -> bool:
        run = execution.find(uid)
        return memory.of(uid).finished if run is None else run.state is State.FINISHED

    request = EndRequest(context, execution)
    take_id = partial(next, count(context.first_checkpoint))
    latency = measured_latency(context, lambda: execution.graph, books.arrived)
    inboxes = Inboxes(context, execution, plan.examined.inboxes)
    restarted = restarted_exchanges(plan.examined.gated, memory)
    exchanges = Exchanges(context, execution, plan.examined.links, finished, restarted, latency.follow, inboxes)
    late = LateQueries(
        composition,
        memory,
        context,
        execution,
        books.writer,
        exchanges,
        lookups,
        lambda: with_renames(control.configuration(), memory.lineages, composition.declared.renamed),
    )
    savepoints = Savepoints(context, ledger, execution, exchanges, take_id)
    aligned = AlignedCheckpoints(context, execution, exchanges, savepoints)
    rebuilds = Rebuilds(context, control, plan.configuration, execution, request, lookups)
    actions = JobActions(books.spark, context, request, aligned, savepoints, books.dumps, rebuilds, lookups)
    parts = JobParts(
        request=request,
        upkeep=Upkeep(context, ledger, execution.keep_registered),
        exchanges=exchanges,
        inboxes=inboxes,
        gates=Gates(context, execution, plan.examined.gated, late.build, late.begin),
        savepoints=savepoints,
        aligned=aligned,
        periodic=PeriodicCheckpoints(context, execution, exchanges, savepoints),
        controller=Controller(
            context,
            ledger,
            control,
            execution,
            DriverDirectives(context.job, actions, context.wake.set),
            rebuilds,
            lambda prepare: aligned.request(prepare=prepare),
            request.drain,
            plan.present,
        ),
        latency=latency,
        dumps=books.dumps,
    )
    return Coordinator(context, execution, parts, finals, at_end), parts


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


def _older(spark: SparkSession, state: str) -> dict[str, Callable[[], object]]:
    """The stops of what an incarnation that was taken over runs in this session, where Spark runs a query only once."""
    prefix = f"{_as_uri(state)}/queries/"
    places = [(backend_of(spark).checkpoint(query), query.stop) for query in spark.streams.active]
    return {place.removeprefix(prefix).partition("/")[0]: stop for place, stop in places if place.startswith(prefix)}


def _as_uri(state: str) -> str:
    """A location as Spark writes it: a local path is `file:/...`."""
    return state if (place := local_path(state)) is None else f"file:{place}"


def stop_older(stops: Mapping[str, Callable[[], object]], context: WatchContext, stopping: Callable[[], bool]) -> bool:
    """Stop what an older incarnation runs, on threads that are left behind if a stop does not return.

    Returns whether all have stopped: if the job is asked to stop, those under way are not waited for.
    """
    within = context.settings.start_timeout / 1000
    by = time.monotonic() + within
    workers = {query: Worker(f"spark-ext-older-{query}", context.wake.set) for query in stops}
    try:
        for query, stop in stops.items():
            workers[query].do(f"stop of query '{query}' of an older start", stop, _returned)
        while True:
            for worker in workers.values():
                worker.deliver()
            late = next((worker.busy for worker in workers.values() if worker.busy), "")
            if not late or stopping():
                return not late
            if time.monotonic() >= by:
                raise _too_late(late, f"job '{context.job}'", within)
            context.wake.wait(LOOK_EVERY)
            context.wake.clear()
    finally:
        for worker in workers.values():
            worker.close()


def _returned(outcome: Outcome[object]) -> None:
    outcome.result()


def needs_spark(run: QueryRun, *, drained: bool) -> bool:
    """Whether a query has epochs to run: with all its input committed only its final checkpoint is left.

    The input of Spark's own sources was ended by a drain, where only Spark's log says how far it came.
    """
    if run.state is not State.CREATED or run.input_done:
        return False
    if drained and run.may_end_by_drain:
        if not run.launcher.unsettled:
            return False  # the coordinator's first look at the drain ends it where it is
        run.resume_drain()
    return True


def _begin(waiting: Sequence[QueryRun], context: JobContext, coordinator: Coordinator, *, late: bool) -> None:
    """Claim the targets of all queries, then open their operators; for `late` see `late_claim`."""
    within = context.settings.start_timeout / 1000
    in_all(waiting, lambda run: run.launcher.claim(late=late), context, coordinator, within)
    in_all(waiting, lambda run: run.launcher.open(), context, coordinator, within)


def in_all(
    runs: Sequence[QueryRun],
    command: Callable[[QueryRun], None],
    context: JobContext,
    coordinator: Coordinator,
    within: float,
) -> None:
    """Give a command to the workers of all queries, and wait until all have carried it out, or the job is stopped."""
    if coordinator.stopping:
        return
    for run in runs:
        command(run)
    by = time.monotonic() + within
    while not coordinator.stopping:
        for run in runs:
            run.deliver()
        late = next((run for run in runs if run.busy), None)
        if late is None:
            return
        if time.monotonic() >= by:
            raise _too_late(late.busy, late.operator, within)
        context.wake.wait(LOOK_EVERY)
        context.wake.clear()


def _withdraw_older(waiting: Sequence[QueryRun], context: JobContext) -> None:
    """Nothing else withdraws those of removed or finished queries, which a killed client has left running."""
    uids = {operator.uid for run in waiting for operator in run.launcher.spec.operators}
    registry.withdraw_older(context.job_id, context.incarnation.number, uids, context.registry)


def _too_late(step: str, operator: str, within: float) -> StorageError:
    return StorageError(
        f"the step '{step}' of the start did not end within {within:g} s",
        operator=operator,
        kept="all committed epochs",
        do="find out what it is waiting for, and start the job again; the setting start_timeout is how long a start "
        "waits",
    )


def _refused(job: str, failure: Exception, books: Bookkeeping) -> SparkExtError:
    """The failure of a start as one of our errors; it is an incident like any other."""
    found = diagnosed(failure, f"job '{job}'", -1, books.context.classifier)
    error = refusal_of(job, failure, found)
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
