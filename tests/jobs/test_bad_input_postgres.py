"""Bad input around PostgreSQL, in real jobs: refused in time, by name, and a good run afterwards is exact."""

import math
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

import spark_ext as sx
from spark_ext.errors import ConfigurationError, DataError
from spark_ext.jobs.job import Job
from tests.servers.postgres import PASSWORD, Database
from tests.support.jobs import JobHarness, expected
from tests.support.refusals import add_reader, await_outage, delta_job, failures, refused
from tests.support.saved import held
from tests.support.waiting import until


def job_into(lab: JobHarness, frame: DataFrame, database: Database, given: dict[str, str], **settings: Any) -> Job:
    writer = frame.writeStream.format("postgres_2pc").options(uid="q-out", table="out", **database.options)
    return sx.Job(lab.spark, "lab", state=lab.folder / "state", **settings).add("q", writer.options(**given))


def numbers(lab: JobHarness, **options: Any) -> DataFrame:
    return lab.source(**options).select("channel", "n")


def there(database: Database) -> list[tuple[Any, ...]]:
    return database.rows("SELECT channel, n FROM out ORDER BY 1, 2")


def test_what_the_start_of_a_job_refuses(lab: JobHarness, database: Database) -> None:
    """Before a query runs, and before anything is in the database; the same job then runs."""
    cases: list[tuple[dict[str, str], str, tuple[str, ...]]] = [
        ({"password": "x" + PASSWORD}, "", ("password authentication failed", f"/{database.name}")),
        ({"create_table": "false"}, "", ("table 'out' does not exist",)),
        ({}, "CREATE TABLE out (channel text)", ("no column 'n'", "it has: channel")),
        ({}, "CREATE TABLE out (channel text, n date)", ("'n' has the type date", "bigint in the query")),
        ({}, "CREATE TABLE out (channel text, n bigint, at date NOT NULL)", ("'at' may not be null",)),
        ({"mode": "upsert", "key": "n"}, "CREATE TABLE out (channel text, n bigint)", ("no unique index on exactly",)),
    ]
    for given, table, words in cases:
        database.run("DROP TABLE IF EXISTS out", *filter(None, [table]))
        with refused(ConfigurationError, "sink 'q-out'", *words) as caught:
            job_into(lab, numbers(lab, counts="10"), database, given).start()
        assert PASSWORD not in str(caught)
        assert not lab.spark.streams.active
    database.run("DROP TABLE out")
    assert job_into(lab, numbers(lab, counts="10"), database, {}).run(progress=False).finished
    assert there(database) == expected(10)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"password": "x" + PASSWORD}, "password authentication failed"), ({"table": "nowhere"}, "does not exist"),
        ({"table": "heap"}, "primary key"), ({"key": "nr"}, "key column 'nr' does not exist"),
    ],
)  # fmt: skip
def test_what_the_load_of_a_table_refuses(
    lab: JobHarness, database: Database, given: dict[str, str], word: str
) -> None:
    database.run("CREATE TABLE t (id bigint PRIMARY KEY, at timestamptz)")
    database.run("CREATE TABLE heap (a int, b int)")
    reader = lab.spark.readStream.format("postgres").options(uid="in", table="t", **database.options).options(**given)
    with refused(ConfigurationError, "source 'in'", word) as caught:
        reader.load()
    assert PASSWORD not in str(caught)


def test_declared_columns_that_are_not_the_tables(lab: JobHarness, database: Database) -> None:
    """Spark asks nobody about a declared schema, so it is seen when the job starts."""
    database.run("CREATE TABLE t (id bigint PRIMARY KEY, at timestamptz)", "INSERT INTO t VALUES (1, now())")

    def job(schema: str) -> Job:
        reader = lab.spark.readStream.format("postgres").options(uid="in", table="t", **database.options)
        return delta_job(lab, reader.schema(schema).load().select("id"))

    with refused(ConfigurationError, "source 'in'", "column 'nr' does not exist"):
        job("id bigint, nr int").run(progress=False)
    with refused(ConfigurationError, "source 'in'", "'at'", "date"):
        job("id bigint, at date").run(progress=False)
    assert job("id bigint, at timestamp").run(progress=False).finished


