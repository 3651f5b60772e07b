"""The specification of a query: its uid, the operators found in its plan, and its sink. Immutable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_ext.bad_rows.rules import Rule, rules_of, without_rules
from spark_ext.errors import ConfigurationError
from spark_ext.model.configuration import ALL, SETTINGS
from spark_ext.model.definitions import OperatorDefinition, QueryDefinition, Role
from spark_ext.model.end_of_input import FORMAT as END_OF_INPUT
from spark_ext.options import UID
from spark_ext.queries import operators
from spark_ext.queries.writer_checks import (
    NOTHING_STARTED,
    check_finalization,
    check_rules,
    check_session,
    check_source,
    check_target,
    check_watermarks,
    check_writer,
    counts_state,
    partition_option,
)
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.session.catalogue import resolve

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from spark_ext.model.offsets import Json


@dataclass(frozen=True)
class OperatorSpec:
    """A source or sink of a query."""

    uid: str
    format: str
    options: Mapping[str, str]  # as given, secrets included: never shown or stored as they are (see `public_options`)

    def public_options(self) -> dict[str, str]:
        """The options with secrets masked: what may go into a table."""
        return operators.public_options(self.format, self.options)


@dataclass(frozen=True)
class QueryBuild:
    """How a query was built: what has to be known to rebuild it."""

    operator: str  # job and query, for messages
    build: Callable[[Mapping[str, Json], int], QuerySpec]  # of the user's configuration and its last event
    values: Mapping[str, Json]  # the user's configuration of the query
    read: frozenset[str]  # the keys that its function has read
    settings: Mapping[str, str] = field(default_factory=dict)  # settings of Spark's for its session
    sequence: int = 0  # the last control event in the configuration

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys whose change calls for a restart; see `model.configuration.is_read`."""
        return (SETTINGS, *sorted(self.read))

    def differs(self, values: Mapping[str, Json]) -> bool:
        """Whether another configuration may lead to another plan."""
        return self._relevant(self.values) != self._relevant(values)

    def _relevant(self, values: Mapping[str, Json]) -> dict[str, Json]:
        keep = values if ALL in self.read else {key for key in values if key in self.read or key.startswith(SETTINGS)}
        return {key: values[key] for key in keep}


@dataclass(frozen=True)
class QuerySpec:
    """One streaming query of a job."""

    uid: str
    writer: DataStreamWriter
    sources: tuple[OperatorSpec, ...]  # channel sources, in plan order
    ends: tuple[OperatorSpec, ...]  # the `end_of_input` markers of its watermarks
    natives: tuple[str, ...]  # descriptions of leaves that are not ours: Spark's own sources
    sink: OperatorSpec | None  # none for one of Spark's own sinks
    sink_format: str
    available_now: bool  # whether it ends with what is there when it starts; for Spark's own sources
    built: QueryBuild | None = None  # how it was built, if it was added as a function of the configuration
    rules: tuple[Rule, ...] = ()  # which its sink carries out
    counts_state: bool = True  # whether Spark counts the rows in its state

    @property
    def schema(self) -> StructType:
        """Of the rows that it writes."""
        schema = backend_of(self.writer).frame(self.writer).schema
        return without_rules(schema) if self.rules else schema

    @property
    def rebuild(self) -> tuple[str, ...]:
        """Keys of the configuration on which its plan depends."""
        return () if self.built is None else self.built.keys

    @property
    def fed(self) -> frozenset[str]:
        """Uids of the sources that read what other queries of the job write."""
        return frozenset(source.uid for source in self.sources if operators.is_aligned(source.format))

    @property
    def watched(self) -> dict[str, tuple[str, ...]]:
        """By the uid of each marker, the sources under its watermark."""
        return {end.uid: tuple(end.options["watches"].split(",")) for end in self.ends}

    @property
    def feeds_exchange(self) -> bool:
        """Whether it writes what other queries of the job read."""
        return self.sink is not None and self.sink.format.lower() == "exchange_2pc"

    @property
    def has_timers(self) -> bool:
        """Whether a function of the user's keeps state, which may set timers; also if the plan does not say."""
        frame = backend_of(self.writer).frame(self.writer)
        found = backend_of(frame).stateful_operators(frame)
        return found is None or any("WithState" in one.partition(" ")[0] for one in found)

    @property
    def fires_timers(self) -> bool:
        """Whether its end waits for timers in processing time."""
        return any(end.options.get("processing_timers") == "fire" for end in self.ends)

    @property
    def operators(self) -> tuple[OperatorSpec, ...]:
        """Everything with a uid in this query."""
        return (*self.sources, *self.ends, *((self.sink,) if self.sink else ()))


