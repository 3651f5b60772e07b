"""An exchange as a user holds it: one query of the job writes it, others read it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.errors import ParseException

from spark_ext.errors import ConfigurationError, refused
from spark_ext.exchange.contract import as_text
from spark_ext.exchange.descriptor import Descriptor, Shape, event_times, nullable
from spark_ext.exchange.kinds import checked_options, described_at
from spark_ext.model.pressure import in_flight
from spark_ext.options import UID, milliseconds
from spark_ext.queries.writer_checks import NOTHING_STARTED
from spark_ext.rules import below_rules
from spark_ext.spark.backend.kinds import backend_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

PARTITION: Final = "__spark_ext_partition"
"""The column that says to which partition a row goes, from `write` to the sink."""


class Exchange:
    """What one query of a job writes for others. `Job.exchange` makes it.

    Rows stay until every source that reads the exchange, and is known to the job, has committed them, whatever becomes
    of the producer. One that is added later reads all of them as long as none has been released; afterwards it is
    refused.

    Delivery: exactly once, from the producer's epochs to the consumers'. Order: rows of one key that one task of the
    producer has written reach a consumer in that order; between keys, and without a key, no order is kept.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: str,
        state: str,
        name: str,
        *,
        partitions: int,
        key: Sequence[str],
        kind: str | None,
        options: Mapping[str, object],
        default: tuple[str, Mapping[str, object]],
        max_in_flight: int | str | None,
        keep: str | int,
        schema: StructType | str | None,
    ) -> None:
        self.name = name
        """Unique in the job; also the uid of the sink that writes it."""
        self.path = f"{state.rstrip('/')}/exchanges/{name}"
        """Its folder in the job's state directory."""
        self.shape = Shape(partitions, tuple(key))
        """Its partitions and key."""
        self._spark = spark
        self._who = f"job '{job}', exchange '{name}'"
        if not UID.fullmatch(name):
            raise self._refused(
                f"'{name}' cannot be an exchange's name",
                "use letters, digits and . _ ~ -, beginning with a letter or digit, at most 128",
            )
        self.kind, self.options = self._chosen(kind, as_text(options), default)
        """How it is stored, and the options of that kind."""
        if any("," in column or column != column.strip() for column in key):
            raise self._refused(
                "a column of the key has a comma in its name, or begins or ends with a blank", "rename it"
            )
        self._options = {"path": self.path, "kind": self.kind}
        if self.options:
            self._options["kind_options"] = json.dumps(dict(self.options))
        try:
            self._writing = {"partitions": str(partitions), "key": ",".join(key), "keep": str(milliseconds(keep))}
        except ValueError as problem:
            raise self._refused(f"keep: {problem}", "give a duration such as '1 hour', or ms") from None
        try:
            self._writing["max_in_flight"] = str(in_flight(max_in_flight))
        except ValueError as problem:
            raise self._refused(f"max_in_flight: {problem}", "give one of these, or None for no limit") from None
        self._schema = None if schema is None else nullable(parsed(schema, self._who))
        self._readers: dict[str, None] = {}

    def _chosen(
        self, kind: str | None, options: Mapping[str, str], default: tuple[str, Mapping[str, object]]
    ) -> tuple[str, Mapping[str, str]]:
        """The kind: the given one or, without one, that of the exchange which is there, else the default."""
        if kind is None:
            if options:
                raise self._refused("options are given, and no kind", "name the kind whose options these are")
            about = described_at(self.path, self._who)
            kind, options = default[0], as_text(default[1])
            if about is not None and about.kind != kind:
                kind, options = about.kind, about.options
        return kind, checked_options(kind, options, self._who)

    @property
    def readers(self) -> tuple[str, ...]:
        """Uids under which it is read, in the order of the calls of `read`."""
        return tuple(self._readers)

    def descriptor(self, job_id: str) -> Descriptor | None:
        """What is known of it before it is written; None when its columns are not."""
        if self._schema is None:
            return None
        return Descriptor(
            name=self.name,
            id=secrets.token_hex(8),
            job_id=job_id,
            kind=self.kind,
            partitions=self.shape.partitions,
            key=self.shape.key,
            columns=self._schema.jsonValue(),
            max_in_flight=in_flight(self._writing["max_in_flight"]),
            keep=int(self._writing["keep"]),
            options=self.options,
        )

    def write(self, df: DataFrame) -> DataStreamWriter:
        """A writer of rows into the exchange, for `Job.add`.

        With a key, each row goes to the partition `hash(key) % partitions` by Spark's Murmur3, as bucketed tables do:
        the same in every process and release, nulls included.
        """
        options = {**self._options, **self._writing}
        if self.shape.key:
            options["partition_column"] = PARTITION
        made = below_rules(df, self._partitioned)
        return made.writeStream.format("exchange_2pc").options(uid=self.name, **options)

    def _partitioned(self, df: DataFrame) -> DataFrame:
        columns = df.columns
        if PARTITION in map(str.lower, columns):
            raise self._refused(f"the rows have a column '{PARTITION}', which the exchange uses", "rename it")
        for column in self.shape.key:
            if column not in columns:
                raise self._refused(
                    f"the key column '{column}' is not among the columns {', '.join(columns)}", "correct the key"
                )
        schema = nullable(df.schema)
        if self._schema is not None and nullable(self._schema) != nullable(schema):  # without marks of watermarks
            raise self._refused(
                f"the rows have the schema {df.schema.simpleString()}, and the exchange was given "
                f"{self._schema.simpleString()}",
                "make them the same",
            )
        known = event_times(self._schema) if self._schema is not None and self._readers else {}
        if known.items() - event_times(schema).items():
            raise self._refused(
                f"read was called before write, and took over the watermark of an earlier start ({_delays(known)}); "
                f"the rows have another one now ({_delays(event_times(schema))})",
                "call write before read",
            )
        self._schema = schema
        return with_partition(df, self.shape, self._who)

    def read(self, uid: str, **options: str | int) -> DataFrame:
        """The rows of the exchange, from the first one on; once the producer has finished, to their end.

        Call it before the job is started, also for a query that is built later (`after`): from then on what this
        source has not read is kept.
        """
        if self._schema is None:
            found = described_at(self.path, self._who)
            self._schema = None if found is None else found.schema
        if self._schema is None:
            raise self._refused(
                "its columns are not known yet",
                "call write(df) before read(uid), or pass the schema: job.exchange(name, schema=...)",
            )
        self._readers[uid] = None
        given = {**self._options, **{name: str(value) for name, value in options.items()}}
        times = event_times(self._schema)
        if times:
            given["watermarks"] = json.dumps(times)
        reader = self._spark.readStream.format("exchange").schema(self._schema).options(uid=uid, **given)
        return backend_of(self._spark).name_source(reader, self._spark, uid).load()

    def _refused(self, what: str, do: str) -> ConfigurationError:
        return ConfigurationError(what, operator=self._who, kept=NOTHING_STARTED, do=do)

    def __repr__(self) -> str:
        return f"<Exchange {self.name}: {self.shape}, read by {', '.join(self._readers) or 'nobody'}>"


