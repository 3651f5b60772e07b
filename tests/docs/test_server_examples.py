"""The examples of the pages whose connectors need a server run as printed, all in one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from deltalake import DeltaTable

from tests.servers.kafka import Broker
from tests.servers.postgres import Database, PostgresServer
from tests.servers.receiver import Receiver
from tests.servers.receiver import rows as rows_at
from tests.servers.schema_registry import SchemaRegistry
from tests.support import pages
from tests.support.pages import Ran

TOKEN = "not-for-tables"


@pytest.fixture(scope="module")
def shop(postgres: PostgresServer) -> Iterator[Database]:
    """A database for all of them. One of their tables holds the beginning of each partition of a topic."""
    made = postgres.database()
    made.run("CREATE TABLE events (part int, off bigint, body text, PRIMARY KEY (part, off))")
    for partition, rows in enumerate((60, 30)):
        made.run(f"INSERT INTO events SELECT {partition}, n, '{partition}/' || n FROM generate_series(0, {rows - 1}) n")
    yield made
    postgres.drop(made)


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    with Receiver(tmp_path_factory.mktemp("receiver")) as there:
        yield there


@pytest.fixture(scope="module")
def ran(
    kafka_of_process: Broker, shop: Database, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ran]:
    """All of them."""
    kafka = kafka_of_process
    kafka.make("orders", 3)
    kafka.make("avro-orders", 2)
    for topic, text, count in (("clicks", "click {1}", 150), ("page-views", "{0}/{1}", 100)):
        kafka.make(topic, 2)
        for partition in range(2):
            kafka.send(topic, [text.format(partition, number) for number in range(count)], partition=partition)
    examples = {page: "\n".join(pages.python_blocks(page)) for page in ("kafka_2pc", "kafka_range", "http_2pc")}
    # One after the other: the source reads the table that the sink has made.
    examples["postgres"] = "\n".join(pages.python_blocks("postgres_2pc") + pages.python_blocks("postgres"))
    begin = 'import spark_ext as sx\n\nspark = sx.session("hybrid")\n'
    examples["hybrid"] = begin + pages.python_blocks("hybrid")[1]
    with SchemaRegistry() as registry:
        return pages.run_each(
            tmp_path_factory.mktemp("examples"),
            examples,
            KAFKA=kafka.bootstrap,
            POSTGRES_DSN=shop.dsn,
            MIDNIGHT=(datetime.now(timezone.utc) + timedelta(seconds=1)).isoformat(),
            RECEIVER_URL=receiver.url,
            RECEIVER_TOKEN=TOKEN,
            SCHEMA_REGISTRY=registry.url,
        )


@pytest.mark.slow(60, "runs the examples of six pages")
@pytest.mark.parametrize("page", ["kafka_2pc", "kafka_range"])
def test_the_examples_of_kafka_run_as_printed(ran: dict[str, Ran], page: str) -> None:
    assert ran[page].well()


def test_the_examples_of_postgres_run_as_printed(ran: dict[str, Ran], shop: Database) -> None:
    folder = ran["postgres"].well().folder
    assert shop.rows("SELECT count(*), sum(amount) FROM orders") == [(2500, 2499 * 2500 / 8)]
    assert len(DeltaTable(folder / "out" / "orders").to_pyarrow_table()) == 2500


def test_the_example_of_http_runs_as_printed(ran: dict[str, Ran], receiver: Receiver) -> None:
    folder = ran["http_2pc"].well().folder
    items = [row["id"] for number in range(20) for row in rows_at(receiver.folder, f"items/{number}")]
    assert items == list(range(20)), "the second example: each row to its own address"
    assert sorted(row["id"] for row in receiver.rows()) == sorted([*range(2500), *items])
    assert Counter(one["authorization"] for one in receiver.requests()) == {f"Bearer {TOKEN}": 3, None: 20}
    written = [file for file in (folder / "state").rglob("*") if file.is_file()]
    assert written and not any(TOKEN.encode() in file.read_bytes() for file in written)


def test_a_table_and_then_its_topic_as_printed(ran: dict[str, Ran]) -> None:
    """The second example of `hybrid.md`: the table holds the beginning of each partition."""
    found = DeltaTable(ran["hybrid"].well().folder / "lake" / "views").to_pyarrow_table().to_pylist()
    expected = [(partition, n, f"{partition}/{n}") for partition in range(2) for n in range(100)]
    assert sorted((row["partition"], row["offset"], row["body"]) for row in found) == expected
