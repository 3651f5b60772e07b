"""The start of a job: take the next incarnation, read what earlier ones left, claim the targets, start the queries.

Everything that can be refused is refused before an epoch runs; a start that is refused leaves no query behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_ext.checkpoints.final import FinalCheckpoint
from spark_ext.control.job_events import in_force, request
from spark_ext.control.log import ControlLog
from spark_ext.errors import ConfigurationError, SparkExtError, StateError, TransientError
from spark_ext.failures.classifier import load
from spark_ext.failures.labels import FailureType
from spark_ext.jobs.actions import controlled
from spark_ext.jobs.checkpointing.retained import unused_number
from spark_ext.jobs.controlling.replacement import as_planned
from spark_ext.jobs.coordinator import Coordinator
from spark_ext.jobs.latency import measured_latency
from spark_ext.jobs.linking.exchanges import Exchanges
from spark_ext.jobs.linking.gates import Gates
from spark_ext.jobs.renamed_targets import add_events, addressed_to_nobody, with_renames
from spark_ext.jobs.starting.begin import begin, in_all, stop_older
from spark_ext.jobs.starting.flow import (
    LateQueries,
    anew,
    check_followers,
    check_now,
    checked_graph,
    consumers_of,
    links_of,
    opened,
)
from spark_ext.jobs.starting.recorded_past import nothing_recalled, recall
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.heartbeat import Heartbeat
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.listeners.job_listener import JobListener
from spark_ext.masking import logger
from spark_ext.model.lifecycle import State
from spark_ext.model.until import UntilNow, Upstream
from spark_ext.observing.dumps import Dumps
from spark_ext.observing.job_incidents import JobIncidents
from spark_ext.observing.lost_driver import record_lost_driver
from spark_ext.observing.monitor import Monitor
from spark_ext.observing.sampler import Sampler
from spark_ext.queries.assembly import query_run
from spark_ext.queries.context import JobContext
from spark_ext.queries.describe_failure import diagnosed
from spark_ext.queries.history import vitals
from spark_ext.queries.run import QueryRun
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.session import registry
from spark_ext.storage import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.jobs.composition import Composition
    from spark_ext.ledger.memory import QueryMemory
    from spark_ext.model.latency import Marker
    from spark_ext.queries.run import QueryRun
    from spark_ext.queries.spec import QuerySpec
    from spark_ext.settings import JobSettings

log = logger("spark_ext.job")


class Started(NamedTuple):
    """A job under way."""

    context: JobContext
    coordinator: Coordinator
    listener: JobListener


def start_job(
    spark: SparkSession,
    name: str,
    ledger: Ledger,
    composition: Composition,
    settings: JobSettings,
    *,
    takeover: bool,
    hold: bool = False,
    until_now: bool = False,
    drain: bool = False,
    other_hosts: bool = False,
    announce: Callable[[JobContext, Coordinator], None] = lambda context, coordinator: None,
    stopping: Callable[[], bool] = lambda: False,
    tap: Callable[[object], None] | None = None,
    arrived: Callable[[Marker], None] | None = None,
) -> Started:
    """Start all queries that have not finished.

    Args:
        spark: the session.
        name: the job's.
        ledger: the job's.
        composition: its queries and exchanges, and what the user has said of those that changed since the last start.
        settings: its settings.
        takeover: start although another driver seems to run this job.
        hold: complete the epochs that were interrupted, and plan no others.
        until_now: read what is there, and end.
        drain: request a drain before anything is started.
        other_hosts: refuse also while a driver on another host is alive, by its heartbeat.
        announce: called before anything is claimed, with what a stop during the start needs.
        stopping: whether the job has been asked to stop before that.
        tap: given each row of the ledger; see `WriteBehind`.
        arrived: given each latency marker that has passed a commit; must not wait.

    Raises:
        StateError: the state directory is another job's, in use, or has lost a checkpoint.
        ConfigurationError: a target was refused.
        SparkExtError: anything else; no query runs then.
    """
    # Before an incarnation is taken: one that is not needed would have to be ended.
    classifier = load(settings.failures)
    incidents = JobIncidents.load(settings.incidents)
    dumps = Dumps(spark, name, ledger.uri, settings)
    place = registry.folder_of(spark)
    incarnation = start_incarnation(
        ledger,
        name,
        takeover=takeover,
        jvm_pid=backend_of(spark).jvm_pid(spark),
        application_id=spark.sparkContext.applicationId,
        other_hosts=other_hosts,
    )
    writer = LedgerWriter(ledger, incarnation)
    control = ControlLog(ledger, incarnation.fence, composition.uids)
    context = JobContext(
        job=name,
        job_id=incarnation.job_id,
        state=ledger.uri,
        settings=settings,
        incarnation=incarnation,
        registry=place,
        write_behind=_write_behind(ledger, writer, name, settings, incidents, dumps, tap),
        wake=threading.Event(),
        control=control,
        hold=hold,
        until=UntilNow(
            lambda uid: Upstream() if coordinator is None else coordinator.upstream(uid),
            lambda uid: "" if coordinator is None else coordinator.unread(uid),
        )
        if until_now
        else None,
        classifier=classifier,
    )
    runs: list[QueryRun] = []
    finals: dict[str, FinalCheckpoint] = {}
    listener: JobListener | None = None
    coordinator: Coordinator | None = None
    started = False
    try:
        # What waits and what may fail comes after this `try`: a start that is given up has ended in the ledger as well.
        halted = not stop_older(_older(spark, ledger.uri), context, stopping)
        # A job that was stopped meanwhile starts nothing, and what the older one still runs is left as it is.
        memory = JobMemory.read(ledger)
        incidents.inherit(ledger, context.write_behind)
        record_lost_driver(ledger, incarnation, context.write_behind)
        control.compact()
        composition.configuration = lambda: with_renames(
            control.configuration(), memory.lineages, composition.wishes.renamed
        )
        configuration = composition.configuration()
        holds = until_now and (drain or bool(in_force(ledger.open_control_events(), "drain")))
        specs, gated = opened(composition, memory, incarnation.number, holds=holds)
        if until_now:
            for spec in specs:
                check_now(spec, name)
        graph = checked_graph(composition, specs, gated, memory)
        links = links_of(composition, specs, waiting=bool(gated))
        context = replace(context, consumers=consumers_of(links, ledger.uri))
        past = (
            nothing_recalled(memory)
            if halted
            else recall(name, memory, ledger, specs, composition.wishes, writer, [gate.uid for gate in gated])
        )
        memory = past.memory
        if not halted:
            incidents.adopt(memory, composition.uids, context.write_behind)
        present = add_events(control, memory.lineages)
        for notice in past.notices:
            who = f"job '{name}', query '{notice.query}'"
            context.write_behind.incident(who, "definition", notice.what, notice.action)
        if not gated:
            for target in addressed_to_nobody(
                configuration, composition.uids, [one.uid for spec in specs for one in spec.sources]
            ):
                what = f"control events for {target} are in force nowhere: the job has no {target}"
                context.write_behind.incident(f"job '{name}'", "control", what, "kept for a start that has it")
        # A barrier is stamped only once the ledger has a row with its number, and the greatest number never expires.
        if drain:
            request(control, "job", "drain", origin="python")
        left = ledger.open_control_events()
        context = replace(
            context,
            first_checkpoint=unused_number(ledger.uri, memory.next_checkpoint_id),
            drain=max((event.lineage for event in in_force(left, "drain")), default=0),
            begun=memory.begun,
            passed=configuration.sequence,
        )
        if not (until_now or hold):
            unended = [spec for spec in specs if not memory.of(spec.uid).finished]
            check_followers([one for one in unended if memory.of(one.uid).lineage > context.drain], graph, name)
        for spec in specs:
            known, elsewhere = memory.of(spec.uid), spec.uid in past.elsewhere
            planned = None if halted or known.finished else as_planned(spec, ledger.uri)
            run, final = _restored(known, planned or spec, context, elsewhere=elsewhere)
            if planned is not None and final is None:
                run.complete_first(spec)
            runs.append(run)
            if final is not None:
                finals[spec.uid] = final
        exchanges = Exchanges(
            links,
            context,
            lambda query: _has_finished(query, memory, coordinator),
            gated=bool(gated),
            graph=graph,
            older=lambda query: _of(query, coordinator).logged(),
            anew=anew(gated, memory),
        )
        late = LateQueries(composition, memory, context, writer, exchanges, graph)
        ended = frozenset(uid for gate in gated for uid in gate.after if memory.of(uid).finished)
        gates = Gates(gated, ended, late.build, late.begin, context) if gated else None
        coordinator = Coordinator(context, ledger, runs, finals, exchanges, gates, graph)
        late.coordinator = coordinator
        supervisor = coordinator
        if settings.latency != "off":
            coordinator.latency = measured_latency(context, exchanges, arrived)
        incidents.follow(lambda: supervisor.runs)
        dumps.follow(lambda: supervisor.runs)
        context.write_behind.vitals = lambda: vitals((run.uid, run.figures) for run in supervisor.runs)
        coordinator.dumps = dumps
        coordinator.at_end.append(dumps.finish)
        coordinator.controller = controlled(spark, ledger, control, context, coordinator, configuration, present)
        waiting = [run for run in runs if needs_spark(run, drained=coordinator.drained(run.lineage))]
        if coordinator.controller.stop_requested:
            log.warning(
                "job '%s' ends at once: an earlier start was asked to stop, by event %s, and ended before it had "
                "stopped; start it again to continue",
                name,
                coordinator.controller.stop_requested,
            )
        if halted:
            coordinator.stop()
        announce(context, coordinator)
        begin(waiting, context, coordinator, late=not past.definitions)
        if not coordinator.stopping:
            exchanges.register()
            if past.definitions:
                writer.append(past.definitions)
        listener = JobListener(coordinator.hint)
        spark.streams.addListener(listener)
        added = listener
        coordinator.at_end.append(lambda: spark.streams.removeListener(added))
        coordinator.at_end.append(lambda: exchanges.release(supervisor.looks(), exchanges.graph))
        if coordinator.latency is not None:
            coordinator.at_end.append(coordinator.latency.record)
        in_all(waiting, lambda run: run.start(), context, coordinator, settings.start_timeout / 1000)
        coordinator.start()
        if settings.monitor_interval:
            monitor = Monitor(spark, context, lambda: supervisor.runs)
            coordinator.at_end.append(monitor.close)
            monitor.start()
        if settings.epoch_parts:
            sampler = Sampler(spark, context, lambda: supervisor.runs)
            coordinator.at_end.append(sampler.close)
            sampler.start()
        started = True
        return Started(context, coordinator, listener)
    except Exception as failure:
        found = _refused(name, failure, context)
        if found is failure:
            raise
        raise found from failure
    finally:
        if not started:
            _undo(spark, context, listener, writer, coordinator)


def _write_behind(
    ledger: Ledger,
    writer: LedgerWriter,
    job: str,
    settings: JobSettings,
    incidents: JobIncidents,
    dumps: Dumps,
    tap: Callable[[object], None] | None,
) -> WriteBehind:
    dispatcher = incidents.dispatcher(job, writer.incarnation.number)
    heartbeat = None
    if settings.heartbeat:
        heartbeat = Heartbeat(ledger.uri, writer.incarnation)
        heartbeat.beat()
    return WriteBehind(
        writer,
        job,
        heartbeat,
        settings.heartbeat / 1000,
        registry=incidents.registry,
        dispatcher=dispatcher,
        tap=tap,
        noted=None if settings.dumps == "off" else dumps.noted,
    )


def _has_finished(query: str, memory: JobMemory, coordinator: Coordinator | None) -> bool:
    """Whether a query has finished, in this start or an earlier one; it need not be in the job any more."""
    runs = coordinator.runs if coordinator is not None else ()
    run = next((run for run in runs if run.spec.uid == query), None)
    return memory.of(query).finished if run is None else run.state is State.FINISHED


def _of(query: str, coordinator: Coordinator | None) -> QueryRun:
    assert coordinator is not None
    return next(run for run in coordinator.runs if run.spec.uid == query)


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


def _refused(job: str, failure: Exception, context: JobContext) -> SparkExtError:
    """The failure of a start as one of our errors; it is an incident like any other."""
    found = diagnosed(failure, f"job '{job}'", -1, context.classifier)
    error = found.error.within(f"job '{job}'")
    if isinstance(failure, SparkExtError):
        error = failure
    elif not any(raised.code for raised in found.evidence.chain):
        error = _KINDS.get(found.verdict.type, SparkExtError)(
            f"the job could not be started: {found.verdict.summary}",
            operator=f"job '{job}'",
            kept="all committed epochs",
            do=found.error.do,
        )
        error.stack = found.error.stack
    with suppress(Exception):  # the failure matters more
        context.write_behind.incident(
            f"job '{job}'", "failure", str(error), "the start was refused", found.stored, found.verdict.labels
        )
    return error


def _undo(
    spark: SparkSession,
    context: JobContext,
    listener: JobListener | None,
    writer: LedgerWriter,
    coordinator: Coordinator | None,
) -> None:
    """Take back a start that was refused. A step that fails keeps none of the others from being taken."""
    steps: list[Callable[[], object]] = []
    if coordinator is not None:
        steps.append(coordinator.refuse)
    if listener is not None:
        steps.append(partial(spark.streams.removeListener, listener))
    steps.append(context.write_behind.flush)
    steps.append(partial(writer.end, "the start was refused"))
    steps.append(context.write_behind.notify_last)
    for step in steps:
        try:
            step()
        except Exception as problem:
            log.warning("the start of job '%s' was refused, and then: %s", context.job, problem)
