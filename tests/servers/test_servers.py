"""The servers of the tests: a crash is one, a broker's disk is read, and nothing is left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from tests.servers.kafka import Broker
from tests.servers.kafka_reader import ABORTED, COMMITTED, ONGOING, states
from tests.servers.postgres import Database, PostgresServer
from tests.support.waiting import until


def test_what_was_committed_survives_a_crash(postgres: PostgresServer, database: Database) -> None:
    database.run("CREATE TABLE t (n int)", "CREATE UNLOGGED TABLE u (n int)", "INSERT INTO t VALUES (1)")
    database.run("INSERT INTO u VALUES (1)", "BEGIN", "INSERT INTO t VALUES (2)", "PREPARE TRANSACTION 'both'")
    postgres.kill()
    postgres.start()
    assert database.column("SELECT n FROM t") == [1], "the other is in doubt, and not visible"
    database.run("COMMIT PREPARED 'both'")
    assert sorted(database.column("SELECT n FROM t")) == [1, 2]
    assert database.column("SELECT count(*) FROM u") == [0], "unlogged tables are empty after a crash"


PROGRAM = """
import sys, time
from tests.servers.postgres import PostgresServer
server = PostgresServer().create()
print(server.folder, server._process.pid, flush=True)
time.sleep(600)
"""


def test_a_killed_test_process_leaves_no_server() -> None:
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=root, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder, pid = process.stdout.readline().split()
    assert psutil.pid_exists(int(pid))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    until(lambda: not psutil.pid_exists(int(pid)) and not Path(folder).exists(), "the server has gone")


def test_a_transactions_state_is_read_from_the_brokers_disk(kafka: Broker) -> None:
    """So a broker is not crashed between a commit and its markers."""
    topic = kafka.topic()
    producer: Any = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(60)
    for finish, state in ((producer.commit_transaction, COMMITTED), (producer.abort_transaction, ABORTED)):
        producer.begin_transaction()
        producer.produce(topic, b"a")
        assert producer.flush(60) == 0
        until(lambda: states(kafka.data)[topic] == ONGOING, "the transaction is open")
        finish(60)
        until(lambda state=state: states(kafka.data)[topic] == state, "its end to be in all partitions")  # type: ignore[misc]
    producer.close()


def test_a_commit_survives_a_crash_right_after_it(kafka: Broker) -> None:
    topic = kafka.topic()
    kafka.send_in_transaction(topic, ["a"])
    kafka.restart()
    assert [message.value() for message in kafka.messages(topic)] == [b"a"]
