"""What all connectors to Kafka share: options, the client library, and the conversion of Kafka's errors.

The library is confluent-kafka. It is loaded with the first client, so that a session without Kafka does not need it.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, Field

from spark_ext.clients.library import filled, load
from spark_ext.errors import (
    NEW_QUERY,
    NOTHING_DONE,
    ConfigurationError,
    DataError,
    SparkExtError,
    StorageError,
    refused,
)
from spark_ext.options import Milliseconds

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, TopicPartition
    from confluent_kafka.admin import AdminClient

Client = TypeVar("Client")

OWN: Final = frozenset(  # client settings that exactly-once delivery depends on: users cannot change them
    [
        *("auto.offset.reset", "bootstrap.servers", "delivery.report.only.error", "enable.auto.commit"),
        *("enable.auto.offset.store", "enable.idempotence", "enable.partition.eof", "error_cb", "group.id"),
        *("isolation.level", "message.timeout.ms", "metadata.broker.list", "partition.assignment.strategy"),
        *("transaction.timeout.ms", "transactional.id"),
    ]
)

NO_TOPIC: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_NOT_ALLOWED: Final = frozenset(
    [
        *("_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"),
        *("GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ]
)
_UNREACHED: Final = frozenset({"_TRANSPORT", "_RESOLVE"})
"""Why a broker could not be reached: more specific than a time-out."""

_NO_MESSAGE: Final = frozenset(  # librdkafka's names of the errors that every retry gives again
    {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_TIMESTAMP", "INVALID_RECORD", "POLICY_VIOLATION"}
)

# Errors of a partition that was just created, or whose leader has just changed or returned.
SETTLING: Final = frozenset(
    [
        *("NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "UNKNOWN_LEADER_EPOCH", "FENCED_LEADER_EPOCH"),
        *("OFFSET_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PART", "_NOENT"),
    ]
)

RETRIED: Final = "check the brokers and the network; the operation will be retried with back-off"
"""What to do about an error that may go away."""

RECREATED: Final = f"read a topic that was deleted and created again {NEW_QUERY}"
"""What to do about a topic whose offsets are not those that were read."""

_CREATE: Final = "create the topic, or correct its name"


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
    """Options of all connectors to Kafka."""

    bootstrap_servers: str = Field(min_length=1)
    """Brokers of the initial connection: `host:port`, comma-separated."""
    client_options: Annotated[Mapping[str, Any], BeforeValidator(_settings)] = Field(default_factory=dict, repr=False)
    """Client settings with librdkafka's names, as a JSON object: security, compression, sizes. `${NAME}` in a value is
    replaced by an environment variable of the process that connects. Never shown or stored."""
    request_timeout: Milliseconds = Field(default=30_000, gt=0)
    """Time limit for an answer of the brokers, ms."""

    def client(self, who: str, **own: Any) -> dict[str, Any]:
        """The configuration of a client; `own` takes precedence, with `_` for `.` in its names."""
        given = {
            name: filled(value, "client_options", who) if isinstance(value, str) else value
            for name, value in self.client_options.items()
        }
        return {
            "bootstrap.servers": self.bootstrap_servers,
            # A lost connection is reported by the call that fails, not on the terminal.
            "log_level": 2,
            # Half of it passes between a client's first and second connection, which most clients here live for. It
            # doubles with each failed attempt.
            "reconnect.backoff.ms": 20,
            **given,
            **{name.replace("_", "."): value for name, value in own.items()},
        }


def library(who: str) -> Any:
    """The client library."""
    load("confluent_kafka.admin", "kafka", who)
    return load("confluent_kafka", "kafka", who)


def admin(options: KafkaOptions, who: str) -> AdminClient:
    """A client for metadata and offsets whose connection the brokers have accepted. Use it in a `with`.

    A client must be closed by the thread that used it. Left to the garbage collector it might be destroyed by a thread
    of another client, whose answer happened to start a collection: librdkafka then aborts the process.
    """
    kafka = library(who)
    from confluent_kafka.admin import AdminClient

    heard: list[KafkaError] = []
    settings = {**options.client(who), "error_cb": heard.append}
    try:
        client = AdminClient(settings)
    except (kafka.KafkaException, TypeError, ValueError) as problem:
        raise refused_settings(problem, who) from problem
    try:
        _enter(client, heard, options.request_timeout / 1000, who)
    except BaseException:
        client.__exit__(None, None, None)
        raise
    return client


_shared: dict[tuple[str, str], Any] = {}
_sharing: Final = threading.Lock()


def shared(purpose: str, settings: Mapping[str, Any], connect: Callable[[], Client]) -> Client:
    """A client that this process keeps until its end, or until `discard`: never left to the garbage collector."""
    key = (purpose, repr(sorted(settings.items())))
    with _sharing:
        if key not in _shared:
            _shared[key] = connect()
        client: Client = _shared[key]
    return client


def discard(client: Any) -> None:
    """Close a client and no longer share it."""
    with _sharing:
        for key in [key for key, one in _shared.items() if one is client]:
            del _shared[key]
    client.__exit__(None, None, None)


@contextmanager
def lent(client: Client) -> Iterator[Client]:
    """A shared client, which is discarded if what it is used for fails: the next use has a new one.

    A client may never connect again after the brokers have answered, if only for a moment, with an empty list of
    brokers (librdkafka 2.10 to 2.16, its issue 5301). A new client can.
    """
    try:
        yield client
    except BaseException:
        discard(client)
        raise


def _enter(client: AdminClient, heard: list[KafkaError], seconds: float, who: str) -> None:
    """Wait for a broker's first answer. Refused credentials are reported by callbacks only; calls just time out.

    The question is about a topic that need not exist. `describe_cluster` aborts the process when a broker that has just
    started, or resumed, answers that the cluster has no brokers (librdkafka 2.13, an assertion on `rko_result`).
    """
    from confluent_kafka import KafkaException, TopicCollection

    (answer,) = client.describe_topics(TopicCollection(["spark-ext"]), request_timeout=seconds).values()
    limit = time.monotonic() + seconds + 1
    while True:
        client.poll(0)
        refusal = next((error for error in heard if error.name() in _NOT_ALLOWED), None)
        if refusal is not None:
            raise to_error(refusal, "the brokers refuse the connection", who, NOTHING_DONE)
        try:
            answer.result(0.02)
            return
        except FutureTimeout:
            if time.monotonic() < limit:
                continue
            cause: Any = "no answer"
        except KafkaException as problem:
            if not problem.args[0].name().startswith("_"):
                return  # not an error of the client: a broker has answered
            cause = problem.args[0].str()
        reason = next((error.str() for error in heard if error.name() in _UNREACHED), cause)
        what = f"no broker could be reached in {seconds:g} s: {reason}"
        do = f"check 'bootstrap_servers', and {RETRIED}"
        raise StorageError(what, operator=who, kept="everything that was committed", do=do)


def answered(answer: Any, seconds: float) -> Any:
    """The result of a call of the library."""
    try:
        return answer.result(seconds)
    except FutureTimeout:
        raise TimeoutError(f"no answer within {seconds:g} s") from None


def offsets(
    client: AdminClient, wanted: Mapping[tuple[str, int], Any], seconds: float, *, committed: bool = True
) -> dict[tuple[str, int], int]:
    """Offsets of partitions, in one request, repeated while one has no leader; -1: no message at or after a time.

    With `committed` the end is the one that a `read_committed` reader sees.
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
            if problem.args[0].name() not in SETTLING or time.monotonic() > limit:
                raise
            time.sleep(0.02)
    return {}


