"""What PostgreSQL refuses of an epoch, row by row: by types, by constraints, and by what else is in the table."""

import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as T

from spark_ext.errors import ConfigurationError, DataError, StateError
from spark_ext.model.commits import Epoch
from spark_ext.testing.children import killed_at
from spark_ext.testing.sink_bad_rows import BadRowsKit, run_dirty_epoch
from spark_ext.testing.sink_driver import NUMBERS, numbered
from tests.servers.postgres import Database
from tests.sinks.postgres_2pc.postgres_kit import WAYS, PostgresTarget

pytestmark = pytest.mark.usefixtures("states")

AT = T.StructType([*NUMBERS.fields, T.StructField("at", T.LongType())])


@pytest.fixture(params=["staged", "inline"])
def way(request: pytest.FixtureRequest) -> dict[str, str]:
    return {"inline_size": "1m" if request.param == "inline" else "0"}


def run(
    database: Database, table: str, rows: list[dict[str, Any]], schema: T.StructType = NUMBERS, /, **options: str
) -> BadRowsKit:
    """An epoch into a table, by three tasks; its bad rows are in their table."""
    database.run(*table.split("; "))
    kit = BadRowsKit(PostgresTarget(database, **options), schema)
    kit.driver().claim().run(0, rows, partitions=3)
    kit.settle(0)
    assert kit.waiting() == [] and kit.target.leftovers() == set()
    return kit


REFUSED = [
    ("CREATE TABLE out (id bigint, name varchar(3))", "abcd", "value too long"),
    ("CREATE TABLE out (id bigint, name uuid)", "not-a-uuid", "it is not a UUID"),
    ("CREATE TABLE out (id bigint, name text)", "nul\0", "invalid byte sequence"),
    ("CREATE TABLE out (id bigint, name text NOT NULL)", None, "violates not-null constraint"),
    ("CREATE TABLE out (id bigint, name text CHECK (name <> 'bad'))", "bad", "violates check constraint"),
    ("CREATE TABLE d (name text PRIMARY KEY); INSERT INTO d VALUES ('abc'); "
     "CREATE TABLE out (id bigint, name text REFERENCES d)", "bad", "violates foreign key constraint"),
    ("CREATE TABLE d (name text PRIMARY KEY); INSERT INTO d VALUES ('abc'); "
     "CREATE TABLE out (id bigint, name text REFERENCES d DEFERRABLE INITIALLY DEFERRED)", "bad",
     "violates foreign key constraint"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "value", "reason"), REFUSED, ids=[f"{row[2]}-{number}" for number, row in enumerate(REFUSED)]
)
def test_a_refused_row(database: Database, way: dict[str, str], table: str, value: str | None, reason: str) -> None:
    fine = "0189f7e5-9a3c-7000-8000-000000000000" if "uuid" in table else "abc"
    wrong = {0, 7, 8, 2999}
    kit = run(database, table, [{"id": n, "name": value if n in wrong else fine} for n in range(3000)], **way)
    assert kit.table() == sorted(wrong)
    kit.check(3000)
    assert all(reason in row["reason"] and "row 1" not in row["reason"] for row in kit.found())


def test_of_rows_with_one_key_the_first_is_written(database: Database, way: dict[str, str]) -> None:
    table = "CREATE TABLE out (id bigint, name text UNIQUE); INSERT INTO out VALUES (-1, 'n5')"
    kit = run(database, table, [{"id": n, "name": f"n{n % 10}"} for n in range(20)], **way)
    assert sorted({row["name"] for row in kit.target.rows()}) == [f"n{n}" for n in range(10)]
    assert len(kit.found()) == 11
    assert sorted([*kit.target.ids(), *kit.table()]) == list(range(-1, 20))
    assert all("duplicate key" in row["reason"] for row in kit.found())


def test_another_writer_decides_once(database: Database, way: dict[str, str]) -> None:
    database.run("CREATE TABLE out (id bigint, name text UNIQUE)", "INSERT INTO out VALUES (-1, 'n3')")
    kit = BadRowsKit(PostgresTarget(database, **way))
    one = kit.driver().claim()
    rows = [{"id": n, "name": f"n{n}"} for n in range(5)]
    one.run(0, rows)
    database.run("DELETE FROM out WHERE id = -1")
    kit.driver(2).claim().run(0, rows, partitions=2)
    kit.settle(0)
    assert (kit.target.ids(), kit.table()) == ([0, 1, 2, 4], [3])


