"""What a start finds before it claims anything: the queries that can be built, how they are linked, and their past.

Everything that can be refused without a look at the targets is refused here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_ext.control.job_events import in_force, request
from spark_ext.jobs.renamed_targets import add_events, addressed_to_nobody, with_renames
from spark_ext.jobs.starting.flow import check_followers, check_now, checked_graph, links_of, opened
from spark_ext.jobs.starting.recorded_past import RecordedState, recall
from spark_ext.ledger.memory import JobMemory

if TYPE_CHECKING:
    from spark_ext.control.log import ControlLog
    from spark_ext.jobs.composition import Composition, Gate
    from spark_ext.jobs.linking.exchanges import Link
    from spark_ext.model.configuration import Configuration
    from spark_ext.model.control import Event
    from spark_ext.model.dag import JobGraph
    from spark_ext.observing.bookkeeping import Bookkeeping
    from spark_ext.queries.spec import QuerySpec


@dataclass(frozen=True)
class StartOptions:
    """How a job is to be started."""

    takeover: bool = False
    """Start although another driver seems to run this job."""
    hold: bool = False
    """Complete the epochs that were interrupted, and plan no others."""
    until_now: bool = False
    """Read what is there, and end."""
    drain: bool = False
    """Request a drain before anything is started."""
    other_hosts: bool = False
    """Refuse also while a driver on another host is alive, by its heartbeat."""


@dataclass(frozen=True)
class StartPlan:
    """A job that may be started."""

    specs: tuple[QuerySpec, ...]
    """The queries that can be built now."""
    gated: tuple[Gate, ...]
    """Those that wait for others."""
    graph: JobGraph
    links: tuple[Link, ...]
    past: RecordedState
    configuration: Configuration
    """In force when the queries were built."""
    drain: int
    """The newest lineage for which a drain is in force; 0: none."""
    present: Callable[[Event], Event]
    """Gives an event of an earlier start the target that it has now."""


def planned(
    books: Bookkeeping, composition: Composition, control: ControlLog, options: StartOptions, *, halted: bool
) -> StartPlan:
    """Read what earlier starts have left, build the queries, and compare them with it.

    Args:
        halted: whether the job was stopped meanwhile: its past is then left as it is.
    """
    ledger, write_behind, job = books.ledger, books.context.write_behind, books.context.job
    memory = JobMemory.read(ledger)
    books.inherit()
    control.compact()
    configuration = with_renames(control.configuration(), memory.lineages, composition.declared.renamed)
    holds = options.until_now and (options.drain or bool(in_force(ledger.open_control_events(), "drain")))
    specs, gated = opened(composition, memory, books.context.incarnation.number, configuration, holds=holds)
    if options.until_now:
        for spec in specs:
            check_now(spec, job)
    graph = checked_graph(composition, specs, gated, memory)
    links = links_of(composition, specs, waiting=bool(gated))
    if halted:
        past = RecordedState(memory)
    else:
        past = recall(job, memory, ledger, specs, composition.declared, books.writer, [gate.uid for gate in gated])
        books.incidents.adopt(past.memory, composition.uids, write_behind)
    present = add_events(control, past.memory.lineages)
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
        known = ((spec, past.memory.of(spec.uid)) for spec in specs)
        running = [spec for spec, one in known if not one.finished and one.lineage > drain]
        check_followers(running, graph, job)
    return StartPlan(tuple(specs), tuple(gated), graph, tuple(links), past, configuration, drain, present)
