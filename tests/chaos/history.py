"""The job of `history_job`, its servers and kills: a PostgreSQL table, and a Kafka topic that is filled while it runs.

The topic holds all events, the table the first ones of each partition. Messages from the end time on are not read.
"""

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from confluent_kafka import KafkaError, Message, Producer

from tests.chaos.harness import Reference, Report, Say, Target, random_kills
from tests.chaos.outlets import KafkaOutlet, PostgresOutlet
from tests.chaos.scenario import Scenario
from tests.chaos.sinks import LOCAL
from tests.chaos.verify import Content
from tests.servers import postgres
from tests.servers.kafka import Broker
from tests.servers.postgres import PostgresServer

EVENTS = (2_400, 1_500, 300)  # number of events in each partition before the end
IN_THE_TABLE = (900, 600, 0)  # number of those that are history, in the table
SENT_BEFORE = (1_200, 600, 10)
"""Number of those that are in the topic at the job's first start; the others are sent while it runs."""
LATER = 20  # number of messages in each partition at the end time and after it
PER_SECOND = 40  # rate of the feeder, over all partitions; sending takes about a minute
SECONDS = 45.0  # time from a round's first start to the end time of the job
SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.string())])


def value(partition: int, offset: int) -> str:
    return f"event {offset} of {partition}"


