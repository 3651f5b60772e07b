"""How the queries of a job hang together at its start: which of them can be built, and the exchanges between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_ext.errors import refused
from spark_ext.exchange.contract import kind_options
from spark_ext.exchange.kinds import parts
from spark_ext.ingest.place import inbox_of
from spark_ext.jobs.composition import SINK, SOURCE, Composition, Gate, exchange_of, node_of
from spark_ext.jobs.linking.exchanges import Link
from spark_ext.jobs.linking.inboxes import InboxLink, inboxes_of
from spark_ext.jobs.starting.recorded_past import recall_late, with_renames
from spark_ext.ledger.memory import JobMemory
from spark_ext.model.dag import JobGraph
from spark_ext.model.definitions import QueryDefinition
from spark_ext.queries.assembly import query_run
from spark_ext.queries.writer_checks import NOTHING_STARTED, check_ends_now

if TYPE_CHECKING:
    from spark_ext.jobs.controlling.lookup_versions import LookupVersions
    from spark_ext.jobs.execution_graph import ExecutionGraph
    from spark_ext.jobs.linking.exchanges import Exchanges
    from spark_ext.ledger import LedgerWriter
    from spark_ext.ledger.schema import DefinitionRow
    from spark_ext.model.configuration import Configuration
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun
    from spark_ext.queries.spec import QuerySpec


def opened(
    composition: Composition, memory: JobMemory, number: int, configuration: Configuration, *, holds: bool = False
) -> tuple[list[QuerySpec], list[Gate]]:
    """The queries that can be built now, and those that wait; for `holds` see `JobContext.holds_gates`."""
    memory, _ = with_renames(composition.job, memory, composition.uids, composition.declared, number)
    specs = [composition.renewed(spec, configuration) for spec in composition.specs]
    waiting = []
    for gate in composition.gates:
        if all(memory.of(uid).finished for uid in gate.after) and (not holds or memory.knows(gate.uid)):
            specs.append(composition.build(gate, specs, configuration))
        else:
            waiting.append(gate)
    return specs, waiting


def check_now(spec: QuerySpec, job: str) -> None:
    """Refuse a run that ends with what is there over a source of a query that always has more."""
    check_ends_now([(one.format, one.options) for one in spec.sources], f"job '{job}', query '{spec.uid}'")


def check_followers(specs: Sequence[QuerySpec], graph: JobGraph, job: str) -> None:
    """Refuse queries that would wait for the end of one that reads what is there now, and has no end."""
    for spec in specs:
        behind = graph.downstreams(spec.uid)
        if spec.available_now and spec.natives and behind:
            raise refused(
                f"query '{behind[0]}' waits for the end of query '{spec.uid}', which has available_now over one of "
                f"Spark's own sources ({spec.natives[0]}): it reads what is there now, and has no end",
                f"job '{job}', query '{behind[0]}'",
                "remove available_now and run the job with until='now', in which the queries behind it follow it; with "
                "emit='all', or drained, it ends for good",
                NOTHING_STARTED,
            )


def checked_graph(
    composition: Composition, specs: Sequence[QuerySpec], waiting: Sequence[Gate], memory: JobMemory
) -> JobGraph:
    """The job's graph, in which what has finished may be missing."""
    ended = frozenset(name for name in memory.names if memory.of(name).finished and name not in composition.uids)
    sealed = frozenset(link.name for link in links_of(composition, specs, waiting=bool(waiting)) if _is_sealed(link))
    return composition.graph(specs, waiting, ended, sealed)


def _is_sealed(link: Link) -> bool:
    master = parts(link.kind, link.path, f"exchange '{link.name}'", link.options).master
    return master.describe() is not None and master.log.look().sealed is not None


