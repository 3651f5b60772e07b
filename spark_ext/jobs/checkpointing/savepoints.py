"""What a savepoint is made of: the metadata of a cut, with the flags, definitions and positions that belong to it.

Of a running job or of one that has ended: from the logs of Spark and of the exchanges, the ledger and the targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_ext.checkpoints.pinning import ToPin
from spark_ext.checkpoints.savepoint import About
from spark_ext.checkpoints.unaligned import QueryLook, position_in
from spark_ext.errors import CheckpointError
from spark_ext.jobs.composition import SINK
from spark_ext.ledger.columns import from_arrow
from spark_ext.ledger.kinds import CheckpointMode, FinishedKind
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.schema import FinishedRow
from spark_ext.model.checkpoint_metadata import CheckpointMetadata, ExchangeMetadata, QueryMetadata, SinkMetadata
from spark_ext.model.commits import Epoch
from spark_ext.model.cut import CutPoint
from spark_ext.queries import operators
from spark_ext.queries.context import checkpoint_of
from spark_ext.queries.records import query_metadata
from spark_ext.spark.logs.spark_log import SparkLog

if TYPE_CHECKING:
    from spark_ext.checkpoints.unaligned import Logged, Taken
    from spark_ext.exchange.view import ExchangeView
    from spark_ext.jobs.linking.exchanges import Link
    from spark_ext.ledger import Incarnation, Ledger
    from spark_ext.model.dag import JobGraph
    from spark_ext.queries.run import QueryRun
    from spark_ext.queries.spec import QuerySpec


@dataclass(frozen=True)
class Member:
    """A query of the job, as a savepoint needs it."""

    spec: QuerySpec
    lineage: int
    checkpoint: str
    query_id: str | None
    had_finished: bool  # before this start
    ended_before: frozenset[str]  # its sources that had ended before this start
    last: int = -1  # its newest committed epoch; -1: none

    @classmethod
    def of_run(cls, run: QueryRun) -> Member:
        """Of a running job."""
        had_finished, ended = run.had_finished, run.ended_before
        return cls(run.spec, run.lineage, run.checkpoint, run.query_id, had_finished, ended, run.committed)

    @classmethod
    def of_memory(cls, spec: QuerySpec, memory: JobMemory, state: str) -> Member:
        """Of a job that does not run."""
        known = memory.of(spec.uid)
        checkpoint = checkpoint_of(state, spec.uid)
        query_id = SparkLog(checkpoint).query_id() or known.query_id
        ended = frozenset(uid for kind, uid in known.flags if kind == FinishedKind.SOURCE.value)
        return cls(spec, known.lineage, checkpoint, query_id, known.finished, ended, known.committed)

    @property
    def application(self) -> str:
        """Under which its target knows its epochs; "" without a sink of ours."""
        sink = self.spec.sink
        return "" if sink is None else self.epoch(-1, 0).application

    def epoch(self, number: int, incarnation: int) -> Epoch:
        """The identity of an epoch of it."""
        assert self.spec.sink is not None
        return Epoch(self.spec.sink.uid, self.lineage, self.query_id or "", number, incarnation)

    def logged(self) -> Logged:
        """The committed epochs that Spark still has, ascending."""
        log = SparkLog(self.checkpoint)
        found = ((epoch, log.offsets(epoch)) for epoch in log.commits())
        return [(epoch, offsets) for epoch, offsets in found if offsets is not None]

    def look(self) -> QueryLook:
        """A look at it while the job does not run."""
        return QueryLook(self.application, () if self.had_finished else tuple(self.logged()), self.had_finished)


@dataclass(frozen=True)
class Cutting:
    """A cut, and where it comes from."""

    job: str
    incarnation: Incarnation
    number: int  # of the checkpoint
    kind: str
    mode: CheckpointMode
    taken: Taken
    graph: JobGraph
    members: Sequence[Member]
    links: Sequence[Link]
    views: Mapping[str, ExchangeView]  # of the exchanges that are there


def cut_metadata(one: Cutting, memory: JobMemory) -> CheckpointMetadata:
    """What the ledger's row of a checkpoint says of its cut; what had finished by then is taken from `memory`."""
    queries = {member.spec.uid: _query(one, member, memory) for member in one.members}
    for name in (node.uid for node in one.graph):
        queries.setdefault(name, QueryMetadata(None, None))
    for name in sorted(memory.names - queries.keys()):
        known = memory.of(name)
        if known.finished:  # it has left the job since
            queries[name] = QueryMetadata(known.query_id, known.committed, True)
    exchanges = _exchanges(one, queries)
    return CheckpointMetadata(one.job, one.incarnation.lineage, one.incarnation.number, queries, exchanges)


def describe(one: Cutting, ledger: Ledger) -> ToPin:
    """All that a savepoint of a cut is made of."""
    memory = JobMemory.read(ledger)
    metadata = cut_metadata(one, memory)
    queries, by = metadata.queries, one.incarnation
    at, waiting = one.taken.at.isoformat(), one.taken.rows_in_flight
    about = About(
        one.job, by.job_id, one.number, by.lineage, by.number, one.kind, one.mode.value, at, waiting, by.start
    )
    definitions = {name: found for name in queries if (found := memory.of(name).definition) is not None}
    checkpoints = {member.spec.uid: member.checkpoint for member in one.members}
    paths = {link.name: link.path for link in one.links}
    masters = {name: (view.master, paths[name]) for name, view in one.views.items()}
    return ToPin(about, metadata, definitions, _flags(memory, queries, ledger), checkpoints, masters)