def query_spec(job: str, uid: str, writer: DataStreamWriter, *, available_now: bool) -> QuerySpec:
    """Derive the specification from a writer's plan."""
    operator = f"job '{job}', query '{uid}'"
    if not UID.fullmatch(uid):
        raise ConfigurationError(
            f"'{uid}' cannot be a query's uid",
            operator=operator,
            kept=NOTHING_STARTED,
            do="use letters, digits and . _ ~ -, beginning with a letter or digit, at most 128",
        )
    given = check_writer(writer, operator)
    writer = backend_of(given).copy(given)
    target = backend_of(writer).target(writer)
    check_target(target, operator)
    partitioned = partition_option(target, operator)
    if partitioned is not None:
        writer = writer.option("partition_by", partitioned)
    writer = _with_path(writer, operator)
    target = backend_of(writer).target(writer)
    available_now = available_now or "AvailableNow" in target.trigger
    frame = backend_of(writer).frame(writer)
    check_session(frame.sparkSession, operator)
    sources: list[OperatorSpec] = []
    ends: list[OperatorSpec] = []
    natives: list[str] = []
    operators.keep_secret(target.format, target.options)
    for leaf in backend_of(frame).sources(frame):
        operators.keep_secret(leaf.format, leaf.options)
        if leaf.format != END_OF_INPUT and not operators.is_source(leaf.format):
            natives.append(leaf.description)
            continue
        if leaf.format != END_OF_INPUT:
            check_source(leaf, operator, available_now=available_now)
        assert leaf.uid is not None
        found = OperatorSpec(leaf.uid, leaf.format, dict(leaf.options))
        (ends if leaf.format == END_OF_INPUT else sources).append(found)
    check_watermarks(backend_of(frame).watermarks(frame), operator)
    rules = rules_of(frame.schema)
    check_rules(rules, writer, target.format, operator)
    sink = None
    if operators.is_sink(target.format):
        # Building it checks its options, including the uid, before anything runs.
        sink = OperatorSpec(
            operators.sink(target.format, target.options).options.uid, target.format, dict(target.options)
        )
    own = tuple(sources), tuple(ends), tuple(natives)
    counted = counts_state(frame.sparkSession)
    spec = QuerySpec(uid, writer, *own, sink, target.format, available_now, rules=rules, counts_state=counted)
    refuse_repeated(operator, spec.operators)
    check_finalization({one.uid: one.format for one in spec.operators}, natives, operator)
    return spec


def _with_path(writer: DataStreamWriter, operator: str) -> DataStreamWriter:
    """A writer of a job with the location of its table in place of a name; refused with both.

    All that follows knows the location only. A name that leads to another place at the next start is thus a `path` that
    has changed, and a table that was dropped and made again is one that lacks the job's commits: both are refused.
    """
    target = backend_of(writer).target(writer)
    option = operators.named_option(target.format)
    name = None if option is None else target.options.get(option)
    if option is None or name is None:
        return writer
    if "path" in target.options:
        raise ConfigurationError(
            f"the options '{option}' and 'path' are both set: '{name}' and '{target.options['path']}'",
            operator=operator,
            kept=NOTHING_STARTED,
            do="use one of them",
        )
    frame = backend_of(writer).frame(writer)
    schema = without_rules(frame.schema)
    path = resolve(frame.sparkSession, name, f"{operator}, sink '{target.options.get('uid')}'", schema)
    backend_of(writer).remove_option(writer, option)
    return writer.option("path", path)


def refuse_repeated(operator: str, found: tuple[OperatorSpec, ...]) -> None:
    """Refuse a uid that stands for two operators."""
    counts = Counter(one.uid for one in found)
    for uid, count in counts.items():
        if count > 1:
            same = [one for one in found if one.uid == uid]
            formats = sorted({one.format for one in same})
            twice = all(operators.is_source(one.format) for one in same)
            raise ConfigurationError(
                f"uid '{uid}' stands for {count} operators ({', '.join(formats)}); its state could go to either",
                operator=operator,
                kept=NOTHING_STARTED,
                do="load the source once per use, each time with a uid of its own (a self-join too)"
                if twice
                else f"give each operator a uid of its own, such as '{uid}-in' and '{uid}-out'",
            )


def definition_of(spec: QuerySpec) -> QueryDefinition:
    """What a query is made of, as the ledger remembers it."""
    found = [_operator(source, Role.SOURCE) for source in spec.sources]
    found += [_operator(end, Role.END) for end in spec.ends]
    found += [_operator(spec.sink, Role.SINK)] if spec.sink is not None else []
    frame = backend_of(spec.writer).frame(spec.writer)
    columns = tuple((field.name, field.dataType.simpleString()) for field in spec.schema.fields)
    state = backend_of(frame).stateful_operators(frame)
    reads = backend_of(frame).configuration_reads(frame)
    return QueryDefinition(tuple(found), spec.natives, spec.sink_format, columns, state, reads)


def _operator(spec: OperatorSpec, role: Role) -> OperatorDefinition:
    return OperatorDefinition(
        spec.uid, role, spec.format, operators.identity(spec.format, spec.options), spec.public_options()
    )
