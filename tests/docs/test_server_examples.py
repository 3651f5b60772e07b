"""The examples of the pages whose connectors need a server run as printed, all in one process.

So do programs of the gallery. The first one makes the session, with the jars of S3.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest
from deltalake import DeltaTable

from spark_ext.storage.options import KEYS
from tests.servers.kafka import Broker
from tests.servers.object_store import KEY, SECRET, Bucket, ObjectStore
from tests.servers.postgres import Database, PostgresServer
from tests.servers.receiver import Receiver
from tests.servers.receiver import rows as rows_at
from tests.servers.schema_registry import SchemaRegistry
from tests.support import pages
from tests.support.pages import Ran, Runner

TOKEN = "not-for-tables"


@pytest.fixture(scope="module")
def shop(postgres: PostgresServer) -> Iterator[Database]:
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
def bucket(object_store: ObjectStore) -> Bucket:
    """One for all of them, as their session can have the options of one store."""
    return object_store.bucket()


@pytest.fixture(scope="module")
def ran(
    kafka_of_process: Broker, shop: Database, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Ran]]:
    """Runs the code of an example; further environment variables may be given."""
    with SchemaRegistry() as registry, Runner(tmp_path_factory.mktemp("examples")) as runner:
        yield partial(
            runner.run, KAFKA=kafka_of_process.bootstrap, POSTGRES_DSN=shop.dsn, RECEIVER_URL=receiver.url,
            RECEIVER_TOKEN=TOKEN, SCHEMA_REGISTRY=registry.url,
        )  # fmt: skip


def made(kafka: Broker, topic: str, text: str, count: int) -> None:
    """A topic of two partitions with that many values each, made from partition and number."""
    kafka.make(topic, 2)
    for partition in range(2):
        kafka.send(topic, [text.format(partition, number) for number in range(count)], partition=partition)


@pytest.mark.slow(30, "starts a JVM for all of them, with the jars of S3")
def test_the_example_of_object_stores_runs_as_printed(ran: Callable[..., Ran], bucket: Bucket) -> None:
    (example,) = pages.python_blocks("object-stores")
    store = {"BUCKET": bucket.uri, "STORE_KEY": KEY, "STORE_SECRET": SECRET, "STORE_URL": bucket.endpoint}
    assert ran("object-stores", example, **store).well()
    assert bucket.keys("state/ledger/") and bucket.keys("copy/_delta_log/")


def test_the_table_of_object_stores_has_every_option() -> None:
    table = pages.read("object-stores").partition("## Options")[2].partition("## What works")[0]
    assert [key for key in KEYS if f"`{key}`" not in table] == []


@pytest.mark.slow(20, "starts four jobs in a store")
def test_object_store_keeps_everything_in_the_store(ran: Callable[..., Ran], bucket: Bucket) -> None:
    code = (pages.GALLERY / "object_store.py").read_text(encoding="utf-8")
    done = ran("object_store", code, **{**bucket.environment, "BUCKET": f"{bucket.uri}/gallery"}).well()
    assert "Monday 2 rows, Tuesday 2; the trial read 2" in done.said
    for table, rows in (("main/orders", 4), ("trial/orders", 2), ("main/state/bad_rows/table", 1)):
        assert f"{table} {rows}\n" in done.said
    assert not list(done.folder.iterdir()), "something was written to the disk"
    assert bucket.keys("gallery/savepoints/monday/")


def test_the_example_of_kafka_as_a_sink_runs_as_printed(ran: Callable[..., Ran], kafka_of_process: Broker) -> None:
    kafka_of_process.make("orders", 3)
    kafka_of_process.make("avro-orders", 2)
    assert ran("kafka_2pc", "\n".join(pages.python_blocks("kafka_2pc"))).well()


def test_the_example_of_an_exchange_in_kafka_runs_as_printed(ran: Callable[..., Ran]) -> None:
    assert ran("exchange-kinds", "\n".join(pages.python_blocks("exchange-kinds"))).well()


def test_the_example_of_kafka_as_a_source_runs_as_printed(ran: Callable[..., Ran], kafka_of_process: Broker) -> None:
    made(kafka_of_process, "clicks", "click {1}", 150)
    assert ran("kafka_range", "\n".join(pages.python_blocks("kafka_range"))).well()


def test_the_examples_of_postgres_run_as_printed(ran: Callable[..., Ran], shop: Database) -> None:
    # One after the other: the source reads the table that the sink has made.
    code = "\n".join(pages.python_blocks("postgres_2pc") + pages.python_blocks("postgres"))
    folder = ran("postgres", code).well().folder
    assert shop.rows("SELECT count(*), sum(amount) FROM orders") == [(2500, 2499 * 2500 / 8)]
    assert len(DeltaTable(folder / "out" / "orders").to_pyarrow_table()) == 2500


def test_the_example_of_http_runs_as_printed(ran: Callable[..., Ran], receiver: Receiver) -> None:
    folder = ran("http_2pc", "\n".join(pages.python_blocks("http_2pc"))).well().folder
    items = [row["id"] for number in range(20) for row in rows_at(receiver.folder, f"items/{number}")]
    assert items == list(range(20)), "the second example: each row to its own address"
    assert sorted(row["id"] for row in receiver.rows()) == sorted([*range(2500), *items])
    assert Counter(one["authorization"] for one in receiver.requests()) == {f"Bearer {TOKEN}": 3, None: 20}
    written = [file for file in (folder / "state").rglob("*") if file.is_file()]
    assert written and not any(TOKEN.encode() in file.read_bytes() for file in written)


def test_a_table_and_then_its_topic_as_printed(ran: Callable[..., Ran], kafka_of_process: Broker) -> None:
    """The second example of `hybrid.md`: the table holds the beginning of each partition."""
    made(kafka_of_process, "page-views", "{0}/{1}", 100)
    midnight = datetime.now(timezone.utc) + timedelta(seconds=1)
    begin = 'import spark_ext as sx\n\nspark = sx.session("hybrid")\n'
    done = ran("hybrid", begin + pages.python_blocks("hybrid")[1], MIDNIGHT=midnight.isoformat()).well()
    found = DeltaTable(done.folder / "lake" / "views").to_pyarrow_table().to_pylist()
    expected = [(partition, n, f"{partition}/{n}") for partition in range(2) for n in range(100)]
    assert sorted((row["partition"], row["offset"], row["body"]) for row in found) == expected


def test_postgres_to_delta_reads_what_has_changed(ran: Callable[..., Ran], postgres: PostgresServer) -> None:
    database = postgres.database()
    database.run(
        "CREATE TABLE customers (id int PRIMARY KEY, name text, updated_at timestamptz DEFAULT clock_timestamp())",
        "INSERT INTO customers VALUES (1, 'Ann'), (2, 'Bob'), (3, 'Eve')",
    )
    code = (pages.GALLERY / "postgres_to_delta.py").read_text(encoding="utf-8")
    first = ran("postgres_to_delta", code, POSTGRES_DSN=database.dsn).well()
    database.run("UPDATE customers SET name = upper(name), updated_at = clock_timestamp() WHERE id > 1")
    again = ran("postgres_to_delta-again", code, given=first.folder, POSTGRES_DSN=database.dsn).well()
    assert [first.said + again.said] == [f"{printed}\n" for printed in pages.printed_of("postgres_to_delta")]
    table = DeltaTable(again.folder / "out" / "gallery" / "postgres_to_delta" / "customers").to_pyarrow_table()
    assert dict(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True)) == {1: "Ann", 2: "BOB", 3: "EVE"}
    postgres.drop(database)


def test_kafka_to_postgres_keeps_the_newest(
    ran: Callable[..., Ran], kafka_of_process: Broker, postgres: PostgresServer
) -> None:
    kafka, database = kafka_of_process, postgres.database()
    kafka.make("order-changes", 2)
    change = '{{"id": {}, "item": "tea", "price": {}.5, "version": {}}}'
    for partition in range(2):
        changes = [change.format(10 * partition + n, version, version) for version in (1, 3, 2) for n in range(5)]
        kafka.send("order-changes", changes, partition=partition)
    code = (pages.GALLERY / "kafka_to_postgres.py").read_text(encoding="utf-8")
    assert "job 'orders' FINISHED: 30 rows" in ran("kafka_to_postgres", code, POSTGRES_DSN=database.dsn).well().said
    assert database.rows("SELECT count(*), min(price), max(version) FROM orders") == [(10, 3.5, 3)]
    postgres.drop(database)
