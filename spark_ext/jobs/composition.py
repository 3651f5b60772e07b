"""What a job is made of, as a user puts it together: queries, exchanges, and queries that wait for others to end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spark_ext.control.log import ControlLog
from spark_ext.errors import ConfigurationError
from spark_ext.jobs.change_declarations import Wishes
from spark_ext.jobs.exchange import Exchange
from spark_ext.jobs.renamed_targets import with_renames
from spark_ext.ledger import Ledger
from spark_ext.ledger.identity import lineages
from spark_ext.ledger.schema import ControlEventRow
from spark_ext.model.configuration import Configuration
from spark_ext.model.dag import JobGraph, QueryNode, Reader
from spark_ext.model.definitions import QueryDefinition, Role
from spark_ext.options import UID
from spark_ext.queries.builder import Builder, is_builder
from spark_ext.queries.spec import QuerySpec, query_spec, refuse_repeated
from spark_ext.queries.writer_checks import NOTHING_STARTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SOURCE: Final = "exchange"
SINK: Final = "exchange_2pc"

Build: TypeAlias = "Callable[[], DataStreamWriter] | Callable[[Mapping[str, Any]], DataStreamWriter]"
"""Builds a query: returns `df.writeStream...`. With an argument, from the user's configuration."""


@dataclass(frozen=True)
class Gate:
    """A query that is built and started when others have finished."""

    uid: str
    after: tuple[str, ...]
    build: Any
    """A writer, a function that returns it, or a `Builder`."""
    available_now: bool = False


