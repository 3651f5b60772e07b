"""The parts of a job that is being started, put together: each is given those that it needs, and none is changed later.

What all of them share comes first: the queries (`ExecutionGraph`), what writes (`Bookkeeping`) and the context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from spark_ext.jobs.checkpointing.barriers import AlignedCheckpoints
from spark_ext.jobs.checkpointing.periodic import PeriodicCheckpoints
from spark_ext.jobs.checkpointing.savepoint_requests import Savepoints
from spark_ext.jobs.controlling.actions import JobActions
from spark_ext.jobs.controlling.controller import Controller
from spark_ext.jobs.controlling.driver_directives import DriverDirectives
from spark_ext.jobs.controlling.rebuild import Rebuilds
from spark_ext.jobs.coordinator import Coordinator, JobParts
from spark_ext.jobs.ending import EndRequest
from spark_ext.jobs.latency import measured_latency
from spark_ext.jobs.linking.exchanges import Exchanges
from spark_ext.jobs.linking.gates import Gates
from spark_ext.jobs.renamed_targets import with_renames
from spark_ext.jobs.starting.flow import LateQueries, restarted_exchanges
from spark_ext.model.lifecycle import State
from spark_ext.observing.upkeep import Upkeep

if TYPE_CHECKING:
    from spark_ext.checkpoints.final import FinalCheckpoint
    from spark_ext.control.log import ControlLog
    from spark_ext.jobs.composition import Composition
    from spark_ext.jobs.execution_graph import ExecutionGraph
    from spark_ext.jobs.starting.plan import StartPlan
    from spark_ext.model.latency import Marker
    from spark_ext.observing.bookkeeping import Bookkeeping
    from spark_ext.queries.context import JobContext


def assembled(
    books: Bookkeeping,
    composition: Composition,
    control: ControlLog,
    plan: StartPlan,
    context: JobContext,
    execution: ExecutionGraph,
    finals: Mapping[str, FinalCheckpoint],
    arrived: Callable[[Marker], None],
    at_end: Sequence[Callable[[], object]],
) -> tuple[Coordinator, JobParts]:
    """The coordinator of a job, and what it moves.

    Args:
        arrived: given each latency marker that has passed a commit; must not wait.
    """
    ledger, memory = books.ledger, plan.past.memory

    def finished(uid: str) -> bool:
        run = execution.find(uid)
        return memory.of(uid).finished if run is None else run.state is State.FINISHED

    request = EndRequest(context, execution)
    take_id = partial(next, count(context.first_checkpoint))
    latency = measured_latency(context, lambda: execution.graph, arrived)
    exchanges = Exchanges(
        context, execution, plan.links, finished, restarted_exchanges(plan.gated, memory), latency.follow
    )
    late = LateQueries(
        composition,
        memory,
        context,
        execution,
        books.writer,
        exchanges,
        lambda: with_renames(control.configuration(), memory.lineages, composition.declared.renamed),
    )
    savepoints = Savepoints(context, ledger, execution, exchanges, take_id)
    aligned = AlignedCheckpoints(context, execution, exchanges, savepoints, take_id)
    rebuilds = Rebuilds(context, control, plan.configuration, execution, request)
    actions = JobActions(books.spark, context, request, aligned, savepoints, books.dumps, rebuilds)
    parts = JobParts(
        request=request,
        upkeep=Upkeep(context, ledger, execution.keep_registered),
        exchanges=exchanges,
        gates=Gates(context, execution, plan.gated, late.build, late.begin),
        savepoints=savepoints,
        aligned=aligned,
        periodic=PeriodicCheckpoints(context, execution, exchanges, savepoints, take_id),
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
        take_id=take_id,
    )
    return Coordinator(context, execution, parts, finals, at_end), parts
