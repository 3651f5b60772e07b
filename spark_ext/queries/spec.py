"""The specification of a query: its uid, the operators found in its plan, and its sink. Immutable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from spark_ext.errors import ConfigurationError
from spark_ext.model.end_of_input import FORMAT as END_OF_INPUT
from spark_ext.model.holds import ALL, SETTINGS
from spark_ext.options import UID
from spark_ext.queries import operators
from spark_ext.queries.named_tables import named_table, with_path
from spark_ext.queries.writer_checks import (
    NOTHING_STARTED,
    check_session,
    check_source,
    check_target,
    check_watermarks,
    check_writer,
    partition_option,
)
from spark_ext.spark.backend.kinds import backend_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_ext.model.offsets import Json


@dataclass(frozen=True)
class OperatorSpec:
    """A source or sink of a query."""

    uid: str
    format: str
    options: Mapping[str, str]
    """As given, secrets included: never shown or stored as they are (see `public_options`)."""

    def public_options(self) -> dict[str, str]:
        """The options with secrets masked: what may go into a table."""
        return operators.public_options(self.format, self.options)


class Builds(Protocol):
    """Builds a query from the user's configuration."""

    @property
    def who(self) -> str:
        """Job and query, for messages."""

    def build(self, values: Mapping[str, Json], sequence: int = 0) -> QuerySpec:
        """Build it.

        Args:
            values: the user's configuration of the query.
            sequence: of the last control event in it.
        """


@dataclass(frozen=True)
class Built:
    """How a query was built: what has to be known to build it anew."""

    builder: Builds
    values: Mapping[str, Json]
    """The user's configuration of the query."""
    read: frozenset[str]
    """The keys that its function has read."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark's for its session."""
    sequence: int = 0
    """The last control event in the configuration."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys whose change calls for a restart; see `model.holds.is_read`."""
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
    sources: tuple[OperatorSpec, ...]
    """Channel sources, in plan order."""
    ends: tuple[OperatorSpec, ...]
    """The `end_of_input` markers of its watermarks."""
    natives: tuple[str, ...]
    """Descriptions of leaves that are not ours: Spark's own sources."""
    sink: OperatorSpec | None
    """None for one of Spark's own sinks."""
    sink_format: str
    available_now: bool
    """Whether it ends with what is there when it starts; for Spark's own sources."""
    built: Built | None = None
    """How it was built, if it was added as a function of the configuration."""

    @property
    def rebuild(self) -> tuple[str, ...]:
        """Keys of the configuration on which its plan depends."""
        return () if self.built is None else self.built.keys

    @property
    def fed(self) -> frozenset[str]:
        """Uids of the sources that read what other queries of the job write."""
        return frozenset(source.uid for source in self.sources if operators.is_aligned(source.format))

    @property
    def feeds_exchange(self) -> bool:
        """Whether it writes what other queries of the job read."""
        return self.sink is not None and self.sink.format.lower() == "exchange_2pc"

    @property
    def operators(self) -> tuple[OperatorSpec, ...]:
        """Everything with a uid in this query."""
        return (*self.sources, *self.ends, *((self.sink,) if self.sink else ()))


def query_spec(job: str, uid: str, writer: DataStreamWriter, *, available_now: bool) -> QuerySpec:
    """Derive the specification from a writer's plan.

    Raises:
        ConfigurationError: a uid is missing, malformed or repeated, or an option of the writer belongs to the job.
    """
    who = f"job '{job}', query '{uid}'"
    if not UID.fullmatch(uid):
        raise ConfigurationError(
            f"'{uid}' cannot be a query's uid",
            operator=who,
            kept=NOTHING_STARTED,
            do="use letters, digits and . _ ~ -, beginning with a letter or digit, at most 128",
        )
    given = check_writer(writer, who)
    backend = backend_of(given)
    writer = backend.copy(given)
    target = backend.target(writer)
    check_target(target, who)
    partitioned = partition_option(target, who)
    if partitioned is not None:
        writer = writer.option("partition_by", partitioned)
        target = backend.target(writer)
    if named_table(target, who):
        writer = with_path(writer, target, who)
        target = backend.target(writer)
    available_now = available_now or "AvailableNow" in target.trigger
    frame = backend.frame(writer)
    check_session(frame.sparkSession, who)
    sources: list[OperatorSpec] = []
    ends: list[OperatorSpec] = []
    natives: list[str] = []
    operators.keep_secret(target.format, target.options)
    for leaf in backend.sources(frame):
        operators.keep_secret(leaf.format, leaf.options)
        if leaf.format != END_OF_INPUT and not operators.is_source(leaf.format):
            natives.append(leaf.description)
            continue
        if leaf.format != END_OF_INPUT:
            check_source(leaf, who, available_now=available_now)
        assert leaf.uid is not None
        found = OperatorSpec(leaf.uid, leaf.format, dict(leaf.options))
        (ends if leaf.format == END_OF_INPUT else sources).append(found)
    check_watermarks(backend.watermarks(frame), who)
    sink = None
    if operators.is_sink(target.format):
        # Building it checks its options, including the uid, before anything runs.
        sink = OperatorSpec(
            operators.sink(target.format, target.options).options.uid, target.format, dict(target.options)
        )
    spec = QuerySpec(
        uid,
        writer,
        tuple(sources),
        tuple(ends),
        tuple(natives),
        sink,
        target.format,
        available_now,
    )
    refuse_repeated(who, spec.operators)
    return spec


def refuse_repeated(who: str, found: tuple[OperatorSpec, ...]) -> None:
    """Refuse a uid that stands for two operators.

    Raises:
        ConfigurationError: names the uid and where it is used.
    """
    counts = Counter(operator.uid for operator in found)
    for uid, count in counts.items():
        if count > 1:
            same = [operator for operator in found if operator.uid == uid]
            formats = sorted({operator.format for operator in same})
            twice = all(operators.is_source(operator.format) for operator in same)
            raise ConfigurationError(
                f"uid '{uid}' stands for {count} operators ({', '.join(formats)}); its state could go to either",
                operator=who,
                kept=NOTHING_STARTED,
                do="load the source once per use, each time with a uid of its own (a self-join too)"
                if twice
                else f"give each operator a uid of its own, such as '{uid}-in' and '{uid}-out'",
            )
