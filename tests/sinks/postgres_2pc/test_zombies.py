"""`postgres_2pc`: attempts and drivers that come too late, and answers that are lost, at the worst moment."""

import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from spark_ext import failpoints
from spark_ext.sinks.postgres_2pc.prepare import Origin
from spark_ext.sinks.postgres_2pc.record import Identity
from spark_ext.testing.children import Child, frozen, was_fenced
from spark_ext.testing.sink_driver import Driver, SinkTarget, numbered
from tests.servers.postgres import PASSWORD, Database
from tests.sinks.postgres_2pc.postgres_kit import WAYS, PostgresTarget
from tests.support.waiting import until


def prepared(database: Database, incarnation: int = 1, **options: str) -> Driver:
    return Driver(PostgresTarget(database, prepared="true", **options), incarnation=incarnation)


def write(target: SinkTarget, incarnation: int, epoch: int, start: int, end: int, attempt: int) -> None:
    """A task in a process of its own, whose message reaches nobody."""
    Driver(target, incarnation).write(epoch, numbered(start, end), attempt=attempt)


def commit(target: SinkTarget, messages: list[Any]) -> None:
    Driver(target).commit(messages, 0)


def test_a_late_attempt_at_a_task_does_not_undo_what_is_decided(database: Database, tmp_path: Path) -> None:
    """It has looked at what its twin prepared and at the decisions; then the twin's epoch is decided on."""
    one = prepared(database).claim()
    messages = [one.write(0, numbered(0, 5)), one.write(0, numbered(5, 10), partition=1)]
    gate = tmp_path / "decided"
    waiting = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
        "AND query LIKE '%spark_ext.sinks%'"
    )
    late = frozen(tmp_path, "postgres.giving_up", write, one.target, 1, 0, 0, 5, 1)
    freeze = {failpoints.VARIABLE: f"postgres.recorded=wait:{gate}"}
    with late as attempt, Child(commit, one.target, messages, env=freeze) as driver:
        until(lambda: gate.with_name("decided.waiting").exists() or database.rows(waiting), "the driver decides")
        attempt.wake()
        gate.touch()
        driver.wait()
    # Whoever came first: the epoch is there, or it is repeated.
    one.run(0, numbered(0, 10))
    assert one.target.ids() == list(range(10))


def test_a_zombie_task_prepares_nothing_if_nobody_may_end_it(database: Database, tmp_path: Path) -> None:
    """The newer start has another role. It has cleaned up, and would not see what is prepared behind its back."""
    old = prepared(database).claim()
    with database.server.admin(database.name) as admin:
        admin.execute(
            f"DROP ROLE IF EXISTS another; CREATE ROLE another LOGIN PASSWORD '{PASSWORD}'; "
            "GRANT ALL ON SCHEMA spark_ext TO another; GRANT ALL ON ALL TABLES IN SCHEMA spark_ext TO another; "
            "GRANT ALL ON out TO another"
        )
    new = prepared(database, 2, user="another", password=PASSWORD)
    with frozen(tmp_path, "postgres.before_prepare", write, old.target, 1, 0, 0, 5, 0) as zombie:
        new.claim()
        said = zombie.wake()
    assert was_fenced(said), said
    assert new.target.leftovers() == set()


def test_a_newer_start_may_have_a_greater_role(database: Database, tmp_path: Path) -> None:
    old = prepared(database).claim()
    new = prepared(database, 2, user="postgres", password=PASSWORD)
    with frozen(tmp_path, "postgres.before_prepare", write, old.target, 1, 0, 0, 5, 0) as zombie:
        new.claim()
        mine = "application_name ~ '^spark_ext:.*:1$' AND datname = current_database()"
        assert database.rows(f"SELECT pid FROM pg_stat_activity WHERE {mine}") == []
        zombie.wake()
    assert new.target.leftovers() == set()


