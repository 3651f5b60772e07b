"""What every connector to Kafka shares: its options, its client library, and Kafka's errors in this project's words.

The library is confluent-kafka, loaded when a client is made, so that a session without Kafka does not need it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, Field

from spark_ext.errors import (
    ConfigurationError,
    DataError,
    EnvironmentProblem,
    SparkExtError,
    StorageError,
)
from spark_ext.options import Milliseconds

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

OWN: Final = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "delivery.report.only.error",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "error_cb",
        "group.id",
        "isolation.level",
        "message.timeout.ms",
        "metadata.broker.list",
        "partition.assignment.strategy",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
"""Client settings on which exactness rests: they are not the user's to change."""

_NO_TOPIC: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_NOT_ALLOWED: Final = frozenset(
    {
        "_AUTHENTICATION",
        "_SSL",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    }
)
_UNREACHED: Final = frozenset({"_TRANSPORT", "_RESOLVE"})
"""Why a broker could not be reached: tells more than that a call timed out."""

_NO_MESSAGE: Final = frozenset(
    {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_TIMESTAMP", "INVALID_RECORD", "POLICY_VIOLATION"}
)
"""Names of librdkafka: what comes back however often it is repeated."""

_SETTLING: Final = frozenset(
    {
        "NOT_LEADER_FOR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "UNKNOWN_LEADER_EPOCH",
        "FENCED_LEADER_EPOCH",
        "OFFSET_NOT_AVAILABLE",
        "UNKNOWN_TOPIC_OR_PART",
        "_NOENT",
    }
)
"""What a partition says that has just been created, or whose leader has just changed or come back."""

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")


def _settings(value: object) -> object:
    """A JSON object of client settings."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            value = None
    if not isinstance(value, Mapping) or not all(isinstance(one, str | int | float | bool) for one in value.values()):
        raise ValueError('this is not a JSON object such as {"security.protocol": "SASL_SSL"}')
    for name in sorted(OWN & value.keys()):
        raise ValueError(f"'{name}' is set by the connector")
    return dict(value)


class KafkaOptions(BaseModel):
    """Options of every connector to Kafka; a connector's options inherit from it too."""

    bootstrap_servers: str = Field(min_length=1)
    """Brokers to begin with: `host:port`, comma-separated."""

    client_options: Annotated[Mapping[str, Any], BeforeValidator(_settings)] = Field(default_factory=dict, repr=False)
    """Settings of the client as librdkafka names them, as a JSON object: security, compression, sizes. `${NAME}` in a
    value stands for an environment variable of the process that connects. Never shown or stored."""

    request_timeout: Milliseconds = Field(default=30_000, gt=0)
    """How long the brokers may take to answer, ms."""

    def client(self, who: str, **own: Any) -> dict[str, Any]:
        """The configuration of a client; `own` wins, with `_` for `.` in its names.

        Raises:
            ConfigurationError: a variable is not in this process's environment.
        """

        def filled(match: re.Match[str]) -> str:
            if match[1] not in os.environ:
                raise ConfigurationError(
                    f"the option 'client_options' names the variable {match[1]}, which is not in the environment",
                    operator=who,
                    kept="nothing was read or written",
                    do=f"set {match[1]} for the driver and the executors (spark.executorEnv.{match[1]})",
                )
            return os.environ[match[1]]

        given = {
            name: _VARIABLE.sub(filled, value) if isinstance(value, str) else value
            for name, value in self.client_options.items()
        }
        return {
            "bootstrap.servers": self.bootstrap_servers,
            # A lost connection is told by the call that it fails, not on the terminal.
            "log_level": 2,
            **given,
            **{name.replace("_", "."): value for name, value in own.items()},
        }


def library(who: str) -> Any:
    """The client library.

    Raises:
        EnvironmentProblem: it is not installed.
    """
    try:
        import confluent_kafka.admin
    except ImportError as missing:
        raise EnvironmentProblem(
            "the Kafka client is not installed in this Python",
            operator=who,
            kept="nothing was read or written",
            do="pip install 'spark-ext[kafka]', for the driver and the executors",
        ) from missing
    return confluent_kafka


def admin(options: KafkaOptions, who: str) -> AdminClient:
    """A client for metadata and offsets that the brokers have let in. Keep it referenced while its calls run.

    Raises:
        EnvironmentProblem: the library is missing.
        ConfigurationError: a client option is refused, or the credentials are.
        StorageError: no broker answers.
    """
    kafka = library(who)
    from confluent_kafka.admin import AdminClient

    heard: list[KafkaError] = []
    settings = {**options.client(who), "error_cb": heard.append}
    try:
        client = AdminClient(settings)
    except (kafka.KafkaException, TypeError, ValueError) as problem:
        raise refused_settings(problem, who) from problem
    _enter(client, heard, options.request_timeout / 1000, who)
    return client


def _enter(client: AdminClient, heard: list[KafkaError], seconds: float, who: str) -> None:
    """Wait for a broker's first answer. That it refuses credentials is told by callbacks only; calls just time out."""
    from confluent_kafka import KafkaException

    answer = client.describe_cluster(request_timeout=seconds)
    limit = time.monotonic() + seconds + 1
    while True:
        client.poll(0)
        refusal = next((error for error in heard if error.name() in _NOT_ALLOWED), None)
        if refusal is not None:
            raise told(refusal, "the brokers do not let the client in", who, "nothing was read or written")
        try:
            answer.result(0.02)
            return
        except FutureTimeout:
            if time.monotonic() < limit:
                continue
            cause: Any = "no answer"
        except KafkaException as problem:
            cause = problem.args[0].str()
        reason = next((error.str() for error in heard if error.name() in _UNREACHED), cause)
        raise StorageError(
            f"no broker could be reached in {seconds:g} s: {reason}",
            operator=who,
            kept="all that was committed",
            do="see to the brokers, the network and 'bootstrap_servers'; it is tried again with back-off",
        )


def answered(answer: Any, seconds: float) -> Any:
    """What a call of the library gives.

    Raises:
        KafkaException: the brokers' refusal.
        TimeoutError: no answer; before Python 3.11 futures have an error of their own for that.
    """
    try:
        return answer.result(seconds)
    except FutureTimeout:
        raise TimeoutError(f"no answer within {seconds:g} s") from None


def offsets(
    client: AdminClient, wanted: Mapping[tuple[str, int], Any], seconds: float, *, committed: bool = True
) -> dict[tuple[str, int], int]:
    """Offsets of partitions, asked for all at once; -1 where no message is as late as a time.

    Args:
        client: from `admin`.
        wanted: (topic, partition) to an `OffsetSpec`.
        seconds: how long to wait for an answer. A partition without a leader is asked again until then.
        committed: whether the end is that of what a `read_committed` reader sees.

    Raises:
        KafkaException: a partition's error.
        TimeoutError: no answer.
    """
    import confluent_kafka as kafka

    level = kafka.IsolationLevel.READ_COMMITTED if committed else kafka.IsolationLevel.READ_UNCOMMITTED
    limit = time.monotonic() + seconds
    places = {kafka.TopicPartition(*place): spec for place, spec in wanted.items()}
    while places:
        asked = client.list_offsets(places, isolation_level=level, request_timeout=seconds)
        try:
            found = {place: answered(answer, seconds + 1) for place, answer in asked.items()}
            return {(place.topic, place.partition): answer.offset for place, answer in found.items()}
        except kafka.KafkaException as problem:
            if problem.args[0].name() not in _SETTLING or time.monotonic() > limit:
                raise
            time.sleep(0.02)
    return {}


def partitions(client: AdminClient, topics: Collection[str], seconds: float, who: str, kept: str) -> dict[str, int]:
    """How many partitions topics have; 0: there is no such topic.

    Asked like this the brokers make no topic of that name, which by default they do for whoever asks for its metadata.

    Raises:
        SparkExtError: the brokers refuse to tell, or do not answer.
    """
    import confluent_kafka as kafka

    asked = client.describe_topics(kafka.TopicCollection(list(topics)), request_timeout=seconds)
    found: dict[str, int] = {}
    for topic, answer in asked.items():
        try:
            found[topic] = len(answered(answer, seconds + 1).partitions)
        except TimeoutError as problem:
            raise unanswered(who, seconds, kept) from problem
        except kafka.KafkaException as problem:
            if problem.args[0].name() not in _NO_TOPIC:
                raise told(problem.args[0], f"topic '{topic}' could not be looked at", who, kept) from problem
            found[topic] = 0
    return found


def no_topic(topic: str, what: str, who: str, kept: str) -> ConfigurationError:
    """The refusal of a topic that is not there."""
    return ConfigurationError(
        f"the topic '{topic}' cannot be {what}: there is no such topic",
        operator=who,
        kept=kept,
        do="create the topic, or correct its name",
    )


def unanswered(who: str, seconds: float, kept: str) -> StorageError:
    """The brokers are silent."""
    return StorageError(
        f"the brokers gave no answer within {seconds:g} s",
        operator=who,
        kept=kept,
        do="see to the brokers and the network; it is tried again with back-off",
    )


def refused_settings(problem: Exception, who: str) -> ConfigurationError:
    """A client could not be made. The text of the library names the setting, never its value, unless it is an enum."""
    return ConfigurationError(
        f"the client's settings are refused: {text(problem)}",
        operator=who,
        kept="nothing was read or written",
        do="correct the option 'client_options'; its names are those of librdkafka",
    )


def text(problem: Exception) -> str:
    """What the library says, in short."""
    error = problem.args[0] if problem.args else problem
    return str(error.str()) if hasattr(error, "str") else str(error)


def told(error: KafkaError, what: str, who: str, kept: str) -> SparkExtError:
    """An error of Kafka as ours: terminal when a repetition gives the same, else transient.

    Args:
        error: what the library says.
        what: what could not be done, as the beginning of a sentence.
        who: source or sink, with topic and epoch where they are known.
        kept: what is safe.
    """
    name, said = error.name(), f"{what}: {error.str()} ({error.name()})"
    if name in _NO_TOPIC:
        return ConfigurationError(said, operator=who, kept=kept, do="create the topic, or correct its name")
    if name in _NOT_ALLOWED:
        return ConfigurationError(
            said, operator=who, kept=kept, do="see to the credentials in 'client_options' and to the brokers' ACLs"
        )
    if name == "INVALID_TRANSACTION_TIMEOUT":
        return ConfigurationError(
            said,
            operator=who,
            kept=kept,
            do="lower 'transaction_timeout', or raise the brokers' transaction.max.timeout.ms",
        )
    if name in _NO_MESSAGE:
        return DataError(
            said,
            operator=who,
            kept=kept,
            do="make the messages smaller or raise the topic's max.message.bytes, or correct what the broker refuses",
        )
    return StorageError(
        said, operator=who, kept=kept, do="see to the brokers and the network; it is tried again with back-off"
    )