def expected() -> pa.Table:
    rows = [
        {"partition": partition, "offset": offset, "value": value(partition, offset)}
        for partition, count in enumerate(EVENTS)
        for offset in range(count)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


class Feeder:
    """Sends the topic's messages, in order and once each, whatever happens to the broker."""

    def __init__(self, bootstrap: str, topic: str, end: int, pace: float) -> None:
        self._topic, self._end, self._pause = topic, end, 1 / (PER_SECOND * pace)
        self._failed: list[KafkaError] = []
        self._stopped = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap, "enable.idempotence": True, "delivery.timeout.ms": 900_000,
                "retry.backoff.max.ms": 200, "log_level": 0,
            }
        )  # fmt: skip
        for partition, count in enumerate(SENT_BEFORE):
            for offset in range(count):
                self._send(partition, offset)
        if self._producer.flush(60):
            raise AssertionError("the topic could not be filled")
        self._thread = threading.Thread(target=self._feed, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> list[str]:
        """Stop it; returns a description of what it could not send."""
        self._stopped.set()
        self._thread.join(120)
        # The client also counts its own events, such as a lost connection, until they are polled.
        left = self._producer.flush(60)
        return [str(error) for error in self._failed] + ([f"{left} messages were not sent"] if left else [])

    def _feed(self) -> None:
        places = [
            (offset / count, partition, offset)
            for partition, count in enumerate(EVENTS)
            for offset in range(SENT_BEFORE[partition], count)
        ]
        for _, partition, offset in sorted(places):
            if self._stopped.wait(self._pause):
                return
            self._send(partition, offset)
        for partition, count in enumerate(EVENTS):
            for offset in range(count, count + LATER):
                self._send(partition, offset)
        self._producer.flush(600)

    def _send(self, partition: int, offset: int) -> None:
        before = offset < EVENTS[partition]
        now = int(time.time() * 1000)
        self._producer.produce(
            self._topic, value(partition, offset).encode(), partition=partition,
            timestamp=min(now, self._end - 1) if before else max(now, self._end), on_delivery=self._delivered,
        )  # fmt: skip
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed.append(error)


class World:
    def __init__(self, postgres: PostgresServer, kafka: Broker, pace: float) -> None:
        self.postgres, self.kafka, self._pace = postgres, kafka, pace
        self.table, self.topic = PostgresOutlet(postgres), KafkaOutlet(kafka)
        self.killed: Counter[str] = Counter()
        self._feeders: dict[Path, Feeder] = {}
        self._given: dict[Path, str] = {}

    def kill(self) -> None:
        """`kill -9` the server that was not killed last time, with all its processes."""
        if self.killed["PostgreSQL"] > self.killed["Kafka"]:
            self.killed["Kafka"] += 1
            self.kafka.crash()
        else:
            self.killed["PostgreSQL"] += 1
            self.postgres.kill()

    def start(self) -> None:
        if self.killed["PostgreSQL"] > self.killed["Kafka"]:
            self.postgres.start()
        else:
            self.kafka.start()

    def given(self, out: Path) -> str:
        """The job's argument; the first call creates the round's table and topic, and starts the feeder."""
        if out not in self._given:
            self._given[out] = json.dumps(self._begin(out))
        return self._given[out]

    def _begin(self, out: Path) -> dict[str, dict[str, str]]:
        target = self.table.options(out)
        history, log = self._fill(f"history_{target['table']}"), self.kafka.topic(f"log-{out.name}", len(EVENTS))
        end = int((time.time() + SECONDS / self._pace) * 1000)
        self._feeders[out] = Feeder(self.kafka.bootstrap, log, end, self._pace)
        self._feeders[out].start()
        return {
            "history": {
                **self.table.database.options, "format": "postgres", "table": history, "rows_per_channel": "400",
                "select": "part as partition, offset, value",
            },
            "live": {
                "format": "kafka_range", "bootstrap_servers": self.kafka.bootstrap, "topics": log,
                "ending_timestamp": str(end), "ending_grace": "1 h", "select": "partition, offset, value",
            },
            "table": target,
            "topic": self.topic.options(out),
        }  # fmt: skip

    def _fill(self, name: str) -> str:
        self.table.database.run(
            f'CREATE TABLE {name} (id bigserial PRIMARY KEY, part int, "offset" bigint, value bytea)'
        )
        with self.table.database.connect() as connection:
            with connection.cursor() as cursor, cursor.copy(f'COPY {name} (part, "offset", value) FROM STDIN') as copy:
                for partition, count in enumerate(IN_THE_TABLE):
                    for offset in range(count):
                        copy.write_row((partition, offset, value(partition, offset).encode()))
            connection.execute(f"ANALYZE {name}")
        return name

    def content(self, out: Path) -> dict[str, Content]:
        messages = []
        for message in self.kafka.messages(self.topic.topics[out.name]):
            partition, _, offset = (message.key() or b"").decode().partition(":")
            text = (message.value() or b"").decode()
            messages.append({"partition": int(partition), "offset": int(offset), "value": text})
        table = self.table.database.table(self.table.options(out)["table"])
        return {
            name: Content(pa.Table.from_pylist(rows, SCHEMA)) for name, rows in (("table", table), ("topic", messages))
        }

    def left(self, out: Path) -> list[str]:
        """Everything that is prepared or staged, and what the feeder could not send."""
        failed = [f"feeder: {problem}" for problem in self._feeders[out].stop()]
        return [*failed, *self.table.left(out), *self.topic.left(out)]


@dataclass(frozen=True, kw_only=True)
class HistoryScenario(Scenario):
    world: World

    def command(self, out: Path) -> list[str]:
        return [*super().command(out), "--given", self.world.given(out)]

    def content(self, out: Path) -> dict[str, Content]:
        return self.world.content(out)

    def leftovers(self, out: Path, *, late_tasks: bool) -> list[str]:
        return self.world.left(out)


def chaos(folder: Path, *, kills: int, seed: int = 1, pace: float = 1, say: Say = print) -> Report:
    """Run the job under kills of driver, workers and both servers; `pace` speeds up feeder and end of input."""
    with postgres.running() as server, Broker(folder / "broker") as broker:
        world, rows = World(server, broker, pace), Content(expected())
        tables = {"table": "copied", "topic": "copied-topic"}
        scenario = HistoryScenario("tests.chaos.history_job", tables, ("table", "topic"), server=world, world=world)
        reference = Reference(scenario, {"table": rows, "topic": rows})
        targets: list[Target] = ["worker", "server", "driver", "server"]
        report = random_kills(reference, folder, kills=kills, targets=targets, seed=seed, env=LOCAL, say=say)
        say(f"of the servers {', '.join(f'{name} {count}' for name, count in world.killed.items())}")
        return report
