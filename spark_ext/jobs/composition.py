"""What a job is made of, as a user puts it together: queries, exchanges, and queries that wait for others to end."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spark_ext.control.log import ControlLog
from spark_ext.errors import ConfigurationError
from spark_ext.exchange.contract import as_text
from spark_ext.exchange.kinds import checked_options
from spark_ext.failures.classifier import load
from spark_ext.ingest.description import InboxDescription
from spark_ext.ingest.typed_rows import check_columns
from spark_ext.jobs.exchange import Exchange, parsed
from spark_ext.jobs.inbox import Inbox
from spark_ext.jobs.lookup import KIND, Lookup
from spark_ext.jobs.renamed_targets import with_renames
from spark_ext.ledger import Ledger
from spark_ext.ledger.identity import lineages
from spark_ext.ledger.schema import ControlEventRow
from spark_ext.metrics.exporters import check_measuring
from spark_ext.model.configuration import Configuration
from spark_ext.model.control import JOB
from spark_ext.model.dag import JobGraph, QueryNode, Reader
from spark_ext.model.definitions import QueryDefinition, Role
from spark_ext.observing.dump_folder import check_dumps
from spark_ext.observing.job_incidents import JobIncidents
from spark_ext.options import UID
from spark_ext.queries.builder import Builder, is_builder
from spark_ext.queries.spec import QuerySpec, query_spec, refuse_repeated
from spark_ext.queries.writer_checks import NOTHING_STARTED
from spark_ext.settings import JobSettings, refuse_unread
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.session import formats, object_stores
from spark_ext.spark.session.sessions import register
from spark_ext.storage import Location, StoreOptions, check_for_delta, is_s3, local_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from spark_ext.incidents.registry import Registry

SOURCE: Final = "exchange"
SINK: Final = "exchange_2pc"

# Builds a query: returns `df.writeStream...`. With an argument, from the user's configuration.
Build: TypeAlias = "Callable[[], DataStreamWriter] | Callable[[Mapping[str, Any]], DataStreamWriter]"


@dataclass(frozen=True)
class ChangeDeclarations:
    """What a user says of changes of the job: renames, accepted changes, and queries that are abandoned on purpose."""

    renamed: Mapping[str, str] = field(default_factory=dict)  # former names by query
    accepted: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by query, what may differ: `uid.option`
    removed: frozenset[str] = frozenset()

    def with_query(self, job: str, query: str, renamed_from: str | None, accept: Collection[str]) -> ChangeDeclarations:
        """What was said of a query when it was added."""
        operator = f"job '{job}', query '{query}'"
        if isinstance(accept, str):
            accept = (accept,)
        for change in accept:
            if not all(change.rpartition(".")[::2]):
                raise _refused(
                    f"'{change}' does not name an option of an operator",
                    operator,
                    "write the operator's uid, a dot, and the option, such as accept=('orders.path',)",
                )
        if renamed_from is not None and (renamed_from == query or renamed_from in self.renamed.values()):
            wrong = "is this query's own uid" if renamed_from == query else "was given for two queries"
            do = "name the uid under which this query ran before, once"
            raise _refused(f"renamed_from='{renamed_from}' {wrong}", operator, do)
        if query in self.removed:
            raise _added_and_removed(job, query)
        renamed = self.renamed if renamed_from is None else {**self.renamed, query: renamed_from}
        return replace(self, renamed=renamed, accepted={**self.accepted, query: frozenset(accept)})

    def with_removed(self, job: str, query: str) -> ChangeDeclarations:
        """A query is abandoned."""
        if query in self.accepted:
            raise _added_and_removed(job, query)
        return replace(self, removed=self.removed | {query})


def _added_and_removed(job: str, query: str) -> ConfigurationError:
    what, do = "the query is added to the job and removed from it", "leave out job.add(...) or job.remove(...)"
    return _refused(what, f"job '{job}', query '{query}'", do)


def _refused(what: str, operator: str, do: str) -> ConfigurationError:
    return ConfigurationError(what, operator=operator, kept=NOTHING_STARTED, do=do)


@dataclass(frozen=True)
class Gate:
    """A query that is built and started when others have finished."""

    uid: str
    after: tuple[str, ...]
    build: Any  # a writer, a function that returns it, or a `Builder`
    available_now: bool = False


class Composition:
    """The queries and exchanges of a job."""

    def __init__(self, spark: SparkSession, job: str, state: str) -> None:
        self.specs: list[QuerySpec] = []
        self.gates: list[Gate] = []
        self.exchanges: dict[str, Exchange] = {}
        self.inboxes: dict[str, Inbox] = {}
        self.lookups: dict[str, Lookup] = {}
        self._as_declared: dict[str, object] = {}
        self.declared = ChangeDeclarations()
        self._spark = spark
        self.job = job
        self.state = state.rstrip("/")

    def stored_configuration(self) -> Configuration:
        """What the control events have put into force, while the job does not run; it may have no ledger yet."""
        ledger = Ledger(self.state)
        if not ledger.table(ControlEventRow).exists():
            return Configuration()
        return with_renames(ControlLog(ledger).configuration(), lineages(ledger.jobs()), self.declared.renamed)

    @property
    def uids(self) -> tuple[str, ...]:
        """All queries, also those that are not built yet."""
        return (*(spec.uid for spec in self.specs), *(gate.uid for gate in self.gates))

    # -- putting it together ------------------------------------------------------------------------------------------

    def add(
        self,
        uid: str,
        query: DataStreamWriter | Build,
        after: str | Collection[str],
        *,
        available_now: bool,
        renamed_from: str | None,
        accept: Collection[str],
    ) -> None:
        """See `Job.add`."""
        gates = (after,) if isinstance(after, str) else tuple(after)
        if uid in self.uids:
            what, do = f"the job has a query '{uid}' already", "give each query a uid of its own"
            raise _refused(what, f"job '{self.job}'", do)
        before, self.declared = self.declared, self.declared.with_query(self.job, uid, renamed_from, accept)
        try:
            self._take(uid, query, gates, available_now=available_now)
        except BaseException:
            self.declared = before
            raise

    def _take(self, uid: str, query: DataStreamWriter | Build, gates: tuple[str, ...], *, available_now: bool) -> None:
        given: Any = query
        if callable(query) and is_builder(query, self._who(uid)):
            given = Builder(self.job, uid, query, self._spark, available_now)  # type: ignore[arg-type]
        if not gates:
            found = self.stored_configuration() if isinstance(given, Builder) else Configuration()
            spec = self._specified(uid, given, found, available_now=available_now)
            self._refuse_repeated(spec, self.specs)
            self.specs.append(spec)
        elif not UID.fullmatch(uid):
            do = "use letters, digits and . _ ~ -, beginning with a letter or digit, at most 128"
            raise _refused(f"'{uid}' cannot be a query's uid", self._who(uid), do)
        else:
            self.gates.append(Gate(uid, gates, given, available_now))

    def _specified(self, uid: str, given: Any, configuration: Configuration, *, available_now: bool) -> QuerySpec:
        if isinstance(given, Builder):
            return given.build(configuration.user(uid), configuration.sequence)
        return query_spec(self.job, uid, given() if callable(given) else given, available_now=available_now)

    def renewed(self, spec: QuerySpec, configuration: Configuration) -> QuerySpec:
        """A query with another configuration: calls the user's function if it takes one."""
        if spec.built is None:
            return spec
        values, sequence = configuration.user(spec.uid), configuration.sequence
        if not spec.built.differs(values):
            return replace(spec, built=replace(spec.built, values=values, sequence=sequence))
        return spec.built.build(values, sequence)

    def _refuse_repeated(self, spec: QuerySpec, others: Sequence[QuerySpec]) -> None:
        for other in others:
            for name in set(self.writes(spec)) & set(self.writes(other)):
                raise _refused(
                    f"query '{other.uid}' writes exchange '{name}' already; an exchange has one producer",
                    self._who(spec.uid),
                    "write to two exchanges, and read both",
                )
        refuse_repeated(self._who(spec.uid), tuple(operator for one in (*others, spec) for operator in one.operators))

    def remove(self, uid: str) -> None:
        """See `Job.remove`."""
        self.declared = self.declared.with_removed(self.job, uid)

    def exchange(self, name: str, **settings: Any) -> Exchange:
        """See `Job.exchange`."""
        if name in self.exchanges:
            do = "keep what job.exchange(...) returned, and use it again"
            raise _refused(f"the job has an exchange '{name}' already", f"job '{self.job}'", do)
        made = Exchange(self._spark, self.job, self.state, name, **settings)
        self.exchanges[name] = made
        return made

    def inbox(self, name: str, schema: StructType | str | None, **settings: Any) -> Inbox:
        """See `Job.inbox`."""
        who = f"job '{self.job}', inbox '{name}'"
        if name in self.inboxes:
            raise _refused("the job has this inbox already", who, "keep what job.inbox(...) returned, and use it again")
        columns = None if schema is None else parsed(schema, who)
        if columns is not None:
            check_columns(columns, who)
        stored = None if columns is None else columns.jsonValue()
        wanted = InboxDescription.wanted(name, who, columns=stored, **settings)
        self.inboxes[name] = Inbox(self._spark, self.job, self.state, wanted)
        return self.inboxes[name]

    def inbox_of(self, name: str) -> Inbox:
        """An inbox that the job has."""
        if name not in self.inboxes:
            raise _refused(f"the job has no inbox '{name}'", f"job '{self.job}'", "make it with job.inbox(...)")
        return self.inboxes[name]

    def lookup(self, name: str, **given: Any) -> Lookup:
        """See `Job.lookup`. A query's function declares its lookups again each time that it is called."""
        if self._as_declared.get(name, given) != given:
            raise _refused(
                "the job has declared it before, with another path, columns, key or max_bytes",
                f"job '{self.job}', lookup '{name}'",
                "declare it once, and use what job.lookup(...) has returned, or give it another name",
            )
        if name not in self.lookups:
            standing = self.stored_configuration().of(KIND, JOB, name)
            version = None if standing is None else standing["version"]
            self.lookups[name] = Lookup.declared(self.job, name, version=version, **given)
            self._as_declared[name] = given
        return self.lookups[name]

    def build(self, gate: Gate, others: Sequence[QuerySpec], configuration: Configuration) -> QuerySpec:
        """Build a query whose time has come: calls the user's function."""
        spec = self._specified(gate.uid, gate.build, configuration, available_now=gate.available_now)
        self._refuse_repeated(spec, others)
        return spec

    # -- the graph ----------------------------------------------------------------------------------------------------

    def graph(
        self,
        specs: Sequence[QuerySpec],
        waiting: Sequence[Gate],
        ended: Collection[str] = (),
        sealed: Collection[str] = (),
    ) -> JobGraph:
        """The job's graph."""
        written = {name for spec in specs for name in self.writes(spec)}
        after = {gate.uid: tuple(one for one in gate.after if one not in ended) for gate in self.gates}
        nodes = []
        for spec in specs:
            reads = tuple(
                reader
                # What is not built yet may write it; what has finished need not be in the job any more.
                for reader in self.reads(spec)
                if reader.exchange in written or not (waiting or reader.exchange in sealed)
            )
            nodes.append(QueryNode(spec.uid, reads, self.writes(spec), after.get(spec.uid, ())))
        nodes += [QueryNode(gate.uid, after=after[gate.uid]) for gate in waiting]
        return JobGraph(tuple(nodes))

    def reads(self, spec: QuerySpec) -> tuple[Reader, ...]:
        """The exchanges that a query reads."""
        return tuple(
            Reader(self._exchange_in(source.options, self._who(spec.uid), source.uid), source.uid)
            for source in spec.sources
            if source.format.lower() == SOURCE
        )

    def writes(self, spec: QuerySpec) -> tuple[str, ...]:
        """The exchanges that a query writes."""
        sink = spec.sink
        if sink is None or not spec.feeds_exchange:
            return ()
        return (self._exchange_in(sink.options, self._who(spec.uid), sink.uid),)

    def _exchange_in(self, options: Any, query: str, uid: str) -> str:
        path = {name.lower(): value for name, value in options.items()}.get("path", "")
        name = exchange_of(path, self.state)
        if name is None:
            raise _refused(
                f"'{path}' is not an exchange of this job: it is not in {self.state}/exchanges",
                f"{query}, operator '{uid}'",
                "read and write an exchange in its own job, with job.exchange(name); between jobs, use a table",
            )
        return name

    def _who(self, uid: str) -> str:
        return f"job '{self.job}', query '{uid}'"


