"""The options of `kafka_range`."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from spark_ext.clients.kafka import KafkaOptions
from spark_ext.options import Bytes, Milliseconds, Names
from spark_ext.sources.contract import SourceOptions
from spark_ext.sources.kafka_range.bounds import Bound, options_of


class KafkaRangeOptions(SourceOptions, KafkaOptions):
    """Options of `kafka_range`."""

    secret_fields: ClassVar[frozenset[str]] = frozenset({"client_options"})

    identity_fields: ClassVar[frozenset[str]] = frozenset({"bootstrap_servers", "pattern", "topics"})

    topics: Names = ()
    """Names of the topics to read, comma-separated."""
    pattern: str | None = None
    """Regular expression of the names of the topics to read, instead of `topics`."""
    starting: str | None = None
    """`earliest` (default), `latest`, or offsets by partition: `{"orders": {"0": 23, "1": -2}}`; -2 is earliest."""
    starting_time: str | None = None
    """Begin with the first message at or after a time: ISO 8601 or ms, one for all or by partition."""
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
        self._bounds = options_of(self.model_dump())
        return self

    @property
    def start(self) -> Bound:
        """The beginning of partitions."""
        return self._bounds[0]

    @property
    def end(self) -> Bound:
        """The end of partitions."""
        return self._bounds[1]
