"""`postgres_2pc` and input that does not fit: each refusal says what, where, what was kept and what to do."""

import pytest
from pyspark.sql import types as T

from spark_ext.clients import library
from spark_ext.clients.postgres import connection as pg_connection
from spark_ext.errors import (
    CommitError,
    ConfigurationError,
    DataError,
    EnvironmentProblem,
    SparkExtError,
    StorageError,
    TerminalError,
)
from spark_ext.sinks.postgres_2pc.sink import PostgresTwoPhaseCommit
from spark_ext.testing.sink_driver import NUMBERS, Driver
from tests.servers.postgres import PASSWORD, Database, running
from tests.sinks.postgres_2pc.postgres_kit import WAYS, PostgresTarget, driver


def refused(options: dict[str, str], kind: type[SparkExtError], match: str) -> SparkExtError:
    sink = PostgresTwoPhaseCommit({"uid": "out", "table": "t", **options})
    with pytest.raises(kind, match=match) as found:
        sink.validate(NUMBERS)
    assert PASSWORD not in str(found.value) and PASSWORD not in repr(sink.options)
    return found.value


@pytest.mark.parametrize(
    ("changed", "kind", "match"),
    [
        ({"dbname": "nowhere"}, ConfigurationError, "database .nowhere. does not exist"),
        ({"user": "nobody"}, ConfigurationError, "authentication failed"),
        ({"password": "w" + PASSWORD}, ConfigurationError, "password authentication failed"),
        ({"port": "1"}, StorageError, "is unavailable"),
    ],
)
def test_a_wrong_name(database: Database, changed: dict[str, str], kind: type[SparkExtError], match: str) -> None:
    given = {**database.options, **changed}
    assert f"127.0.0.1:{given['port']}/{given['dbname']}" in refused(given, kind, match).operator


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://u:{PASSWORD}@h:port/x",
        f"host=h password={PASSWORD} 'oops",
        # With an @ or a / in a password that is not encoded, its end is read as the host or the database.
        f"postgresql://u:p@{PASSWORD}@h/x",
        f"postgresql://u:12/{PASSWORD}@h/x",
        f"postgres://u:p/{PASSWORD}@h/x",
        f"postgresql://u:%zz{PASSWORD}@h/x",
        f"postgresql://h/x?user=u&password={PASSWORD}&bogus=1",
        f"jdbc:postgresql://h/x?user=u&password={PASSWORD}",
    ],
)
def test_a_dsn_that_is_none_is_not_shown(dsn: str) -> None:
    refused({"dsn": dsn}, ConfigurationError, "not a connection string")


@pytest.mark.parametrize("host", ["/tmp/sockets", "@abstract", "one,two", "[::1]"])
def test_hosts_of_any_form_are_taken(host: str) -> None:
    settings = {"dsn": "postgresql:///x", "host": host, "dbname": "a@b"}
    given = PostgresTwoPhaseCommit({"uid": "out", "table": "t", **settings}).options
    assert pg_connection.Server.of(given, "").name == f"{host}:5432/a@b"


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(EnvironmentProblem, match="not installed") as found:
        library.load("psycopg", "postgres", "sink 'out'")
    assert "pip install 'spark-ext[postgres]'" in found.value.do


def test_options_that_exclude_each_other(database: Database) -> None:
    for options, match in [
        ({"mode": "upsert"}, "needs the option 'key'"),
        ({"key": "id"}, "require mode=upsert"),
        ({"mode": "upsert", "key": "id", "prepared": "true"}, "COPY cannot replace rows"),
        ({"table": "a.b.c"}, "not a table's name"),
        ({"tabel": "t"}, "did you mean 'table'"),
    ]:
        with pytest.raises(ConfigurationError, match=match):
            PostgresTwoPhaseCommit({"uid": "out", "table": "t", **options})


def test_a_server_without_prepared_transactions() -> None:
    """A server of its own, because the setting needs a restart."""
    with running({"max_prepared_transactions": "0"}) as server:
        database = server.database()
        with pytest.raises(ConfigurationError, match="max_prepared_transactions = 0") as found:
            driver(database, prepared="true").claim()
        assert "postgresql.conf" in found.value.do
        driver(database).claim()


@pytest.mark.parametrize(
    ("table", "match"),
    [
        (None, "table 'out' does not exist"),
        ("CREATE TABLE out (id bigint)", "no column 'name'; it has: id"),
        ("CREATE TABLE out (id integer, name text)", "'id' has the type integer in the table, and bigint in the query"),
        ("CREATE TABLE out (id bigint, name numeric)", "'name' has the type numeric in the table, and string"),
        ("CREATE TABLE out (id bigint, name text, at date NOT NULL)", "'at' may not be null in the table"),
        ("CREATE TABLE out (id bigint GENERATED ALWAYS AS (1) STORED, name text)", "'id' is GENERATED ALWAYS"),
        ("CREATE VIEW out AS SELECT 1::bigint AS id, 'x' AS name", "is not a table"),
    ],
)
def test_a_table_that_does_not_take_the_rows(database: Database, table: str | None, match: str) -> None:
    if table:
        database.run(table)
    with pytest.raises(ConfigurationError, match=match):
        driver(database, create_table="false").claim()