def exchange_of(path: str, state: str) -> str | None:
    """The name of the exchange in a folder of a job's state directory; None for any other path."""
    place, _, name = path.rstrip("/").rpartition("/")
    return name if place == f"{state.rstrip('/')}/exchanges" and name else None


def node_of(query: str, definition: QueryDefinition) -> QueryNode:
    """A query of an earlier start in the graph, as the ledger remembers it."""
    sources, sinks = definition.of(Role.SOURCE), definition.of(Role.SINK)
    reads = tuple(Reader(one.identity.get("path", ""), one.uid) for one in sources if one.format.lower() == SOURCE)
    return QueryNode(query, reads, tuple(one.identity.get("path", "") for one in sinks if one.format.lower() == SINK))


def checked_job(
    spark: SparkSession, job: str, state: str, given: Mapping[str, Any]
) -> tuple[JobSettings, str, Registry]:
    """Check what a user makes a job of; its settings, absolute state directory, and types of incidents."""
    operator = f"job '{job}'"
    if not UID.fullmatch(job):
        do = "use letters, digits and . _ ~ -, beginning with a letter or digit, at most 128"
        raise _refused(f"'{job}' cannot be a job's name", operator, do)
    settings = JobSettings.of(job, given)
    checked_options(settings.exchange_kind, as_text(settings.exchange_options), f"{operator}, setting 'exchange_kind'")
    own = backend_of(spark).own_workers
    if not own and (settings.on_stall == "fail" or settings.stall_after is not None):
        name = "on_stall='fail'" if settings.on_stall == "fail" else "stall_after"
        raise _refused(
            f"{name} needs the driver's JVM, which alone knows whether a long epoch makes progress; a client of Spark "
            "Connect has none",
            operator,
            "leave it out; or use a classic session",
        )
    # A job that is only reset needs no session.
    refuse_unread(spark.conf.getAll if spark else (), os.environ, operator)
    # Refused here rather than by the start, which reads both again.
    registry = JobIncidents.load(settings.incidents, load(settings.failures)).registry
    check_measuring(job, settings)
    place = local_path(state)
    state_directory = state if place is None else str(place.expanduser().resolve())
    if place is None and not own:
        raise _refused(
            "a job over Spark Connect needs a state directory on a file system that the server and its executors share",
            operator,
            "use a path such as that of a volume or a network drive; or a classic session",
        )
    if place is None and settings.on_damage == "restore":
        raise _refused(
            "on_damage='restore' needs a state directory on a file system, where what is damaged can be moved aside",
            operator,
            "leave it out; after a failure restore the job into another state directory",
        )
    check_dumps(settings, state_directory, f"{operator}, setting 'dumps'")
    options = StoreOptions.of(settings.storage_options, f"{operator}, storage_options", kept=NOTHING_STARTED)
    if (options or place is None) and object_stores.use(
        spark, options, f"{operator}, storage_options", s3=is_s3(state_directory)
    ):
        # Spark has copied the environment of the workers when sources and sinks were registered; the user's own too.
        register(spark, *formats.known().values(), require_delta=False)
    if place is None:
        object_stores.check_store(spark, state_directory, f"{operator}, state directory")
    check_for_delta(Location(state_directory), f"{operator}, state directory")
    return settings, state_directory, registry
