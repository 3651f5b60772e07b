"""A table or record of `postgres_2pc` that others change."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from functools import partial

import pytest
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType

from spark_ext.errors import SparkExtError, StateError
from spark_ext.testing.sink_driver import STATES, Driver, numbered
from tests.servers.postgres import Database
from tests.sinks.postgres_2pc.postgres_kit import PostgresTarget
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("states")

WAITS = """
SELECT 1 FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE NOT l.granted AND l.relation = 'out'::regclass AND a.application_name LIKE 'spark_ext:%'
"""


def used(database: Database) -> PostgresTarget:
    target = PostgresTarget(database)
    Driver(target).claim().run(0, numbered(0, 5))
    return target


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE out RENAME TO gone; CREATE TABLE out (LIKE gone)",
        "DELETE FROM spark_ext.sinks",
        "DELETE FROM spark_ext.epochs",
    ],
)
@pytest.mark.parametrize("rows", [5, 0], ids=["rows", "empty"])
def test_another_table_or_record_under_a_running_job_is_refused(database: Database, statement: str, rows: int) -> None:
    target = used(database)
    database.run(statement)
    with pytest.raises(StateError, match="not the target that was claimed"):
        Driver(target).run(1, numbered(5, 5 + rows))


def test_another_table_is_refused_until_the_user_says_it_moved(database: Database) -> None:
    target = used(database)
    database.run("ALTER TABLE out RENAME TO gone; CREATE TABLE out AS TABLE gone")
    with pytest.raises(StateError, match=r"UPDATE spark_ext\.sinks SET target_oid = NULL"):
        Driver(target, incarnation=2).claim()
    database.run("UPDATE spark_ext.sinks SET target_oid = NULL")
    Driver(target, incarnation=2).claim().run(1, numbered(5, 10))
    assert target.ids() == list(range(10))


def while_changed(database: Database, change: str, step: Callable[[], object]) -> Future[object]:
    """The result of a step that waits for the table while another connection changes it."""
    with database.connect() as admin, ThreadPoolExecutor(1) as thread:
        admin.execute(f"BEGIN; {change}")
        result = thread.submit(step)
        until(lambda: result.done() or database.rows(WAITS), "the rows wait for the table")
        admin.execute("COMMIT")
    return result


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"inline_size": "1m"},
        {"inline_size": "1m", "mode": "upsert", "key": "id"},
        {"inline_size": "1m", "on_bad_row": "quarantine"},
        {"prepared": "true"},
    ],
    ids=["staged", "inline", "upsert", "quarantine", "prepared"],
)
def test_a_table_swapped_while_rows_wait_gets_none(database: Database, options: dict[str, str]) -> None:
    """The name is looked up again once the lock is there: what was compared before was the old table."""
    database.run("CREATE TABLE out (id bigint PRIMARY KEY, name text)", "CREATE TABLE new (LIKE out INCLUDING ALL)")
    driver = Driver(PostgresTarget(database, **options), options=options).claim()
    driver.run(0, numbered(0, 5))
    step: Callable[[], object]
    if "prepared" in options:
        step = partial(driver.run, 1, numbered(5, 10))  # the task itself waits
    else:
        step = partial(driver.commit, [driver.write(1, numbered(5, 10))], 1)
    result = while_changed(database, "ALTER TABLE out RENAME TO old; ALTER TABLE new RENAME TO out", step)
    with pytest.raises(StateError, match="not the target that was claimed: the table's oid was"):
        result.result()
    assert database.rows("TABLE out") == [] and database.column("SELECT epoch FROM spark_ext.epochs") == [0]
    assert database.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()") == []
    database.run("ALTER TABLE out RENAME TO new; ALTER TABLE old RENAME TO out")
    Driver(driver.target, 2, options=options).claim().run(1, numbered(5, 10))
    assert (driver.target.ids(), driver.target.leftovers()) == (list(range(10)), set())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"inline_size": "1m"}, "has the type double precision in the table"),  # of the second attempt
        ({"prepared": "true"}, "types of columns were changed while rows were written"),
    ],
    ids=["inline", "prepared"],
)
def test_a_column_gets_another_type_while_rows_wait(database: Database, options: dict[str, str], error: str) -> None:
    """Rows of a binary COPY are encoded before the lock is there; the bytes of a bigint are those of a double too."""
    database.run("CREATE TABLE out (id bigint, name text)")
    driver = Driver(PostgresTarget(database, **options)).claim()
    driver.run(0, numbered(0, 5))
    alter = "ALTER TABLE out ALTER id TYPE double precision"
    with pytest.raises(SparkExtError, match=error):
        while_changed(database, alter, lambda: driver.run(1, numbered(5, 10))).result()
    assert driver.target.ids() == list(range(5)) and driver.target.leftovers() == set()


@pytest.mark.parametrize(
    ("kind", "alter", "row"),
    [
        ("text", "integer USING 0", "2024"),
        ("jsonb", "text", "{}"),
        ("uuid", "bytea USING NULL", "7c0ee0a4-0a4b-4b0a-9b0a-0a4b4b0a9b0a"),
        ("numeric(10,2)", "numeric(10,1)", Decimal("1.25")),
    ],
)
@pytest.mark.parametrize("options", [{"inline_size": "1m"}, {"prepared": "true"}], ids=["inline", "prepared"])
def test_bytes_of_a_type(
    database: Database, kind: str, alter: str, row: str | Decimal, options: dict[str, str]
) -> None:
    database.run(f"CREATE TABLE out (id bigint, v {kind})")
    value = StringType() if isinstance(row, str) else DecimalType(10, 2)
    schema = StructType([StructField("id", LongType()), StructField("v", value)])
    driver = Driver(PostgresTarget(database, **options), schema=schema).claim()
    with suppress(SparkExtError):
        while_changed(
            database, f"ALTER TABLE out ALTER v TYPE {alter}", lambda: driver.run(0, [{"id": 1, "v": row}])
        ).result()
    # What has a text of its own is that text after another attempt; the rest is refused.
    assert database.rows("SELECT v::text FROM out") in ([], [("{}",)])


@pytest.mark.parametrize("incarnation", [1, 0], ids=["in a job", "outside"])
def test_statements_of_the_options_may_change_texts(database: Database, incarnation: int) -> None:
    database.run("CREATE TABLE out (id bigint, name varchar(2))")
    alter = {"pre_sql": "ALTER TABLE out ALTER name TYPE text", "inline_size": "1m"}
    driver = Driver(PostgresTarget(database, **alter), incarnation)
    if incarnation:
        driver.claim()
    driver.run(0, [{"id": 0, "name": "long"}])
    assert driver.target.rows() == [{"id": 0, "name": "long"}]


def test_a_table_is_looked_for_in_each_schema(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STATES)  # the state does not remember the epoch by itself
    database.run(
        "CREATE TABLE public.out (id bigint, name text)",
        "CREATE SCHEMA app",
        f"ALTER DATABASE {database.name} SET search_path = app, public",
    )
    target = used(database)
    database.run("DROP TABLE public.out")
    with pytest.raises(StateError, match="the table does not exist, and epochs were committed to it"):
        Driver(target, incarnation=2).claim()
    assert database.rows("SELECT to_regclass('out')") == [(None,)]


def test_rows_are_everybodys(database: Database) -> None:
    target = used(database)
    database.run("TRUNCATE out")
    Driver(target).run(1, numbered(5, 10))
    assert target.ids() == list(range(5, 10))