@pytest.mark.parametrize(
    "index", ["", "UNIQUE INDEX ON out (id) WHERE id > 0", "UNIQUE INDEX ON out (id, name)", "INDEX ON out (id)"]
)
def test_an_upsert_without_a_unique_index_on_its_key(database: Database, index: str) -> None:
    database.run("CREATE TABLE out (id bigint, name text)", *([f"CREATE {index}"] if index else []))
    with pytest.raises(ConfigurationError, match=r"no unique index on exactly \(id\)") as found:
        driver(database, mode="upsert", key="id").claim()
    database.run(found.value.do.partition(",")[0])
    driver(database, mode="upsert", key="id").claim()


def test_a_key_that_the_query_has_not(database: Database) -> None:
    with pytest.raises(ConfigurationError, match="column 'nr' that the query does not have"):
        driver(database, mode="upsert", key="nr").claim()


def test_a_role_without_rights(database: Database) -> None:
    database.run("CREATE TABLE out (id bigint, name text)")
    with database.server.admin(database.name) as admin:
        admin.execute("ALTER TABLE out OWNER TO postgres")
    one = driver(database).claim()
    with pytest.raises(ConfigurationError, match="permission denied for table out"):
        one.run(0, [{"id": 1, "name": "n"}])


BAD_ROWS = [
    ("CREATE TABLE out (id bigint, name varchar(3))", "abcdef", "value too long for type character varying"),
    ("CREATE TABLE out (id bigint, name uuid)", "not-a-uuid", "it is not a UUID"),
    ("CREATE TABLE out (id bigint, name json)", "{no json", "invalid input syntax for type json"),
    ("CREATE TABLE out (id bigint, name text)", "nul\0", "invalid byte sequence"),
    ("CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE out (id bigint, name mood)", "sad", "invalid input value for enum"),
]


@pytest.mark.parametrize("way", ["staged", "prepared", "inline"])
@pytest.mark.parametrize(("table", "value", "match"), BAD_ROWS, ids=[row[2] for row in BAD_ROWS])
def test_a_value_that_does_not_fit_is_named(database: Database, way: str, table: str, value: str, match: str) -> None:
    good = {"uuid": "0189f7e5-9a3c-7000-8000-000000000000", "json": "{}", "mood": "ok"}
    fine = next((text for name, text in good.items() if f"name {name}" in table), "abc")
    database.run(*table.split("; "))
    rows = [{"id": n, "name": value if n == 1500 else fine} for n in range(3000)]
    for redact in (False, True):
        one = driver(database, **WAYS[way], redact=str(redact).lower()).claim()
        with pytest.raises(DataError, match=match) as found:
            one.run(0, rows)
        assert "row 1501" in found.value.what
        assert (repr(value) in found.value.what) is not redact
        assert "'out'" in found.value.operator and "epoch 0" in found.value.operator
        assert isinstance(found.value, TerminalError), "not retried"
        if redact:
            assert value not in str(found.value)
    assert one.target.rows() == []
    assert one.target.leftovers() == set(), "a task that failed leaves nothing"


@pytest.mark.parametrize("way", ["staged", "prepared", "inline"])
def test_a_violated_constraint_fails_the_epoch_whole(database: Database, way: str) -> None:
    database.run("CREATE TABLE out (id bigint PRIMARY KEY, name text CHECK (name <> 'bad'))")
    one = driver(database, **WAYS[way]).claim()
    one.run(0, [{"id": 1, "name": "a"}])
    with pytest.raises(DataError, match=r"duplicate key value .*Key \(id\)=\(1\)|row 2.*duplicate key"):
        one.run(1, [{"id": 2, "name": "b"}, {"id": 1, "name": "again"}])
    with pytest.raises(DataError, match="violates check constraint"):
        one.run(1, [{"id": 3, "name": "bad"}])
    redacted = driver(database, **WAYS[way], redact="true")
    with pytest.raises(DataError) as found:
        redacted.run(1, [{"id": 77_777, "name": "bad"}])
    assert "77777" not in str(found.value)
    assert one.target.ids() == [1]
    one.run(1, [{"id": 2, "name": "b"}])
    assert one.target.ids() == [1, 2]


def test_two_rows_of_one_key_in_an_epoch_are_refused(database: Database) -> None:
    one = driver(database, mode="upsert", key="id").claim()
    with pytest.raises(DataError, match="cannot affect row a second time"):
        one.run(0, [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}], partitions=2)
    assert one.target.rows() == []


def test_a_disk_that_is_full_is_transient(database: Database) -> None:
    """A real one: a tablespace on a file system of two megabytes, which needs root to be mounted."""
    with database.server.small_tablespace("2m") as space:
        try:
            database.run(f"CREATE TABLE out (id bigint, name text) TABLESPACE {space}")
            one = driver(database, commit_attempts="2", commit_backoff="1").claim()
            one.run(0, [{"id": 0, "name": "a"}])
            big = [{"id": n, "name": "x" * 100} for n in range(30_000)]
            with pytest.raises(CommitError, match=r"[Nn]o space left|could not extend"):
                one.run(1, big)
            assert one.attempts == 3, "it was tried again"
            assert one.target.ids() == [0]
            database.run("ALTER TABLE out SET TABLESPACE pg_default")
            one.run(1, big[:10])
            assert one.target.ids() == [0, *range(10)]
        finally:
            database.run("DROP TABLE out")


def test_odd_names_are_names_as_any_other(database: Database) -> None:
    schema = T.StructType([T.StructField("Order Id", T.LongType()), T.StructField('a"b', T.StringType())])
    Driver(PostgresTarget(database, table='"Odd Name"'), schema=schema).claim().run(0, [{"Order Id": 1, 'a"b': "x"}])
    assert database.rows('SELECT "Order Id", "a""b" FROM "Odd Name"') == [(1, "x")]
