"""PostgreSQL into PostgreSQL in a real job, whose server loses its connections and then everything but its disk."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.jobs.job import Job
from tests.servers.postgres import Database
from tests.support.waiting import until

ROWS = 1500


@pytest.mark.slow(20, "a server dies and comes back in the middle of a job")
@pytest.mark.parametrize("options", [{"inline_size": "0"}, {"inline_size": "0", "prepared": "true"}, {}])
def test_a_killed_server(spark: SparkSession, database: Database, tmp_path: Path, options: dict[str, str]) -> None:
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY, price numeric(8,2), at timestamptz)",
        f"INSERT INTO orders SELECT n, n / 100.0, now() FROM generate_series(1, {ROWS}) n",
        "ANALYZE orders",
    )

    def job() -> Job:
        rows = spark.readStream.format("postgres").options(uid="orders", dsn=database.dsn, table="orders")
        stream = rows.options(rows_per_channel=1000, max_rows_per_epoch=100).load().writeStream.format("postgres_2pc")
        made = sx.Job(spark, "copy", state=tmp_path / "state", restart_attempts=20, restart_backoff=20)
        made.add("copy", stream.options(uid="copy-out", dsn=database.dsn, table="copy", **options))
        return made

    started = job().start()
    until(lambda: copied(database) >= 200, "some epochs")
    database.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ '^spark_ext'")
    until(lambda: copied(database) >= 600, "more epochs")
    database.server.kill()
    database.server.start()
    started.await_termination(200)
    assert database.rows("TABLE copy ORDER BY id") == database.rows("TABLE orders ORDER BY id")
    assert [row["what"] for row in started.ledger.incidents().collect()], "the server was away: the job has said so"
    assert job().run(progress=False).finished
    assert copied(database) == ROWS


def test_an_interval_of_spark_is_one_of_the_server(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE n (id int PRIMARY KEY)", "INSERT INTO n VALUES (-1), (0), (90000)")
    rows = spark.readStream.format("postgres").options(uid="n", dsn=database.dsn, table="n").load()
    rows = rows.selectExpr("id", "make_dt_interval(0, 0, id, id * 0.000001) AS v", "make_dt_interval(id) AS d")
    job = sx.Job(spark, "intervals", state=tmp_path / "state")
    job.add("out", rows.writeStream.format("postgres_2pc").options(uid="out", dsn=database.dsn, table="out"))
    assert job.run(progress=False).finished
    assert database.rows("SELECT id, v::text, extract(epoch FROM d)::bigint AS d FROM out ORDER BY id") == [
        (-1, "-00:01:00.000001", -86_400),
        (0, "00:00:00", 0),
        (90_000, "1500:00:00.09", 7_776_000_000),
    ]


def copied(database: Database) -> int:
    return len(database.table("copy"))