def test_a_value_that_does_not_fit(lab: JobHarness, database: Database) -> None:
    """The second epoch fails for good, and `redact` hides the value; once it is repaired, each row is there once."""
    database.run("CREATE TABLE out (channel varchar(9), n bigint)")
    source = numbers(lab, counts="60", max_rows_per_epoch=20)
    odd = source.selectExpr("CASE WHEN n = 33 THEN 'far too long' ELSE channel END AS channel", "n")
    for given in ({"prepared": "true", "redact": "true"}, {"inline_size": "1m"}):
        running = job_into(lab, odd, database, given)
        with refused(DataError, "sink 'q-out'", "epoch 1", "row 14", "value too long") as caught:
            running.run(progress=False)
        what, action = failures(running)[-1]
        assert action == "stopped: FAILED"
        assert ("far too long" in str(caught)) is ("far too long" in what) is ("redact" not in given)
        assert there(database) == expected(20)
    assert len(failures(running)) == 2
    assert job_into(lab, source, database, {"inline_size": "0"}).run(progress=False).finished
    assert there(database) == expected(60)


def test_a_value_that_spark_has_not(lab: JobHarness, database: Database) -> None:
    """It is not to be corrected in the table, as the epoch was planned over it: declared as text it is read."""
    database.run("CREATE TABLE t (id bigint PRIMARY KEY, x numeric)")
    database.run("INSERT INTO t SELECT n, n FROM generate_series(1, 30) n", "UPDATE t SET x = 'NaN' WHERE id = 25")

    def job(schema: str) -> Job:
        reader = lab.spark.readStream.format("postgres").options(uid="in", table="t", **database.options)
        frame = reader.options(max_rows_per_epoch=10, readers=1).schema(schema).load()
        return delta_job(lab, frame.selectExpr("id", "CAST(x AS double) AS x"))

    running = job("id bigint, x decimal(38,18)")
    with refused(DataError, "source 'in'", "'x' has a value"):
        running.run(progress=False)
    assert [action for _, action in failures(running)] == ["stopped: FAILED"]
    assert sorted(DeltaTable(lab.folder / "out").to_pyarrow_table()["id"].to_pylist()) == list(range(1, 21))
    assert job("id bigint, x string").run(progress=False).finished
    found = DeltaTable(lab.folder / "out").to_pyarrow_table().to_pylist()
    assert {row["id"]: row["x"] for row in found if row["id"] != 25} == {n: n for n in range(1, 31) if n != 25}
    assert len(found) == 30 and any(row["id"] == 25 and math.isnan(row["x"]) for row in found)


def test_a_full_disk_of_the_server(lab: JobHarness, database: Database) -> None:
    """The run continues by itself once there is room."""
    with database.server.small_tablespace("1m") as space:
        try:
            database.run(f"CREATE TABLE out (channel text, n bigint, filling text) TABLESPACE {space}")
            # Not to be compressed: the server would make it small.
            odd = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 1000))"
            database.run("CREATE TABLE filling (t text)", f"INSERT INTO filling SELECT {odd}")
            wide = database.column("SELECT t FROM filling")[0]
            frame = numbers(lab, counts="80", max_rows_per_epoch=40).selectExpr("channel", "n", f"'{wide}' AS filling")
            given = {"commit_attempts": "2", "commit_backoff": "10 ms"}
            running = job_into(lab, frame, database, given, restart_attempts=1, restart_backoff="10 ms").start()
            until(lambda: len(failures(running)) >= 2, "a restart beyond the attempts")
            assert all("o space left" in what or "could not extend" in what for what, _ in failures(running))
            assert len(there(database)) in (0, 40), "no epoch in part"
            database.run("ALTER TABLE out SET TABLESPACE pg_default")
            assert running.await_termination(90).finished
            assert there(database) == expected(80)
        finally:
            database.run("DROP TABLE out")


def test_a_server_that_is_away(lab: JobHarness, database: Database) -> None:
    """Longer than any attempts and restarts: the run continues, exact. One query writes to a table, one reads one."""
    gate = lab.folder / "gate"
    frame = numbers(lab, uid="numbers", counts="60", max_rows_per_epoch=20, gate=gate)
    given = {"commit_attempts": "2", "commit_backoff": "10 ms", "inline_size": "0"}
    running = job_into(lab, frame, database, given, restart_attempts=1, restart_backoff="10 ms")
    database.run("CREATE TABLE t (n bigint PRIMARY KEY)", "INSERT INTO t SELECT n FROM generate_series(0, 59) n")
    reader = lab.spark.readStream.format("postgres").options(uid="in", table="t", **database.options)
    # The server is stopped during the second epoch.
    add_reader(lab, running, held(reader.options(max_rows_per_epoch=20, readers=1).load(), gate, 20))
    try:
        await_outage(lab, running.start(), database.server.stop)
        assert not any(PASSWORD in what for what, _ in failures(running))
    finally:
        database.server.start()
    assert running.await_termination(90).finished
    assert there(database) == expected(60)
    assert sorted(DeltaTable(lab.folder / "read").to_pyarrow_table()["n"].to_pylist()) == list(range(60))
