"""The assembly of what supervises one query: each part is made once, and given those that it needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from spark_ext.queries.bad_rows import BadRowsWatch, ChangedInput
from spark_ext.queries.catching_up import CatchingUp
from spark_ext.queries.describe_failure import QueryFailures
from spark_ext.queries.early import EarlyRows
from spark_ext.queries.history import EpochHistory, Figures
from spark_ext.queries.launcher import Launcher
from spark_ext.queries.observer import EpochObserver
from spark_ext.queries.records import FinishedSources
from spark_ext.queries.restarts import Outage, Restarts
from spark_ext.queries.run import QueryRun
from spark_ext.queries.source_ends import SourceEnds
from spark_ext.queries.spark_query import SparkQuery
from spark_ext.queries.watched import LifeCycle, WatchedQuery
from spark_ext.queries.worker import Worker
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.session.lag_notes import LagNotes

if TYPE_CHECKING:
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.launcher import InSpark
    from spark_ext.queries.spec import QuerySpec


def query_run(
    spec: QuerySpec,
    context: JobContext,
    lineage: int,
    flagged: Mapping[str, int],
    flags: Iterable[tuple[str, str]],
    *,
    elsewhere: bool = False,
    in_spark: InSpark = SparkQuery,
    workers: Callable[[str, Callable[[], None]], Worker] = Worker,
    clock: Callable[[], float] = time.monotonic,
) -> QueryRun:
    """Assemble the supervision of a query.

    Flags and sink identities of other lineages are not its own. `flagged` are those of channels, `flags` has kind and
    source of all others. `elsewhere`: its sink writes to another target from this start on, on request. `clock`: s,
    never goes back; the same as that of `tick`.
    """
    settings, operator, checkpoint = context.settings, context.operator(spec.uid), context.checkpoint_of(spec.uid)
    figures = Figures()
    if settings.lag_interval and spec.sources:
        notes = LagNotes(context.registry, [source.uid for source in spec.sources])
        figures = Figures(others=bool(spec.natives), noted=notes)
    history = EpochHistory(clock, divides=settings.epoch_parts, figures=figures, counts_state=spec.counts_state)
    number = context.incarnation.number
    observer = EpochObserver(spec, SparkLog(checkpoint), lineage, number, flagged, history=history, clock=clock)
    watched = WatchedQuery(spec.uid, operator, context)
    life = LifeCycle(operator, watched)
    restarts = Restarts(settings.restarts, ends_now=spec.available_now or context.until is not None)
    catching_up = CatchingUp(spec.uid, context)
    finished = FinishedSources(flags)
    worker = workers(f"spark-ext-query-{spec.uid}", context.wake.set)
    launcher = Launcher(
        spec,
        context,
        life=life,
        observer=observer,
        restarts=restarts,
        catching_up=catching_up,
        finished=finished,
        worker=worker,
        in_spark=in_spark,
        clock=clock,
        elsewhere=elsewhere,
    )
    return QueryRun(
        spec.uid,
        context,
        life=life,
        watched=watched,
        observer=observer,
        outage=Outage(f"Spark's log of the query, {checkpoint},", operator, context),
        restarts=restarts,
        failures=QueryFailures(spec.uid, operator, context),
        catching_up=catching_up,
        launcher=launcher,
        changed_input=ChangedInput(spec, context),
        bad_rows=BadRowsWatch(spec, context, lineage, history=history, worker=worker, clock=clock),
        finished_sources=finished,
        source_ends=SourceEnds(operator, context, observer, finished, clock),
        early=EarlyRows(context, checkpoint, lineage, lambda: restarts.stopping),
        worker=worker,
        clock=clock,
    )