def partitions(client: AdminClient, topics: Collection[str], seconds: float, who: str, kept: str) -> dict[str, int]:
    """The number of partitions of topics; 0 if the topic does not exist."""
    found = described(client, topics, seconds, who, kept)
    return {topic: len(found[topic].partitions) if topic in found else 0 for topic in topics}


def topic_ids(client: AdminClient, topics: Collection[str], seconds: float, who: str, kept: str) -> dict[str, str]:
    """The ids of those topics that exist: a topic that is deleted and created again has another one."""
    return {topic: str(one.topic_id) for topic, one in described(client, topics, seconds, who, kept).items()}


def described(client: AdminClient, topics: Collection[str], seconds: float, who: str, kept: str) -> dict[str, Any]:
    """Those topics that exist. Asking does not create a topic, as asking for its metadata does by default."""
    import confluent_kafka as kafka

    if not topics:
        return {}
    asked = client.describe_topics(kafka.TopicCollection(list(topics)), request_timeout=seconds)
    found: dict[str, Any] = {}
    for topic, answer in asked.items():
        try:
            found[topic] = answered(answer, seconds + 1)
        except TimeoutError as problem:
            raise unanswered(who, seconds, kept) from problem
        except kafka.KafkaException as problem:
            if problem.args[0].name() not in NO_TOPIC:
                raise to_error(problem.args[0], f"topic '{topic}' could not be described", who, kept) from problem
    return found


def deleted(client: AdminClient, before: list[TopicPartition], seconds: float) -> None:
    """Delete the records of partitions before offsets.

    `delete_records` releases its list once too often (confluent-kafka up to 2.15, its issue 2275), so that another
    object of the process comes to lie in its place. So it is given a reference, which is taken back if it is left.
    """
    held = ctypes.py_object(before)
    count = sys.getrefcount(before)
    ctypes.pythonapi.Py_IncRef(held)
    asked = client.delete_records(before, request_timeout=seconds)
    if sys.getrefcount(before) > count:
        ctypes.pythonapi.Py_DecRef(held)
    for answer in asked.values():
        answered(answer, seconds)


def no_topic(topic: str, what: str, who: str, kept: str) -> ConfigurationError:
    """The refusal of a topic that does not exist."""
    return refused(f"the topic '{topic}' cannot be {what}: it does not exist", who, _CREATE, kept=kept)


def unanswered(who: str, seconds: float, kept: str, what: str = "the request failed") -> StorageError:
    """The error of a request that the brokers did not answer."""
    return StorageError(f"{what}: no answer within {seconds:g} s", operator=who, kept=kept, do=RETRIED)


def refused_settings(problem: Exception, who: str) -> ConfigurationError:
    """The error of a client that could not be created; the message names the setting, but never its value."""
    error = problem.args[0] if problem.args else problem
    what = f"the client's settings are refused: {error.str() if hasattr(error, 'str') else error}"
    return refused(what, who, "correct the option 'client_options'; its names are those of librdkafka")


def to_error(error: KafkaError, what: str, who: str, kept: str) -> SparkExtError:
    """An error of Kafka as one of this package's: terminal if every retry gives the same, else transient."""
    name, message = error.name(), f"{what}: {error.str()} ({error.name()})"
    if name in NO_TOPIC:
        return refused(message, who, _CREATE, kept=kept)
    if name in _NOT_ALLOWED:
        return refused(message, who, "check the credentials in 'client_options' and the brokers' ACLs", kept=kept)
    if name == "INVALID_TRANSACTION_TIMEOUT":
        do = "lower 'transaction_timeout', or raise the brokers' transaction.max.timeout.ms"
        return refused(message, who, do, kept=kept)
    if name in _NO_MESSAGE:
        do = "make the messages smaller, raise the topic's max.message.bytes, or correct what the broker refuses"
        return DataError(message, operator=who, kept=kept, do=do)
    return StorageError(message, operator=who, kept=kept, do=RETRIED)