def test_an_upsert_keeps_what_newest_by_says(database: Database, way: dict[str, str]) -> None:
    rows = [
        {"id": 1, "name": "new", "at": 3},
        {"id": 1, "name": "old", "at": 2},
        {"id": 2, "name": "bad", "at": 9},
        {"id": 2, "name": "good", "at": 5},
        {"id": 3, "name": "bad", "at": 1},
    ]
    table = "CREATE TABLE out (id bigint PRIMARY KEY, name text CHECK (name <> 'bad'), at bigint)"
    kit = run(database, table, rows, AT, mode="upsert", key="id", newest_by="at", **way)
    assert sorted((row["id"], row["name"]) for row in kit.target.rows()) == [(1, "new"), (2, "good")]
    assert kit.table() == [2, 3]


def test_an_upsert_with_a_doubled_key_is_refused_all_the_same(database: Database, way: dict[str, str]) -> None:
    """Also if other rows are put aside: tried one by one they would replace each other."""
    rows: list[dict[str, Any]] = [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}, {"id": 2, "name": "bad"}]
    with pytest.raises(DataError, match=r"same key|second time"):
        run(
            database,
            "CREATE TABLE out (id bigint PRIMARY KEY, name text CHECK (name <> 'bad'))",
            rows, mode="upsert", key="id", **way,
        )  # fmt: skip
    assert database.rows("TABLE out") == []


def test_a_null_in_the_key_of_an_upsert(database: Database, way: dict[str, str]) -> None:
    rows: list[dict[str, Any]] = [{"id": 1, "name": "a"}, {"id": None, "name": "b"}]
    kit = run(database, "CREATE TABLE out (id bigint UNIQUE, name text)", rows, mode="upsert", key="id", **way)
    assert kit.target.ids() == [1]
    assert ["the key of an upsert may not be null" in row["reason"] for row in kit.found()] == [True]


def test_a_table_that_copy_does_not_support(database: Database, way: dict[str, str]) -> None:
    table = (
        "CREATE TABLE out (id bigint, name text CHECK (name <> 'bad')); "
        "ALTER TABLE out ENABLE ROW LEVEL SECURITY; ALTER TABLE out FORCE ROW LEVEL SECURITY; "
        "CREATE POLICY all_rows ON out USING (true) WITH CHECK (true)"
    )
    kit = run(database, table, [{"id": n, "name": "bad" if n == 3 else "fine"} for n in range(10)], **way)
    assert kit.table() == [3]
    kit.check(10)


def test_with_redact_reasons_have_no_values(database: Database, way: dict[str, str]) -> None:
    rows = [{"id": 1, "name": "s3cret"}]
    kit = run(database, "CREATE TABLE out (id bigint, name text CHECK (name <> 's3cret'))", rows, redact="true", **way)
    [found] = kit.found()
    assert "s3cret" not in found["reason"] and "s3cret" in found["raw"]


def test_a_row_has_one_form_whoever_has_refused_it(database: Database, way: dict[str, str]) -> None:
    """Texts that are too long are refused before the rows are in a table of the server, checks behind it."""
    types = {"at": T.TimestampType(), "day": T.DateType(), "price": T.DecimalType(10, 2), "share": T.DoubleType()}
    schema = T.StructType(
        [
            *NUMBERS.fields,
            *(T.StructField(name, kind) for name, kind in types.items()),
            T.StructField("b", T.BinaryType()),
        ]
    )
    at = datetime(2026, 12, 1, 10, 14, 53, 500_000, timezone.utc)
    same = {"at": at, "day": at.date(), "price": Decimal("1.50"), "share": float("nan"), "b": b"\xff"}
    table = "CREATE TABLE out (id bigint, name varchar(3) CHECK (name <> 'bad'), at timestamptz, day date, "
    table += "price numeric(10, 2), share double precision, b bytea)"
    kit = run(database, table, [{"id": 1, "name": "abcd", **same}, {"id": 2, "name": "bad", **same}], schema, **way)
    one, other = sorted(row["raw"] for row in kit.found())
    assert other == one.replace('"id": 1, "name": "abcd"', '"id": 2, "name": "bad"')
    assert '"at": "2026-12-01T10:14:53.500000+00:00", "day": "2026-12-01", "price": "1.50", "share": "nan"' in one


