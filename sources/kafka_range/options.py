"""The options of `kafka_range`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from spark_ext.clients.kafka import KafkaOptions
from spark_ext.options import Bytes, Milliseconds, Names
from spark_ext.sources.contract import SourceOptions
from spark_ext.sources.kafka_range.bounds import Bound, options_of
from spark_ext.sources.registered import RegisteredOptions, Version
from spark_ext.sources.spark_names import KAFKA

Format = Literal["bytes", "json", "avro", "protobuf"]


class KafkaRangeOptions(SourceOptions, KafkaOptions, RegisteredOptions):
    """Options of `kafka_range`."""

    secret_fields: ClassVar[frozenset[str]] = frozenset({"client_options", "schema_registry_options"})
    decoded: ClassVar[tuple[str, ...]] = ("value", "key")
    foreign_names: ClassVar[Mapping[str, str]] = KAFKA
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
    starting_timestamp: str | None = None
    """Begin with the first message at or after a time: ISO 8601 or ms, one for all or by partition."""
    starting_timestamp_unmatched: Literal["latest", "refuse"] = "latest"
    """What is done about a partition without a message at or after `starting_timestamp`: it begins at its end, or the
    query is refused."""
    ending: str | None = None
    """`latest` (default), `none`, or offsets by partition, exclusive; -1 is latest."""
    ending_timestamp: str | None = None
    """End before the first message at or after a time: ISO 8601 or ms, one for all or by partition. A future time is
    awaited; a partition without such a message ends at its end `ending_grace` after that time."""
    ending_grace: Milliseconds = 5_000
    """How long after `ending_timestamp` older messages may still arrive, ms."""
    lost_records: Literal["refuse", "accept"] = "refuse"
    """Whether records that retention deleted before they were read stop the query, or are skipped."""
    headers: bool = False
    """Whether to add a column `headers`."""
    min_partitions: int | None = Field(default=None, gt=0)
    """At least how many tasks read an epoch that has enough messages: large ranges of a partition are divided, so that
    its messages are no longer in order; None: a partition is read by one task."""
    value_format: Format = "bytes"
    """How values are encoded: `avro` and `protobuf` as in a schema registry, which then gives the type of the column;
    `json`, text that is checked, or the declared fields; `bytes`, not decoded."""
    value_subject: str | None = Field(default=None, min_length=1)
    """The subject of the schema by which values are read; default: `<topic>-value`, if there is one topic."""
    value_version: Version = "latest"
    """Its version; `latest`: the one that is the latest when the query is defined."""
    value_message: str | None = Field(default=None, min_length=1)
    """With `protobuf`: full name of the message; default: the first one of the schema."""
    key_format: Format = "bytes"
    """How keys are encoded, as `value_format`."""
    key_subject: str | None = Field(default=None, min_length=1)
    """The subject of the schema by which keys are read; default: `<topic>-key`."""
    key_version: Version = "latest"
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
        if self.starting_timestamp is None and self.starting_timestamp_unmatched != "latest":
            raise ValueError("starting_timestamp_unmatched needs starting_timestamp")
        if self.min_partitions is not None and self.readers is not None and self.readers < self.min_partitions:
            raise ValueError(f"readers={self.readers} is less than min_partitions={self.min_partitions}")
        self._bounds = options_of(self.model_dump())
        return self

    def subject(self, column: str) -> str | None:
        """The one that is given, or that of the topic, if there is one topic."""
        return super().subject(column) or (f"{self.topics[0]}-{column}" if len(self.topics) == 1 else None)

    def identity(self) -> dict[str, str]:
        """With the schemas of decoded columns."""
        return {**super().identity(), **self.schemas(f"source '{self.uid}' (kafka_range)")}

    @property
    def start(self) -> Bound:
        """The beginning of partitions."""
        return self._bounds[0]

    @property
    def end(self) -> Bound:
        """The end of partitions."""
        return self._bounds[1]