def with_partition(df: DataFrame, shape: Shape, operator: str) -> DataFrame:
    """Rows with the number of their partition; without a key as they are."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions

    if not shape.key:
        return df
    hashed = functions.hash(*(functions.col(f"`{column.replace('`', '``')}`") for column in shape.key))
    try:
        return df.withColumn(PARTITION, functions.pmod(hashed, functions.lit(shape.partitions)))
    except AnalysisException as problem:
        raise ConfigurationError(
            f"the key {', '.join(shape.key)} cannot be hashed: {problem.getMessage()}",
            operator=operator,
            kept=NOTHING_STARTED,
            do="use columns of other types, such as a map's entries as text",
        ) from None


def _delays(times: Mapping[str, int]) -> str:
    return ", ".join(f"column '{name}', {delay} ms" for name, delay in times.items()) or "none"


def parsed(schema: StructType | str, operator: str) -> StructType:
    """A schema that a user has given, also as DDL text."""
    if not isinstance(schema, str):
        return schema
    from pyspark.sql.types import StructType

    try:
        found = StructType.fromDDL(schema)
    except ParseException:
        found = None
    if not isinstance(found, StructType):
        raise refused(f"the schema '{schema}' cannot be parsed", operator, "write it as in 'id long, at timestamp'")
    return found
