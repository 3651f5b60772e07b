"""The options of the exchange kind `kafka`."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from spark_ext.clients.kafka import KafkaOptions
from spark_ext.clients.library import referenced
from spark_ext.exchange.contract import KindOptions
from spark_ext.options import Bytes, Milliseconds

LOG_BYTES: Final = 16 * 1024 * 1024  # the largest record of the log: an entry with the runs of all segments of an epoch
OVERHEAD: Final = 64 * 1024  # of a message, at most


class KafkaExchangeOptions(KindOptions, KafkaOptions):
    """Options of the exchange kind `kafka`."""

    request_timeout: Milliseconds = Field(default=10_000, gt=0)
    """Time limit for an answer of the brokers, ms."""
    topic_prefix: str = Field(default="spark-ext", pattern=r"^[A-Za-z0-9._-]{1,80}$")
    """How the names of the exchange's two topics begin."""
    topic_partitions: int = Field(default=4, gt=0, le=1000)
    """Number of partitions of the topic of rows. More of them spread the load over brokers; the number of the
    exchange's partitions is independent of it."""
    replication_factor: int = Field(default=-1, ge=-1)
    """Replicas of the topics. -1: the brokers' default."""
    min_insync_replicas: int | None = Field(default=None, gt=0)
    """How many replicas must have a record before it counts as written. None: the brokers' default."""
    chunk_bytes: Bytes = Field(default=900 * 1024, gt=0, le=LOG_BYTES)
    """Largest message of rows, bytes; longer runs of rows are divided. Must be below `message.max.bytes` of the
    brokers."""

    def client(self, who: str, **own: Any) -> dict[str, Any]:
        """See `KafkaOptions.client`; a setting may also name where its value is, `env:NAME` or `file:PATH`."""
        given = super().client(who, **own)
        return {name: referenced(one, name, who) if isinstance(one, str) else one for name, one in given.items()}
