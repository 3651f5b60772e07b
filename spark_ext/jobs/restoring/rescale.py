"""Another number of state partitions for one query, or of partitions for an exchange, of a job that does not run.

An exchange is rescaled by a savepoint, which is restored in place and then deleted: see `reshaped_exchanges.py`. For a
query's state there is a shorter way.

The query's target is claimed, as by a start: drivers of earlier starts commit nothing more to it. Then Spark
repartitions a copy of the checkpoint, which adds an epoch without rows to it. The copy takes the place of the
checkpoint, which is moved aside. A start that finds the checkpoint moved aside, and no other in its place, puts the
copy there.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from spark_ext.checkpoints.savepoint import exchange_folder
from spark_ext.control.log import ControlLog
from spark_ext.errors import ConfigurationError, StateError
from spark_ext.exchange.descriptor import Shape
from spark_ext.exchange.kinds import described_at
from spark_ext.exchange.pinned import read_pinned
from spark_ext.failpoints import FailPoint, reach
from spark_ext.jobs.composition import SINK
from spark_ext.jobs.restoring.offline import savepoint_of_stopped
from spark_ext.jobs.restoring.restore import restore
from spark_ext.jobs.starting.flow import opened
from spark_ext.jobs.starting.identity import unknown
from spark_ext.jobs.starting.plan import StartOptions
from spark_ext.jobs.starting.recorded_past import check_past, compared, complete_rescales
from spark_ext.jobs.starting.start import start_job
from spark_ext.ledger import LedgerWriter, start_incarnation
from spark_ext.ledger.identity import job_row, restoring
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.queries import operators
from spark_ext.queries.context import JobContext, checkpoint_of
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.queries.records import FinishedSources
from spark_ext.sinks.exchange_2pc import MOST
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.logs.epoch_files import files_of_epoch
from spark_ext.spark.logs.rescaled import BUILDING, complete, replace
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.logs.state_operators import relocate
from spark_ext.spark.logs.state_partitions import repartition, require_rescale, require_state
from spark_ext.spark.session import registry
from spark_ext.storage import Location, child, link, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.exchange.descriptor import Descriptor
    from spark_ext.jobs.composition import Composition
    from spark_ext.ledger import Ledger
    from spark_ext.settings import JobSettings

# Spark may follow with epochs without rows, which empty state that has expired; its own sources may always read on.
ATTEMPTS: Final = 5
LOOK_EVERY_S: Final = 0.02
RESCALING: Final = "rescaling"  # the folder of a state directory with the savepoint by which an exchange is rescaled
KEPT: Final = "the state and all output are unchanged"


def rescale(
    spark: SparkSession,
    composition: Composition,
    ledger: Ledger,
    settings: JobSettings,
    query: str,
    partitions: int,
    timeout: float | None = None,
) -> None:
    """Give the state of a query another number of partitions.

    Epochs that were interrupted are completed within `timeout` seconds; None: as long as it takes.
    """
    operator = f"job '{composition.job}', query '{query}'"
    memory = JobMemory.read(ledger)
    if query not in memory.names:
        raise unknown(query, memory, f"job '{composition.job}'", "rescale")
    if partitions < 1:
        raise ConfigurationError(
            f"state cannot have {partitions} partitions", operator=operator, kept=KEPT, do="use a number from 1"
        )
    require_rescale(spark, operator)
    _refuse_finished(memory, query, operator)
    if query not in composition.uids:
        # Before anything is started for it: nothing would ever complete its epoch.
        raise _missing(operator)
    place = checkpoint_of(composition.state, query)
    local = local_path(place)
    if local is None:
        raise StateError(
            "the checkpoint directory is on an object store, where it cannot be replaced in one step",
            operator=operator,
            kept=KEPT,
            do="take a savepoint, and restore it into another state directory with state_partitions",
        )
    limit = None if timeout is None else time.monotonic() + timeout
    for _ in range(ATTEMPTS):
        if not _in_doubt(SparkLog(place)) or _expired(limit):
            break
        complete_epochs(spark, composition, ledger, settings, query, limit)
        _refuse_finished(JobMemory.read(ledger), query, operator)
    incarnation = start_incarnation(
        ledger,
        composition.job,
        jvm_pid=backend_of(spark).jvm_pid(spark),
        application_id=backend_of(spark).application_id(spark),
    )
    writer = LedgerWriter(ledger, incarnation)
    building = local.with_name(BUILDING)
    try:
        backend_of(spark).settle_state(spark, place)
        complete(place)
        memory = JobMemory.read(ledger)
        complete_rescales(composition.state, memory, composition.uids)
        specs, gated = opened(composition, memory, incarnation.number, composition.stored_configuration())
        start = compared(composition.job, memory, ledger, specs, composition.declared, incarnation, gated)
        check_past(start)
        require_state(place, _settled(SparkLog(place), operator), operator)
        spec = next((one for one in specs if one.uid == query), None)
        if spec is None:
            raise _missing(operator)
        context = _context(spark, composition, settings, writer)
        # A driver of an earlier start, on another host, may still run: an epoch that it commits to the target from here
        # on would be missing in the copy. What it has committed until now is in Spark's log, or in doubt there.
        elsewhere = query in start.exchanged()
        OperatorHooks(spec, context, memory.lineage(query), place, FinishedSources(), elsewhere=elsewhere).claim()
        epoch = _settled(SparkLog(place), operator)
        for name in files_of_epoch(spark, place, epoch, operator):
            link(f"{place}/{name}", f"{building}/{name}")
        reach(FailPoint.RESCALE_COPIED)
        added = repartition(spark, str(building), partitions, operator)
        relocate(str(building), place)
        reach(FailPoint.RESCALE_REPARTITIONED)
        at = datetime.now(timezone.utc)
        reason = f"{partitions} partitions of state, by epoch {added}"
        lineage = memory.lineage(query)
        writer.append(job_row(incarnation, "rescaled", at, lineage=lineage, query=query, reason=reason))
        replace(local, building, at)
        reach(FailPoint.RESCALE_COMPLETE)
    finally:
        shutil.rmtree(building, ignore_errors=True)  # what was refused leaves nothing
        writer.end("rescale")


def rescale_exchange(
    spark: SparkSession,
    composition: Composition,
    ledger: Ledger,
    settings: JobSettings,
    name: str,
    partitions: int,
    key: Sequence[str] | None,
    timeout: float | None = None,
) -> None:
    """Give an exchange other partitions, and another key unless that is None."""
    operator = f"job '{composition.job}', exchange '{name}'"
    made = composition.exchanges.get(name)
    if made is None:
        known = ", ".join(f"'exchange:{one}'" for one in composition.exchanges) or "none"
        raise ConfigurationError(
            f"the job has no exchange '{name}'; it has: {known}", operator=operator, kept=KEPT, do="correct the name"
        )
    if not 0 < partitions <= MOST:
        what = f"an exchange cannot have {partitions} partitions"
        raise ConfigurationError(what, operator=operator, kept=KEPT, do=f"use a number from 1 to {MOST}")
    if local_path(composition.state) is None:
        raise StateError(
            "the state directory is on an object store, where nothing can be replaced in one step",
            operator=operator,
            kept=KEPT,
            do="take a savepoint, and restore it into another state directory: a restore gives exchanges the "
            "partitions and the key that the job declares",
        )
    folder, step = Location.of(f"{composition.state}/{RESCALING}", {}).uri, restoring(ledger.jobs())
    if step is not None and step.savepoint != folder:
        raise StateError(
            f"a restore from {step.savepoint} has begun and is not complete",
            operator=operator,
            kept=KEPT,
            do=f"complete it with job.restore({step.savepoint!r}), and rescale then",
        )
    if step is not None:  # the exchange may have been moved aside
        about: Descriptor | None = read_pinned(child(folder, exchange_folder(name)), operator).about
    else:
        about = described_at(made.path, operator)
    if about is None:
        raise StateError(
            "the exchange has not been written yet", operator=operator, kept=KEPT, do="declare it as it is to be"
        )
    shape = Shape(partitions, about.key if key is None else tuple(key))
    if step is None:
        if about.shape == shape:
            return
        limit = None if timeout is None else time.monotonic() + timeout
        _settle(spark, composition, ledger, settings, completes=made.shape == about.shape, limit=limit)
        shutil.rmtree(folder, ignore_errors=True)
        savepoint_of_stopped(spark, composition, ledger, folder)
    restore(spark, composition, ledger, folder, (), {}, {name: shape})
    shutil.rmtree(folder, ignore_errors=True)


def _settle(
    spark: SparkSession,
    composition: Composition,
    ledger: Ledger,
    settings: JobSettings,
    *,
    completes: bool,
    limit: float | None,
) -> None:
    """Leave no epoch in doubt whose rows its target could not give back; it `completes` them if the job can start."""
    for query in composition.uids:
        log = SparkLog(checkpoint_of(composition.state, query))
        for _ in range(ATTEMPTS if completes else 0):
            if not _in_doubt(log) or _expired(limit):
                break
            complete_epochs(spark, composition, ledger, settings, query, limit)
    for spec in composition.specs:
        if spec.sink is not None and spec.sink.format.lower() == SINK:
            continue  # what is in doubt there is abandoned
        sink = None if spec.sink is None else operators.sink(spec.sink.format, spec.sink.options)
        if (sink is None or not sink.rolls_back) and _in_doubt(SparkLog(checkpoint_of(composition.state, spec.uid))):
            raise StateError(
                f"an epoch of query '{spec.uid}' is planned and not committed, and its sink may have written it",
                operator=f"job '{composition.job}', query '{spec.uid}'",
                kept=KEPT,
                do="call rescale, without a timeout, on a job that declares the exchange as it is now: this completes "
                "the epoch first",
            )


def complete_epochs(
    spark: SparkSession,
    composition: Composition,
    ledger: Ledger,
    settings: JobSettings,
    query: str,
    limit: float | None = None,
) -> None:
    """Start the job until the interrupted epoch of a query is committed; no source reads on. `limit`: s, monotonic."""
    log = SparkLog(checkpoint_of(composition.state, query))
    coordinator = start_job(spark, composition.job, ledger, composition, settings, StartOptions(hold=True))
    try:
        while _in_doubt(log) and not _expired(limit) and not coordinator.join(LOOK_EVERY_S):
            pass
    finally:
        coordinator.stop()
        coordinator.join()
    if coordinator.failure is not None:
        raise coordinator.failure


def _missing(operator: str) -> StateError:
    return StateError(
        "the query is not in the job", operator=operator, kept=KEPT, do="add it, as it was, and rescale then"
    )


def _context(spark: SparkSession, composition: Composition, settings: JobSettings, writer: LedgerWriter) -> JobContext:
    incarnation = writer.incarnation
    return JobContext(
        job=composition.job,
        job_id=incarnation.job_id,
        state=composition.state,
        settings=settings,
        incarnation=incarnation,
        registry=registry.folder_of(spark, composition.state),
        write_behind=WriteBehind(writer, composition.job),
        wake=threading.Event(),
        control=ControlLog(writer.ledger, incarnation.fence),
    )


def _refuse_finished(memory: JobMemory, query: str, operator: str) -> None:
    if memory.of(query).finished:
        raise StateError(
            "the query has finished", operator=operator, kept=KEPT, do="nothing: it is never started again"
        )


def _expired(limit: float | None) -> bool:
    return limit is not None and time.monotonic() >= limit


def _in_doubt(log: SparkLog) -> bool:
    planned, committed = log.newest_offsets(), log.newest_commit()
    return planned is not None and (committed is None or planned > committed)


def _settled(log: SparkLog, operator: str) -> int:
    planned, committed = log.newest_offsets(), log.newest_commit()
    if committed is None:
        raise StateError("the query has committed no epoch", operator=operator, kept=KEPT, do="start the job first")
    if planned is not None and planned > committed:
        raise StateError(
            f"epoch {planned} is planned and not committed: its rows would be written again under another number",
            operator=operator,
            kept=KEPT,
            do="start the job until that epoch is committed, stop it, and rescale then",
        )
    return committed