def _query(one: Cutting, member: Member, memory: JobMemory) -> QueryMetadata:
    spec = member.spec
    point = one.taken.cut.points.get(spec.uid, CutPoint(None))
    epoch, offsets = point.epoch, one.taken.offsets.get(spec.uid)
    if point.finished and epoch is None:
        last = memory.of(spec.uid).committed
        epoch = last if last >= 0 else None
    found = query_metadata(spec, member.query_id, epoch, offsets, finished=point.finished, restored=member.ended_before)
    if spec.sink is None:
        return found
    position = _position(member, -1 if epoch is None else epoch, one.incarnation.number)
    return replace(
        found, sinks={uid: SinkMetadata(sink.format, sink.options, position, True) for uid, sink in found.sinks.items()}
    )


def _position(member: Member, epoch: int, incarnation: int) -> Any:
    sink = member.spec.sink
    if sink is None or sink.format.lower() == SINK:
        return None  # what an exchange holds is described by itself
    return operators.sink(sink.format, sink.options).position(member.epoch(epoch, incarnation))


def _exchanges(one: Cutting, queries: Mapping[str, QueryMetadata]) -> dict[str, ExchangeMetadata]:
    members = {member.spec.uid: member for member in one.members}
    readers = {link.name: link.readers for link in one.links}
    producers = {name: node.uid for node in one.graph for name in node.writes}
    found = {}
    for name, view in one.views.items():
        state = view.state
        # Who wrote an exchange that nobody writes any more has finished, and has left the job.
        producer = producers.get(name)
        sealed = state.sealed is not None and (producer is None or queries[producer].finished)
        if state.sealed is not None and sealed:
            end = state.sealed + 1
        else:
            epoch = None if producer is None else queries[producer].epoch
            application = "" if producer is None or producer not in members else members[producer].application
            end = view.entries_upto(application, -1 if epoch is None else epoch)
        here = readers.get(name, {})
        reads = [state.released] if not here else []
        for uid, query in {**state.consumers, **here}.items():
            ended = query in queries and queries[query].finished
            if ended:
                reads.append(end)
            elif uid in here and query in queries:
                reads.append(_read(one, view, uid, query, end))
            else:
                # It is not built yet, or has left the job: what it has not read has been kept.
                reads.append(state.released)
        found[name] = ExchangeMetadata(view.about.kind, min(end, *reads), end, sealed)
    return found


def _read(one: Cutting, view: ExchangeView, uid: str, query: str, end: int) -> int:
    """The first entry that a source of a query which has not finished has not read in full."""
    offsets, state = one.taken.offsets.get(query), view.state
    begin = 0 if offsets is None else position_in(offsets, uid, view).released
    # Entries before the first row have no rows: they may be released before anybody has read anything.
    if begin < min(end, state.released) and (begin > 0 or state.released_rows):
        raise CheckpointError(
            f"entries {begin} to {min(end, state.released) - 1}, which source '{uid}' has not read at the cut, have "
            "been released",
            operator=f"job '{one.job}', query '{query}', {view.about.who}",
            kept="all committed epochs; the checkpoint was given up",
            do="take it again",
        )
    return max(begin, state.released)


_ENDS_OF_SOURCES: Final = pa.array([FinishedKind.SOURCE.value, FinishedKind.CLOSED.value])


def _flags(memory: JobMemory, queries: Mapping[str, QueryMetadata], ledger: Ledger) -> list[FinishedRow]:
    """The finished flags that belong to the cut: those up to its epoch and the last finish in its offsets."""
    if not memory.finished.num_rows:
        return []
    table = ledger.table(FinishedRow).read()
    found: list[pa.Table] = []
    for name, part in queries.items():
        lineage = memory.lineage(name)
        names = memory.lineages.names(name, lineage)
        mine = table.filter(
            pc.and_(
                pc.is_in(table["query"], value_set=pa.array(names, pa.string())), pc.equal(table["lineage"], lineage)
            )
        )
        if part.finished:
            found.append(mine)
            continue
        upto = pc.less_equal(mine["epoch"], -1 if part.epoch is None else part.epoch)
        found.append(mine.filter(pc.and_(upto, pc.is_in(mine["kind"], value_set=_ENDS_OF_SOURCES))))
        for uid, source in part.sources.items():
            flags = pc.and_(pc.equal(mine["source"], uid), pc.equal(mine["kind"], "channel"))
            found.append(mine.filter(pc.and_(flags, pc.less_equal(mine["sequence"], source.sequence))))
    rows = from_arrow(FinishedRow, pa.concat_tables(found)) if found else []
    once = {(row.kind, row.query, row.source, row.sequence): row for row in rows}
    return [once[key] for key in sorted(once)]