def test_a_row_with_a_time_that_only_the_server_has_is_shown_as_there(database: Database, way: dict[str, str]) -> None:
    table = "CREATE TABLE out (id bigint, name text CHECK (name <> 'bad'), far timestamptz DEFAULT 'infinity')"
    kit = run(database, table, [{"id": 1, "name": "bad"}], **way)
    assert [json.loads(row["raw"])["id"] for row in kit.found()] == [1]


def test_an_error_that_is_none_of_a_row_is_one_as_before(database: Database, way: dict[str, str]) -> None:
    database.run("CREATE TABLE out (id bigint, name text)")
    kit = BadRowsKit(PostgresTarget(database, **way))
    one = kit.driver().claim()
    database.run("ALTER TABLE out DROP COLUMN name")
    with pytest.raises(ConfigurationError):
        one.run(0, [{"id": 1, "name": "n"}])
    kit.settle(0)
    assert kit.found() == []


def test_prepared_transactions_are_refused(database: Database) -> None:
    with pytest.raises(ConfigurationError, match="on_bad_row=quarantine requires prepared=false"):
        PostgresTarget(database, prepared="true").sink(on_bad_row="quarantine")


def test_a_table_that_is_not_in_the_first_schema_of_search_path(database: Database) -> None:
    database.run(
        "CREATE TABLE public.out (id bigint UNIQUE, name text CHECK (name <> 'bad'))",
        "CREATE SCHEMA app",
        f"ALTER DATABASE {database.name} SET search_path = app, public",
    )
    target = PostgresTarget(database)
    kit = BadRowsKit(target)
    kit.driver().claim()
    killed_at("postgres.recorded", run_dirty_epoch, target, 1, 0, 0, 10, True)
    kit.driver(2).claim().run(0, numbered(0, 10))
    kit.settle(0)
    assert kit.table() == [0, 5]
    kit.check(10)


def test_an_epoch_without_a_record_is_not_one_without_bad_rows(database: Database) -> None:
    database.run("CREATE TABLE out (id bigint, name text)")
    one = BadRowsKit(PostgresTarget(database)).driver().claim()
    one.run(0, numbered(0, 5))
    sink, first = one.target.sink(), Epoch("out", 0, one.query_id, 0, 1, start=one.start)
    assert sink.kept_bad_rows(first) is None
    with pytest.raises(StateError, match="no record of epoch 1"):
        sink.kept_bad_rows(Epoch("out", 0, one.query_id, 1, 1, start=one.start))
    database.run("DROP TABLE out")
    with pytest.raises(StateError, match="the table does not exist"):
        sink.kept_bad_rows(first)


NAMES = ("r", "s", "t", "e", "excluded", "spark_ext_row", "spark_ext_row_", 'q"uote', "n" * 63)


@pytest.mark.parametrize("way", ["staged", "inline", "upsert"])
@pytest.mark.parametrize("missing", [False, True])
def test_columns_with_the_names_of_aliases(database: Database, way: str, missing: bool) -> None:
    names = NAMES[1:] if missing else NAMES
    schema = T.StructType([*NUMBERS.fields, *(T.StructField(name, T.StringType()) for name in names)])
    shown = ", ".join('"' + name.replace('"', '""') + '" text' for name in names)
    database.run(f"CREATE TABLE out (id bigint PRIMARY KEY, name text CHECK (name <> 'bad'), {shown})")
    more = {"mode": "upsert", "key": '"id"', "newest_by": '"e"'} if way == "upsert" else WAYS[way]
    kit = BadRowsKit(PostgresTarget(database, **more), schema)
    rows = [{"id": n, "name": "bad" if n % 7 == 3 else "n", **dict.fromkeys(names, f"v{n}")} for n in range(20)]
    kit.driver().claim().run(0, rows)
    kit.settle(0)
    assert kit.table() == [3, 10, 17]
    assert sorted(database.table("out"), key=lambda row: row["id"]) == [row for row in rows if row["name"] != "bad"]


def test_names_that_the_server_would_cut_off_are_refused(database: Database) -> None:
    one = PostgresTarget(database).sink()
    with pytest.raises(ConfigurationError, match="at most 63 bytes"):
        one.validate(T.StructType([T.StructField("n" * 255, T.StringType())]))
    with pytest.raises(ConfigurationError, match="at most 63 bytes"):
        PostgresTarget(database, "n" * 64).sink()
    assert database.column("SELECT relname FROM pg_class WHERE relname LIKE 'nnn%'") == []