def links_of(composition: Composition, specs: Sequence[QuerySpec], *, waiting: bool) -> list[Link]:
    """The exchanges of some queries, and those that the user has made.

    If others are `waiting`, what is read under a uid that no query has belongs to them.
    """
    places: dict[str, tuple[str, str, Mapping[str, str]]] = {
        one.name: (one.kind, one.path, one.options) for one in composition.exchanges.values() if waiting and one.readers
    }
    readers: dict[str, dict[str, str]] = {
        one.name: dict.fromkeys(one.readers, "") if waiting else {} for one in composition.exchanges.values()
    }
    for spec in specs:
        for operator in spec.operators:
            if operator.format.lower() not in (SOURCE, SINK):
                continue
            options = {name.lower(): value for name, value in operator.options.items()}
            path = options.get("path", "")
            name = exchange_of(path, composition.state)
            if name is not None:
                places[name] = (options.get("kind", "arrow"), path, kind_options(options))
                if operator.format.lower() == SOURCE:
                    readers.setdefault(name, {})[operator.uid] = spec.uid
    made = composition.exchanges
    return [
        Link(
            name, kind, path, options, readers.get(name, {}), made[name].descriptor if name in made else lambda _: None
        )
        for name, (kind, path, options) in places.items()
    ]


def inbox_links(composition: Composition, specs: Sequence[QuerySpec]) -> list[InboxLink]:
    """The inboxes that the user has made, and those that queries read by their paths."""
    made = composition.inboxes.values()
    found = {one.path: InboxLink(one.name, one.path, frozenset(one.readers), one.description) for one in made}
    for spec in specs:
        for uid, options in inboxes_of(spec):
            path = options["path"]
            name = inbox_of(path, composition.state)
            if name is None:
                raise refused(
                    f"'{path}' is not an inbox of this job: it is not in {composition.state}/inboxes",
                    f"job '{composition.job}', query '{spec.uid}', source '{uid}'",
                    "read an inbox in its own job, with job.inbox(name); between jobs, use a table",
                    NOTHING_STARTED,
                )
            found.setdefault(path, InboxLink(name, path, frozenset({uid})))
    return [*found.values()]


def restarted_exchanges(waiting: Sequence[Gate], memory: JobMemory) -> dict[str, int]:
    """By exchange with rows of a discarded history, the present lineage of its producer, which waits."""
    found: dict[str, int] = {}
    for gate in waiting:
        former = [row for row in memory.definitions if row.query == gate.uid]
        if former and not memory.knows(gate.uid):
            last = QueryDefinition.from_json(former[-1].definition)
            found |= dict.fromkeys(node_of(gate.uid, last).writes, memory.lineage(gate.uid))
    return found


class LateQueries:
    """Builds queries whose time has come while the job runs."""

    def __init__(
        self,
        composition: Composition,
        memory: JobMemory,
        context: JobContext,
        execution: ExecutionGraph,
        writer: LedgerWriter,
        exchanges: Exchanges,
        lookups: LookupVersions,
        configuration: Callable[[], Configuration],
    ) -> None:
        self._composition, self._memory, self._context, self._execution = composition, memory, context, execution
        self._writer, self._exchanges, self._configuration = writer, exchanges, configuration
        self._lookups = lookups
        self._graph = execution.graph
        self._rows: dict[str, DefinitionRow] = {}

    def build(self, gate: Gate) -> QueryRun:
        """A query that is to be started; on a worker's thread."""
        there = [run.spec for run in self._execution.runs]
        spec = self._composition.build(gate, there, self._configuration())
        built = {one.uid for one in there} | {spec.uid}
        waiting = [other for other in self._composition.gates if other.uid not in built]
        self._graph = checked_graph(self._composition, [*there, spec], waiting, self._memory)
        number = self._context.incarnation.number
        self._rows[spec.uid] = recall_late(
            self._context.job, self._memory, spec, there, number, early=self._context.early
        )
        if self._context.until is not None:
            check_now(spec, self._context.job)
        self._lookups.fix()
        run = query_run(spec, self._context, self._memory.lineage(spec.uid), {}, ())
        run.restore(None)
        return run

    def begin(self, run: QueryRun) -> None:
        """Give it the commands of its start; on the coordinator's thread."""
        links = links_of(self._composition, [run.spec], waiting=False)
        self._execution.link(self._graph)

        def record() -> None:
            self._exchanges.add(links)
            self._exchanges.register()
            self._writer.append([self._rows[run.spec.uid]])

        run.begin_late(record)
