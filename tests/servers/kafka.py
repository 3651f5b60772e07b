"""A real Kafka broker for tests: one node of Kafka 4 (KRaft) on loopback, that can be crashed, frozen and restarted.

Its jars come from Spark's own resolver and stay in the user's cache: a machine needs Java and pip, nothing else. The
broker's time-outs are shortened, so that it is back some 5 s after a `kill -9` instead of 17.
"""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil
import pyspark
import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from spark_ext.clients.kafka import deleted
from spark_ext.spark.session.jars import package_jars
from tests.servers.kafka_reader import ANSWER_S, NO_ANSWER, QUICK, messages, settled
from tests.servers.ports import free_ports
from tests.servers.watchdog import Watched
from tests.support.waiting import until

T = TypeVar("T")
PACKAGES: Final = "org.apache.kafka:kafka_2.13:4.3.1,org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
USER, PASSWORD = "tester", "s3cret-Passw0rd"  # who may come in by `Broker.login`, the listener that asks
_DECIDED_S: Final = 10.0  # how long `crash` waits for transactions that are decided
_CLUSTER: Final = "5L6g3nShT-eMCtK--X86sw"

_SETTINGS: Final = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{login},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{login},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
listener.name.login.sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
  user_{user}="{password}";
log.dirs={folder}/data
num.partitions=1
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
transaction.max.timeout.ms=900000
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=300
controller.quorum.election.timeout.ms=200
controller.quorum.election.backoff.max.ms=200
controller.quorum.fetch.timeout.ms=500
auto.create.topics.enable=true
log.retention.check.interval.ms=1000
log.retention.ms=-1
log.cleaner.backoff.ms=200
metadata.max.idle.interval.ms=0
num.network.threads=2
num.io.threads=2
log.cleaner.dedupe.buffer.size=16777216
message.max.bytes=10485760
"""

_LOGGING: Final = """
status=error
rootLogger.level=warn
rootLogger.appenderRef.c.ref=C
appender.c.type=Console
appender.c.name=C
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d %p %c{1}: %m%n
"""


class Broker:
    """A broker with an empty folder of its own. Use it in a `with`: at its end nothing of it is left."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._watched = Watched(folder)
        self._numbers = itertools.count()
        self._server: subprocess.Popen[bytes] | None = None
        self._port, self._login, controller = free_ports(3)
        self._settings = folder / "server.properties"
        ports = {"port": self._port, "login": self._login, "controller": controller}
        self._settings.write_text(_SETTINGS.format(**ports, folder=folder, user=USER, password=PASSWORD))
        logging = folder / "log4j2.properties"
        logging.write_text(_LOGGING)
        java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else Path("java")
        # Spark's resolver leaves Scala out, because Spark brings it.
        scala = next(Path(pyspark.__file__).with_name("jars").glob("scala-library-2.13.*.jar"))
        class_path = os.pathsep.join(map(str, [*package_jars(PACKAGES, {}), scala]))
        # The JVM lives for minutes: what the second compiler would gain, it costs several times over.
        self._java = [str(java), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", "-cp", class_path]
        self._java.append(f"-Dlog4j2.configurationFile={logging}")

    def __enter__(self) -> "Broker":
        arguments = ["format", "--standalone", "-t", _CLUSTER, "-c", str(self._settings)]
        done = subprocess.run(
            [*self._java, "kafka.tools.StorageTool", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.start()
        # The first transaction of a broker makes its coordinator, which takes seconds.
        self.send_in_transaction(self.topic("first"), ["-"])
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self._watched.close()

    # -- the process ----------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def login(self) -> str:
        """The address at which it asks for a password (SASL PLAIN)."""
        return f"127.0.0.1:{self._login}"

    @property
    def data(self) -> Path:
        return self._folder / "data"

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    def start(self) -> None:
        """Start it, and wait until it answers. A running one is left alone."""
        if self._server is not None and self._server.poll() is None:
            return
        self._server = self._watched.start([*self._java, "kafka.Kafka", str(self._settings)])
        until(self._answers, f"an answer from the broker at {self.bootstrap}")

    def crash(self) -> None:
        """`kill -9`. What it has acknowledged is on its disk.

        But not while the end of a transaction is decided and not yet written to its partitions, which are
        milliseconds: a Kafka 4.3.1 of one node that is killed just then takes it for complete at its return, so that
        no reader of committed messages ever gets past it.
        """
        if self._server is None:
            return
        end = time.monotonic() + _DECIDED_S
        while self._server.poll() is None and time.monotonic() < end:
            self._server.send_signal(signal.SIGSTOP)
            until(self._stands_still, "the broker to stand still")
            if settled(self.data):
                break
            self._server.send_signal(signal.SIGCONT)
            time.sleep(0.005)  # awaited is what only a broker that stands still tells
        self._end()

    kill = crash  # as of other servers

    def _end(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    def _stands_still(self) -> bool:
        try:
            return psutil.Process(self.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True

    def restart(self) -> None:
        self.crash()
        self.start()

    def freeze(self) -> None:
        """Stop its process: connections stay open and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._server is not None
        self._server.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        assert self._server is not None
        if self._server.poll() is not None:
            raise AssertionError((self._folder / "server.log").read_text(errors="replace")[-3000:])
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1):
                pass
            with self.admin() as client:
                return bool(client.list_topics(timeout=2).brokers)
        except Exception:
            return False

    # -- topics and messages --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def admin(self) -> Iterator[AdminClient]:
        """A client for a request.

        Not one for many: a client may never connect again once the broker, which was frozen or short of CPU for longer
        than its session, has answered that there are no brokers (librdkafka 2.10 to 2.16, its issue 5301).
        """
        with AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, **QUICK}) as client:
            yield client

    def topic(self, name: str = "t", partitions: int = 1, **config: Any) -> str:
        """A new topic of a name that no other test has; `cleanup_policy="compact"` sets `cleanup.policy`."""
        unique = f"{name}-{next(self._numbers)}"
        self.make(unique, partitions, **config)
        return unique

    def make(self, name: str, partitions: int = 1, **config: Any) -> None:
        wanted = {key.replace("_", "."): str(value) for key, value in config.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=wanted)
        until(lambda: self._made(new), f"the broker to take the topic {name}")
        there = until(lambda: self.partitions(name), f"the topic {name}")
        assert there == partitions, f"the topic {name} was there, with {there} partitions"

    def forget(self, topic: str, before: int) -> None:
        """Delete the records of its first partition before an offset, as retention does."""
        self.asked(lambda client: deleted(client, [TopicPartition(topic, 0, before)], ANSWER_S))

    def asked(self, request: Callable[[AdminClient], T]) -> T:
        """The answer to a request, which is repeated by another client while none comes."""
        (found,) = until(lambda: self._answer(request), f"an answer from the broker at {self.bootstrap}")
        return found

    def _answer(self, request: Callable[[AdminClient], T]) -> tuple[T] | None:
        try:
            with self.admin() as client:
                return (request(client),)
        except TimeoutError:
            return None
        except KafkaException as problem:
            if problem.args[0].name() not in NO_ANSWER:
                raise
            return None

    def _made(self, new: NewTopic) -> bool:
        """False just after a restart, when it answers already, and its own controller still takes it for dead."""
        try:
            self.asked(lambda client: client.create_topics([new])[new.topic].result(ANSWER_S))
        except KafkaException as refused:
            name = refused.args[0].name()
            if name == "INVALID_REPLICATION_FACTOR":
                return False
            if name != "TOPIC_ALREADY_EXISTS":  # by a request whose answer was lost
                raise
        return True

    def grow(self, topic: str, partitions: int) -> None:
        def request(client: AdminClient) -> None:
            if self.partitions(topic) != partitions:  # as it is after a request whose answer was lost
                client.create_partitions([NewPartitions(topic, partitions)])[topic].result(ANSWER_S)

        self.asked(request)
        until(lambda: self.partitions(topic) == partitions, f"{partitions} partitions of {topic}")

    def delete(self, topic: str) -> None:
        def request(client: AdminClient) -> None:
            if self.partitions(topic):  # not after a request whose answer was lost
                client.delete_topics([topic])[topic].result(ANSWER_S)

        self.asked(request)
        until(lambda: self.partitions(topic) == 0, f"{topic} to be gone")

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has now; 0 without it."""
        # A request for one topic's metadata makes it, if the brokers have the default settings, as this one has.
        found = self.asked(lambda client: client.list_topics(timeout=ANSWER_S)).topics.get(topic)
        return 0 if found is None or found.error is not None else len(found.partitions)

    def send(self, topic: str, values: Sequence[str | bytes | None], partition: int = 0, **message: Any) -> None:
        """Messages without a transaction, in order, acknowledged."""
        producer = self._producer(topic, {"enable.idempotence": True})
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error:
                failed.append(error)

        for value in values:
            sent = value.encode() if isinstance(value, str) else value
            producer.produce(topic, sent, partition=partition, on_delivery=delivered, **message)
            producer.poll(0)
        assert producer.flush(60) == 0 and not failed, failed

    def send_in_transaction(self, topic: str, values: Sequence[str], partition: int = 0, commit: bool = True) -> None:
        """Messages in one transaction, which is committed or aborted; each leaves a marker, an offset without a row."""
        producer = self._producer(topic, {"transactional.id": f"test-{next(self._numbers)}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value.encode(), partition=partition)
        producer.flush(30)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
        until(lambda: settled(self.data), "the end of the transaction to be written to its partition")

    def _producer(self, topic: str, settings: dict[str, str | int | float]) -> Producer:
        """Connected to a broker that an answer has named: one that is not yet waits 500 ms for its producer id."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, **QUICK, **settings})
        for _ in range(2):
            with contextlib.suppress(KafkaException):
                producer.list_topics(topic, ANSWER_S)
        return producer

    def set(self, topic: str, **config: Any) -> None:
        """Change settings of a topic; `max_message_bytes=1` sets `max.message.bytes`."""
        entries = [
            ConfigEntry(name.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.asked(lambda client: client.incremental_alter_configs([resource])[resource].result(ANSWER_S))

    def messages(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        return messages(self.bootstrap, self.data, topic, isolation)


@pytest.fixture(scope="session")
def kafka_of_process() -> Iterator[Broker]:
    """The one broker of a test process; tests ask for `kafka`."""
    with Broker(Path(tempfile.mkdtemp(prefix="spark-ext-kafka-"))) as broker:
        yield broker


@pytest.fixture
def kafka(kafka_of_process: Broker) -> Iterator[Broker]:
    """A broker that runs; a test may crash or freeze it."""
    kafka_of_process.start()
    yield kafka_of_process
    kafka_of_process.thaw()
    kafka_of_process.start()