@pytest.mark.parametrize("in_the_way", [True, False])
def test_what_a_zombie_prepared_goes_with_the_next_epoch(database: Database, in_the_way: bool) -> None:
    """It holds locks: on the key that the next task writes, or on another one. It need not wait for the next start."""
    database.run("CREATE TABLE out (id bigint PRIMARY KEY, name text)")
    old, new = prepared(database), prepared(database, 2, lock_timeout="10 s")
    old.claim()
    new.claim()
    gid = Origin(Identity("out", "public.out").mark, 1, 0, 0, 0).new_gid()
    other = Origin(Identity("other", "public.out").mark, 1, 0, 0, 0).new_gid()
    database.run(
        f"BEGIN; INSERT INTO out VALUES ({3 if in_the_way else 33}); PREPARE TRANSACTION '{gid}'",
        f"BEGIN; INSERT INTO out VALUES (99); PREPARE TRANSACTION '{other}'",
    )
    new.run(0, numbered(0, 5))
    assert new.target.ids() == list(range(5))
    assert new.target.leftovers() == {other}, "another sink's is none of its business"


class Cut:
    """Stands between client and server, and once ends the connection at a COMMIT: before it arrives, or its answer."""

    def __init__(self, port: int, *, arrives: bool) -> None:
        self._target, self._arrives, self.left = ("127.0.0.1", port), arrives, 1
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def _run(self, what: Any, *args: Any) -> None:
        self._threads.append(threading.Thread(target=what, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                answered = threading.Event()
                self._run(self._pump, client, server, lambda data, over=answered: self._passes(data, over))
                self._run(self._pump, server, client, lambda _, over=answered: not over.is_set())

    def _passes(self, data: bytes, answered: threading.Event) -> bool:
        """Whether something reaches the server."""
        if b"COMMIT\0" not in data or not self.left:
            return True
        self.left -= 1
        if self._arrives:
            answered.set()
        return self._arrives

    def _pump(self, source: socket.socket, target: socket.socket, passes: Callable[[bytes], bool]) -> None:
        with suppress(OSError):
            while (data := source.recv(65536)) and passes(data):
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_commit_whose_answer_is_lost_is_not_repeated(database: Database, way: str, arrives: bool) -> None:
    one = Driver(PostgresTarget(database, **WAYS[way]), options={"commit_backoff": "1"}).claim()
    one.run(0, numbered(0, 5))
    messages = [one.write(1, numbered(5, 10)), one.write(1, numbered(10, 15), partition=1)]
    with closing(Cut(database.server.port, arrives=arrives)) as cut:
        one.options = {**one.options, "host": "127.0.0.1", "port": str(cut.port), "sslmode": "disable"}
        one.commit(messages, 1)
        assert cut.left == 0
    assert [outcome.name for outcome in one.outcomes[1:]] == ["ALREADY_COMMITTED" if arrives else "COMMITTED"]
    assert one.target.ids() == list(range(15)) and one.target.leftovers() == set()


def test_a_server_that_commits_late_does_not_forget_an_epoch(database: Database) -> None:
    """With `synchronous_commit=off` a commit is answered before it is written: a crash would take it back."""
    server = database.server
    with server.admin() as admin:
        admin.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        admin.execute("SELECT pg_reload_conf()")
        admin.execute(f"ALTER DATABASE {database.name} SET synchronous_commit = off")
    # Inline: dropping a staging table, and preparing, make the server write at once whatever the setting.
    one = Driver(PostgresTarget(database, **WAYS["inline"]))
    try:
        one.claim()
        one.run(0, numbered(0, 5))
        server.kill()
    finally:
        server.start()
        with server.admin() as admin:
            admin.execute("ALTER SYSTEM RESET wal_writer_delay")
            admin.execute("SELECT pg_reload_conf()")
    assert one.target.ids() == list(range(5))
    one.run(0, numbered(0, 5))
    assert one.outcomes[-1].name == "ALREADY_COMMITTED"