class Composition:
    """The queries and exchanges of a job.

    Args:
        spark: the job's session.
        job: its name.
        state: its state directory.
    """

    def __init__(self, spark: SparkSession, job: str, state: str) -> None:
        self.specs: list[QuerySpec] = []
        self.gates: list[Gate] = []
        self.exchanges: dict[str, Exchange] = {}
        self.wishes = Wishes()
        self._spark = spark
        self.job = job
        self.state = state.rstrip("/")
        self.configuration: Callable[[], Configuration] = self._stored
        """What the control events have put into force."""

    def _stored(self) -> Configuration:
        """By the ledger, before the job is started: there may be none yet."""
        ledger = Ledger(self.state)
        if not ledger.table(ControlEventRow).exists():
            return Configuration()
        return with_renames(ControlLog(ledger).configuration(), lineages(ledger.jobs()), self.wishes.renamed)

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
            raise ConfigurationError(
                f"the job has a query '{uid}' already",
                operator=f"job '{self.job}'",
                kept=NOTHING_STARTED,
                do="give each query a uid of its own",
            )
        before, self.wishes = self.wishes, self.wishes.with_query(self.job, uid, renamed_from, accept)
        try:
            self._take(uid, query, gates, available_now=available_now)
        except BaseException:
            self.wishes = before
            raise

    def _take(self, uid: str, query: DataStreamWriter | Build, gates: tuple[str, ...], *, available_now: bool) -> None:
        given: Any = query
        if callable(query) and is_builder(query, self._who(uid)):
            given = Builder(self.job, uid, query, self._spark, available_now)  # type: ignore[arg-type]
        if not gates:
            self._append(self._specified(uid, given, available_now=available_now))
        else:
            self._check_uid(uid)
            self.gates.append(Gate(uid, gates, given, available_now))

    def _specified(self, uid: str, given: Any, *, available_now: bool) -> QuerySpec:
        if isinstance(given, Builder):
            found = self.configuration()
            return given.build(found.user(uid), found.sequence)
        return query_spec(self.job, uid, given() if callable(given) else given, available_now=available_now)

    def renewed(self, spec: QuerySpec) -> QuerySpec:
        """A query with the configuration that is in force now: calls the user's function if it takes one.

        Raises:
            ConfigurationError: as `Job.add`.
            Exception: what the function raises.
        """
        if spec.built is None:
            return spec
        found = self.configuration()
        values = found.user(spec.uid)
        if not spec.built.differs(values):
            return replace(spec, built=replace(spec.built, values=values, sequence=found.sequence))
        return spec.built.build(values, found.sequence)

    def _append(self, spec: QuerySpec) -> None:
        self.refuse_repeated(spec, self.specs)
        self.specs.append(spec)

    def refuse_repeated(self, spec: QuerySpec, others: Sequence[QuerySpec]) -> None:
        """Refuse a query with the uid of an operator of another one.

        Raises:
            ConfigurationError: names it.
        """
        for other in others:
            for name in set(self.writes(spec)) & set(self.writes(other)):
                raise ConfigurationError(
                    f"query '{other.uid}' writes exchange '{name}' already; an exchange has one producer",
                    operator=self._who(spec.uid),
                    kept=NOTHING_STARTED,
                    do="write to two exchanges, and read both",
                )
        refuse_repeated(self._who(spec.uid), tuple(operator for one in (*others, spec) for operator in one.operators))

    def _check_uid(self, uid: str) -> None:
        if not UID.fullmatch(uid):
            raise ConfigurationError(
                f"'{uid}' cannot be a query's uid",
                operator=self._who(uid),
                kept=NOTHING_STARTED,
                do="use letters, digits and . _ ~ -, beginning with a letter or digit, at most 128",
            )

    def exchange(self, name: str, **settings: Any) -> Exchange:
        """See `Job.exchange`."""
        if name in self.exchanges:
            raise ConfigurationError(
                f"the job has an exchange '{name}' already",
                operator=f"job '{self.job}'",
                kept=NOTHING_STARTED,
                do="keep what job.exchange(...) returned, and use it again",
            )
        made = Exchange(self._spark, self.job, self.state, name, **settings)
        self.exchanges[name] = made
        return made

    def build(self, gate: Gate, others: Sequence[QuerySpec]) -> QuerySpec:
        """Build a query whose time has come: calls the user's function.

        Args:
            gate: the query.
            others: the queries that are there.

        Raises:
            ConfigurationError: as `Job.add`.
            Exception: what the function raises.
        """
        spec = self._specified(gate.uid, gate.build, available_now=gate.available_now)
        self.refuse_repeated(spec, others)
        return spec

    # -- the graph ----------------------------------------------------------------------------------------------------

    def graph(
        self,
        specs: Sequence[QuerySpec],
        waiting: Sequence[Gate],
        ended: Collection[str] = (),
        sealed: Collection[str] = (),
    ) -> JobGraph:
        """The job's graph.

        Args:
            specs: the queries that are built.
            waiting: those that are not.
            ended: queries that have finished and are not in the job any more.
            sealed: exchanges that such queries have written to their end.

        Raises:
            ConfigurationError: a cycle; an exchange that nobody writes, or that two queries write; an unknown query in
                `after`; an exchange of another job.
        """
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
        """The exchanges that a query reads.

        Raises:
            ConfigurationError: one is another job's.
        """
        return tuple(
            Reader(self._exchange_in(source.options, self._who(spec.uid), source.uid), source.uid)
            for source in spec.sources
            if source.format.lower() == SOURCE
        )

    def writes(self, spec: QuerySpec) -> tuple[str, ...]:
        """The exchanges that a query writes.

        Raises:
            ConfigurationError: one is another job's.
        """
        sink = spec.sink
        if sink is None or not spec.feeds_exchange:
            return ()
        return (self._exchange_in(sink.options, self._who(spec.uid), sink.uid),)

    def _exchange_in(self, options: Any, who: str, operator: str) -> str:
        path = {name.lower(): value for name, value in options.items()}.get("path", "")
        name = exchange_of(path, self.state)
        if name is None:
            raise ConfigurationError(
                f"'{path}' is not an exchange of this job: it is not in {self.state}/exchanges",
                operator=f"{who}, operator '{operator}'",
                kept=NOTHING_STARTED,
                do="read and write an exchange in its own job, with job.exchange(name); between jobs, use a table",
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
    reads = []
    writes = []
    for one in definition.operators:
        name = one.identity.get("path", "")
        if one.role is Role.SOURCE and one.format.lower() == SOURCE:
            reads.append(Reader(name, one.uid))
        if one.role is Role.SINK and one.format.lower() == SINK:
            writes.append(name)
    return QueryNode(query, tuple(reads), tuple(writes))
