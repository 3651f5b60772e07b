"""`postgres_2pc`: types, upserts, what a crash of the server leaves, and prepared transactions in doubt."""

import datetime
import pickle
import types
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import tenacity
from pyspark.sql import types as T

from spark_ext import failpoints
from spark_ext.clients.postgres import connection as pg_connection
from spark_ext.errors import CommitError, ConfigurationError, FencedError, PreparedLostError, StateError
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import CommitOutcome
from spark_ext.sinks.postgres_2pc.sink import PostgresTwoPhaseCommit
from spark_ext.sources.postgres.source import Postgres
from spark_ext.testing.children import frozen
from spark_ext.testing.sink_driver import NUMBERS, Driver, numbered, run_epoch
from spark_ext.testing.source_kit import drive
from tests.servers.postgres import Database
from tests.sinks.postgres_2pc.postgres_kit import PostgresTarget, driver

UTC = datetime.timezone.utc
JULY = datetime.datetime(2024, 7, 1, tzinfo=UTC)
NAIVE = datetime.datetime(1900, 1, 1, 0, 0, 0, 1)
ENDS = [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]
NINES = Decimal("-" + "9" * 38)
ID = "0189F7E5-9A3C-7000-8000-00000000000A"
FITS: list[tuple[str, str, list[Any], list[Any]]] = [
    # column of the table, Spark's type, values, what a reader finds
    ("boolean", "boolean", [True, None], [True, None]),
    ("smallint", "tinyint", [-128, 127], [-128, 127]),
    ("bigint", "int", [-(2**31), 2**31 - 1, None], [-(2**31), 2**31 - 1, None]),
    ("bigint", "bigint", [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
    ("numeric", "bigint", [-(2**63), 2**63 - 1, 0], [Decimal(-(2**63)), Decimal(2**63 - 1), Decimal(0)]),
    ("numeric(12,4)", "decimal(9,2)", [Decimal("-12.34"), Decimal("0.05")], [Decimal("-12.34"), Decimal("0.05")]),
    ("numeric", "decimal(15,15)", [Decimal("0.000000000000001"), None], [Decimal("0.000000000000001"), None]),
    ("numeric", "decimal(38,0)", [NINES, Decimal(10**37)], [NINES, Decimal(10**37)]),
    ("numeric", "decimal(38,38)", [Decimal("-0." + "1" * 38)], [Decimal("-0." + "1" * 38)]),
    ("double precision", "float", [1.5, float("inf"), None], [1.5, float("inf"), None]),
    ("real", "smallint", [-32768, 3], [-32768.0, 3.0]),
    ("varchar(5)", "string", ["äöü€x", "", None], ["äöü€x", "", None]),
    ("char(3)", "string", ["ab"], ["ab "]),
    ("uuid", "string", [ID, None], [uuid.UUID(ID), None]),
    ("jsonb", "string", ['{"a": [1, null]}', None], [{"a": [1, None]}, None]),
    ("json", "map<string, array<int>>", [[("k", [1, None])], None], [{"k": [1, None]}, None]),
    ("jsonb", "struct<d: date, n: decimal(5,2), b: binary, f: double>",
     [{"d": datetime.date(2024, 2, 29), "n": Decimal("1.50"), "b": b"\xff", "f": float("nan")}],
     [{"d": "2024-02-29", "n": "1.50", "b": "ff", "f": "nan"}]),
    ("bytea", "binary", [b"", b"\0\xff", None], [b"", b"\0\xff", None]),
    ("date", "date", ENDS, ENDS),
    ("timestamp", "timestamp_ntz", [NAIVE], [NAIVE]),
    ("timestamptz", "timestamp", [JULY], [JULY]),
    ("integer[]", "array<int>", [[1, None, 3], [], None, [4]], [[1, None, 3], [], None, [4]]),
    ("text[]", "array<string>", [["a", None, ""], None], [["a", None, ""], None]),
    ("numeric(5,1)[]", "array<decimal(4,1)>", [[Decimal("1.5"), None]], [[Decimal("1.5"), None]]),
    ("timestamptz[]", "array<timestamp>", [[JULY]], [[JULY]]),
]  # fmt: skip


@pytest.mark.parametrize("inline", ["0", "1m"])
def test_each_type_arrives_as_it_is(database: Database, inline: str) -> None:
    names = [f"c{number}" for number in range(len(FITS))]
    shown = ", ".join(f"{name} {fit[0]}" for name, fit in zip(names, FITS, strict=True))
    database.run("CREATE DOMAIN small AS int CHECK (VALUE < 10)", f"CREATE TABLE out (n bigint, {shown}, d small)")
    schema = columns("n bigint, " + ", ".join(f"{name} {fit[1]}" for name, fit in zip(names, FITS, strict=True)))
    schema = schema.add("d", T.IntegerType())
    count = 2 * max(len(fit[2]) for fit in FITS)
    rows = [
        {"n": n, "d": n % 10, **{name: fit[2][n % len(fit[2])] for name, fit in zip(names, FITS, strict=True)}}
        for n in range(count)
    ]
    one = driver(database, schema, inline_size=inline).claim()
    one.run(0, rows)
    one.run(1, [{**row, "n": row["n"] + count} for row in rows], partitions=3)
    for row in database.table("out"):
        for name, (kind, _, _, expected) in zip(names, FITS, strict=True):
            assert row[name] == expected[row["n"] % count % len(expected)], (kind, row["n"])
    assert len(database.table("out")) == 2 * count


def test_columns_that_are_not_given_get_their_default(database: Database) -> None:
    database.run("CREATE TABLE out (at timestamptz NOT NULL DEFAULT now(), nr serial, name text, more text, id bigint)")
    driver(database).claim().run(0, numbered(0, 3))
    assert database.rows("SELECT nr, id, name, more, at IS NULL FROM out ORDER BY nr") == [
        (n + 1, n, f"n{n}", None, False) for n in range(3)
    ]


def test_large_batches_are_cut(database: Database) -> None:
    """So that the offsets of Arrow's arrays do not overflow; the row of a misfit is still the right one."""
    driver(database).claim().run(0, [{"id": n, "name": chr(97 + n % 26) * 1_000_000} for n in range(80)])
    assert database.rows("SELECT count(*), sum(length(name)), count(DISTINCT name) FROM out") == [(80, 80_000_000, 26)]


def test_the_server_may_be_named_by_the_environment(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in database.environment().items():
        monkeypatch.setenv(name, value)
    sink = PostgresTwoPhaseCommit({"uid": "out", "table": "out"})
    sink.validate(NUMBERS)
    assert f"{database.server.port}/{database.name}" in sink._who
    sent = pickle.loads(pickle.dumps(sink))
    monkeypatch.setenv("PGDATABASE", "nowhere")
    with pytest.raises(ConfigurationError, match="nowhere"):
        sent.validate(NUMBERS)


def test_a_service_file_names_the_server(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(f"{name}={value}\n" for name, value in database.options.items())
    (tmp_path / "services").write_text(f"[shop]\n{lines}")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    PostgresTwoPhaseCommit({"uid": "out", "table": "out", "service": "shop"}).validate(NUMBERS)
    database.run("CREATE TABLE out (id bigint PRIMARY KEY)", "INSERT INTO out VALUES (1), (2)")
    trace = drive(Postgres, {"uid": "in", "table": "out", "service": "shop"})
    assert sorted(row["id"] for row in trace.all_rows().to_pylist()) == [1, 2]
    with pytest.raises(ConfigurationError, match="nowhere"):
        PostgresTwoPhaseCommit({"uid": "out", "table": "out", "service": "nowhere"}).validate(NUMBERS)


@pytest.mark.parametrize("inline", ["0", "1m"])
def test_upsert_replaces_rows_of_the_same_key(database: Database, inline: str) -> None:
    one = driver(database, mode="upsert", key="id", inline_size=inline).claim()
    one.run(0, numbered(0, 5))
    database.run("ALTER TABLE out ADD note text DEFAULT 'kept'", "UPDATE out SET note = 'mine' WHERE id = 3")
    one.run(1, [{"id": n, "name": "new"} for n in range(3, 7)], partitions=2)
    assert sorted(database.rows("TABLE out")) == [
        *((n, f"n{n}", "kept") for n in range(3)),
        (3, "new", "mine"),
        *((n, "new", "kept") for n in range(4, 7)),
    ]


@pytest.mark.parametrize("inline", ["0", "1m"])
def test_upsert_by_the_latest(database: Database, inline: str) -> None:
    schema = columns("shop string, id bigint, at int, name string")
    one = driver(database, schema, mode="upsert", key="id, shop", newest_by="at", inline_size=inline).claim()

    def put(epoch: int, *rows: tuple[str, int, int | None, str]) -> None:
        one.run(epoch, [dict(zip(schema.names, row, strict=True)) for row in rows], partitions=2)

    put(0, ("a", 1, 5, "five"), ("a", 1, 7, "seven"), ("a", 1, None, "never"), ("b", 1, 1, "b"))
    put(1, ("a", 1, 6, "late"), ("b", 1, 1, "same time"))
    assert sorted(database.rows("TABLE out")) == [("a", 1, 7, "seven"), ("b", 1, 1, "same time")]


def test_upsert_of_nothing_but_the_key(database: Database) -> None:
    one = driver(database, columns("id bigint"), mode="upsert", key="id").claim()
    one.run(0, [{"id": 1}])
    one.run(1, [{"id": 1}, {"id": 2}])
    assert one.target.ids() == [1, 2]


def test_staged_rows_emptied_by_a_server_crash_are_noticed(database: Database) -> None:
    one = driver(database).claim()
    one.run(0, numbered(0, 5))
    messages = [one.write(1, numbered(5, 10))]
    database.server.kill()
    database.server.start()
    with pytest.raises(PreparedLostError, match="has 0 of 5 rows"):
        one.commit(messages, 1)
    assert one.attempts == 2, "not tried again in place"
    assert one.target.ids() == list(range(5))
    one.run(1, numbered(5, 10))
    assert one.target.ids() == list(range(10))


def test_a_staging_table_that_is_gone_is_noticed(database: Database) -> None:
    one = driver(database).claim()
    messages = [one.write(0, numbered(0, 5))]
    (name,) = one.target.leftovers()
    database.run(f"DROP TABLE spark_ext.{name}")
    with pytest.raises(PreparedLostError, match=name):
        one.commit(messages, 0)


def test_rows_that_a_trigger_keeps_out_are_not_lost_ones(database: Database) -> None:
    database.run(
        "CREATE TABLE out (id bigint, name text)",
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.id = 2 THEN RETURN NULL; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER skip BEFORE INSERT ON out FOR EACH ROW EXECUTE FUNCTION skip()",
    )
    one = driver(database).claim()
    one.run(0, numbered(0, 5))
    assert one.target.ids() == [0, 1, 3, 4]


def test_prepared_rows_survive_a_crash_of_the_server(database: Database) -> None:
    one = driver(database, prepared="true").claim()
    messages = [one.write(0, numbered(0, 5)), one.write(0, numbered(5, 10), partition=1)]
    database.server.kill()
    database.server.start()
    assert one.target.ids() == []
    one.commit(messages, 0)
    assert one.target.ids() == list(range(10)) and one.target.leftovers() == set()


def test_a_server_that_is_away_is_waited_for(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real stop and start between two attempts; the kept connection is found dead and created again."""
    one = driver(database).claim()
    messages = [one.write(0, numbered(0, 5))]
    server = database.server
    server.stop()
    waits: list[float] = []

    def back_in_the_second_wait(wait: float) -> None:
        waits.append(wait)
        if len(waits) == 2:
            server.start()

    monkeypatch.setattr(tenacity.nap, "time", types.SimpleNamespace(sleep=back_in_the_second_wait))
    try:
        one.commit(messages, 0)
    finally:
        monkeypatch.undo()
        if len(waits) < 2:
            server.start()
    assert len(waits) == 2
    assert one.target.ids() == list(range(5))


def test_a_connection_that_is_ended_in_the_middle_of_the_commit(database: Database, tmp_path: Path) -> None:
    Driver(PostgresTarget(database)).claim()
    with frozen(tmp_path, "postgres.before_commit", run_epoch, PostgresTarget(database), 1, 0, 0, 5) as child:
        ended = database.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'spark\\_ext:%' "
            "AND state = 'idle in transaction' AND datname = current_database()"
        )
        assert ended == [(True,)]
        said = child.wake()
    assert "Error" not in said, said
    assert PostgresTarget(database).ids() == list(range(5))


STARTED = "SELECT pid FROM pg_stat_activity WHERE application_name ~ '^spark_ext:' AND datname = current_database()"


def test_connections_are_kept_over_epochs(database: Database) -> None:
    pg_connection.forget()
    one = driver(database).claim()
    before = database.column(STARTED)
    for epoch in range(3):
        one.run(epoch, numbered(epoch, epoch + 1))
    assert database.column(STARTED) == before and len(before) == 1
    database.run(f"SELECT pg_terminate_backend({before[0]})")
    one.run(3, numbered(3, 4))
    assert one.target.ids() == [0, 1, 2, 3]
    assert database.column(STARTED) != before


def test_a_process_that_serves_many_sinks_keeps_few_connections(database: Database) -> None:
    """One job after the other in one driver: their idle connections would use the server's up."""
    for number in range(12):
        Driver(PostgresTarget(database, f"t{number}"), uid=f"out-{number}").claim().run(0, numbered(0, 2))
    assert len(database.column(STARTED)) <= 4


def test_a_decision_is_finished_by_whoever_comes_next(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch's transaction is committed, its parts are not: the same incarnation repeats it, without a claim."""
    one = driver(database, prepared="true", commit_attempts="1").claim()
    messages = [one.write(0, numbered(n * 5, n * 5 + 5), partition=n) for n in range(3)]
    monkeypatch.setenv(failpoints.VARIABLE, "postgres.part_committed=raise")
    with pytest.raises(CommitError):
        one.commit(messages, 0)
    monkeypatch.delenv(failpoints.VARIABLE)
    assert len(one.target.ids()) == 5, "not atomic over several of them"
    assert len(one.target.leftovers()) == 2
    one.commit([one.write(0, numbered(0, 15))], 0)
    assert one.outcomes == [CommitOutcome.ALREADY_COMMITTED]
    assert one.target.ids() == list(range(15)) and one.target.leftovers() == set()
    assert database.rows("TABLE spark_ext.decided") == database.rows("TABLE spark_ext.parts") == []


def test_a_lost_attempt_does_not_hold_the_next_one_up(database: Database) -> None:
    """Its rows are in an index already, in doubt: the next attempt at the partition rolls it back and continues."""
    database.run("CREATE TABLE out (id bigint PRIMARY KEY, name text)")
    one = driver(database, prepared="true", lock_timeout="10 s").claim()
    one.write(0, numbered(0, 5), attempt=1)
    other = one.write(0, numbered(5, 10), partition=1)
    one.commit([one.write(0, numbered(0, 5), attempt=2), other], 0)
    assert one.target.ids() == list(range(10)) and one.target.leftovers() == set()


def test_a_prepared_transaction_that_somebody_rolled_back(database: Database) -> None:
    one = driver(database, prepared="true").claim()
    messages = [one.write(0, numbered(0, 5))]
    (gid,) = one.target.leftovers()
    database.run(f"ROLLBACK PREPARED '{gid}'")
    with pytest.raises(PreparedLostError, match="1 of 1 prepared transactions are missing"):
        one.commit(messages, 0)
    one.run(0, numbered(0, 5))
    assert one.target.ids() == list(range(5))
    database.run("INSERT INTO spark_ext.decided SELECT 'spark_ext:gone', sink, target, 1 FROM spark_ext.sinks")
    with pytest.raises(StateError, match="'spark_ext:gone' was decided on, but was removed"):
        driver(database, NUMBERS, 2, prepared="true").claim()


def test_a_task_of_an_older_incarnation_prepares_nothing(database: Database) -> None:
    old, new = driver(database, prepared="true"), driver(database, NUMBERS, 2, prepared="true")
    old.claim()
    new.claim()
    with pytest.raises(FencedError):
        old.write(0, numbered(0, 5))
    assert new.target.leftovers() == set()


def test_the_record_says_what_was_committed(database: Database) -> None:
    one = driver(database).claim()
    one.run(0, numbered(0, 5))
    one.run(1, numbered(5, 6))
    assert database.rows("SELECT sink, target, application, epoch, incarnation, rows FROM spark_ext.epochs") == [
        ("out", "public.out", f"spark_ext:out:0:{one.query_id}", 1, 1, 1)
    ]
    assert database.rows("SELECT job, job_id, incarnation FROM spark_ext.sinks") == [("job", "job-1", 1)]
