"""The options of `kafka_range`."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final, Literal, cast

from pydantic import Field, PrivateAttr, field_validator, model_validator

from spark_ext.clients.kafka import KafkaOptions
from spark_ext.clients.pinned_schemas import Pinned, pin
from spark_ext.clients.schema_registry import Registry, RegistryOptions
from spark_ext.options import Bytes, Milliseconds, Names
from spark_ext.sources.contract import SourceOptions
from spark_ext.sources.kafka_range.bounds import Bound, options_of

Format = Literal["bytes", "json", "avro", "protobuf"]
DECODED: Final = ("key", "value")


class KafkaRangeOptions(SourceOptions, KafkaOptions, RegistryOptions):
    """Options of `kafka_range`."""

    secret_fields: ClassVar[frozenset[str]] = frozenset({"client_options", "schema_registry_options"})
    identity_fields: ClassVar[frozenset[str]] = frozenset(
        {"bootstrap_servers", "pattern", "schema_registry_url", "topics"}
    )

    topics: Names = ()
    """Names of the topics to read, comma-separated."""
    pattern: str | None = None
    """Regular expression of the names of the topics to read, instead of `topics`."""
    internal_topics: bool = False
    """Whether `pattern` also matches topics in which Kafka, a schema registry or `kafka_2pc` keep their own state."""
    starting: str | None = None
    """`earliest` (default), `latest`, or offsets by partition: `{"orders": {"0": 23, "1": -2}}`; -2 is earliest."""
    starting_time: str | None = None
    """Begin with the first message at or after a time: ISO 8601 or ms, one for all or by partition."""
    starting_time_unmatched: Literal["latest", "refuse"] = "latest"
    """What is done about a partition without a message at or after `starting_time`: it begins at its end, or the query
    is refused."""
    ending: str | None = None
    """`latest` (default), `none`, or offsets by partition, exclusive; -1 is latest."""
    ending_time: str | None = None
    """End before the first message at or after a time: ISO 8601 or ms, one for all or by partition. A future time is
    awaited; a partition without such a message ends at its end `ending_grace` after that time."""
    ending_grace: Milliseconds = 5_000
    """How long after `ending_time` older messages may still arrive, ms."""
    lost_records: Literal["refuse", "accept"] = "refuse"
    """Whether records that retention deleted before they were read stop the query, or are skipped."""
    headers: bool = False
    """Whether to add a column `headers`."""
    min_partitions: int | None = Field(default=None, gt=0)
    """At least how many tasks read an epoch that has enough messages: large ranges of a partition are divided, so that
    its messages are no longer in order; None: a partition is read by one task."""
    value_format: Format = "bytes"
    """How values are encoded: `avro` and `protobuf` as in a schema registry, which then gives the type of the column;
    `json`, text that is checked; `bytes`, not decoded."""
    value_subject: str | None = Field(default=None, min_length=1)
    """The subject of the schema by which values are read; default: `<topic>-value`, if there is one topic."""
    value_version: int | Literal["latest"] = "latest"
    """Its version; `latest`: the one that is the latest when the query is defined."""
    value_message: str | None = Field(default=None, min_length=1)
    """With `protobuf`: full name of the message; default: the first one of the schema."""
    key_format: Format = "bytes"
    """How keys are encoded, as `value_format`."""
    key_subject: str | None = Field(default=None, min_length=1)
    """The subject of the schema by which keys are read; default: `<topic>-key`."""
    key_version: int | Literal["latest"] = "latest"
    """Its version, as `value_version`."""
    key_message: str | None = Field(default=None, min_length=1)
    """With `protobuf`: full name of the message, as `value_message`."""
    group: str | None = Field(default=None, min_length=1)
    """Consumer group to which committed positions are written, for Kafka's own tools; never read."""
    message_bytes: Bytes = Field(default=1024, gt=0)
    """Assumed size of a message for `max_bytes_per_epoch`, bytes: sizes are not known before reading."""
    _bounds: tuple[Bound, Bound] = PrivateAttr()

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as problem:
            raise ValueError(f"this is not a regular expression: {problem}") from None
        return value

    @model_validator(mode="after")
    def _together(self) -> KafkaRangeOptions:
        if bool(self.topics) == (self.pattern is not None):
            raise ValueError("give either topics or pattern")
        if self.internal_topics and self.pattern is None:
            raise ValueError("internal_topics needs pattern: with topics any topic can be named")
        if self.starting_time is None and self.starting_time_unmatched != "latest":
            raise ValueError("starting_time_unmatched needs starting_time")
        if self.min_partitions is not None and self.readers is not None and self.readers < self.min_partitions:
            raise ValueError(f"readers={self.readers} is less than min_partitions={self.min_partitions}")
        self._bounds = options_of(self.model_dump())
        return self

    @field_validator("value_version", "key_version")
    @classmethod
    def _positive(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("versions count from 1")
        return value

    @model_validator(mode="after")
    def _formats_together(self) -> KafkaRangeOptions:
        registered = [column for column in DECODED if self.is_registered(column)]
        if registered and self.schema_registry_url is None:
            raise ValueError(f"{registered[0]}_format={self._of(registered[0], 'format')} needs schema_registry_url")
        for name in ("schema_registry_url", "schema_registry_options"):
            if not registered and getattr(self, name):
                raise ValueError(f"{name} needs value_format or key_format to be avro or protobuf")
        for column in DECODED:
            for part in ("subject", "version", "message"):
                name = f"{column}_{part}"
                given = getattr(self, name) != type(self).model_fields[name].default
                wanted = ("protobuf",) if part == "message" else ("avro", "protobuf")
                if given and self._of(column, "format") not in wanted:
                    raise ValueError(f"{name} needs {column}_format={' or '.join(wanted)}")
            if column in registered and self._of(column, "subject") is None and len(self.topics) != 1:
                raise ValueError(
                    f"{column}_subject is needed: there is not exactly one topic, whose subject it could be"
                )
        return self

    def _of(self, column: str, part: str) -> Any:
        return getattr(self, f"{column}_{part}")

    def is_registered(self, column: str) -> bool:
        """Whether a column is decoded by a schema of the registry."""
        return self._of(column, "format") in ("avro", "protobuf")

    def subject(self, column: str) -> str:
        """The subject of a column's schema."""
        return cast(str, self._of(column, "subject")) or f"{self.topics[0]}-{column}"

    def pin(self, column: str, who: str) -> Pinned:
        """Ask the registry for the schema of a column."""
        registry = Registry(self, self.request_timeout / 1000, who)
        version = self._of(column, "version")
        return pin(
            registry,
            self._of(column, "format"),
            self.subject(column),
            None if version == "latest" else version,
            self._of(column, "message"),
        )

    def identity(self) -> dict[str, str]:
        """With the formats, and the schemas with their versions as they are now: another one has other columns."""
        found = super().identity()
        for column in DECODED:
            if self._of(column, "format") == "bytes":
                continue
            found[f"{column}_format"] = self._of(column, "format")
            if self.is_registered(column):
                pinned = self.pin(column, f"source '{self.uid}' (kafka_range)")
                found |= {f"{column}_subject": pinned.subject, f"{column}_version": pinned.known_as}
                found |= {f"{column}_message": pinned.message} if pinned.message else {}
        return found

    @property
    def start(self) -> Bound:
        """The beginning of partitions."""
        return self._bounds[0]

    @property
    def end(self) -> Bound:
        """The end of partitions."""
        return self._bounds[1]
