"""`postgres_2pc` and what a table may have of its own: policies, rules, identities, partitions, keys with nulls."""

from typing import Any

import psycopg
import pyarrow as pa
import pytest

from spark_ext.errors import ConfigurationError, DataError, PreparedLostError
from spark_ext.schemas.ddl import columns
from spark_ext.testing.sink_driver import Driver, numbered
from tests.servers.postgres import Database
from tests.sinks.postgres_2pc.postgres_kit import WAYS, PostgresTarget, driver, written

POLICY = (
    "CREATE TABLE out (id bigint, name text)",
    "ALTER TABLE out ENABLE ROW LEVEL SECURITY",
    "ALTER TABLE out FORCE ROW LEVEL SECURITY",
    "CREATE POLICY p ON out USING (true) WITH CHECK (id < 100)",
)
RULE = (
    "CREATE TABLE out (id bigint, name text)",
    "CREATE TABLE log (id bigint)",
    "CREATE RULE r AS ON INSERT TO out DO ALSO INSERT INTO log VALUES (NEW.id)",
)


@pytest.mark.parametrize("way", ["staged", "inline"])
def test_row_level_security_holds_whichever_way_rows_take(database: Database, way: str) -> None:
    """COPY refuses it: a small epoch would fail where a large one passes."""
    database.run(*POLICY)
    one = driver(database, **WAYS[way]).claim()
    one.run(0, numbered(0, 5), partitions=2)
    assert one.target.ids() == list(range(5))
    with pytest.raises(ConfigurationError, match="violates row-level security policy"):
        one.run(1, numbered(98, 101))
    assert one.target.ids() == list(range(5))


@pytest.mark.parametrize("way", ["staged", "inline"])
def test_a_rule_is_heeded_whichever_way_rows_take(database: Database, way: str) -> None:
    database.run(*RULE)
    one = driver(database, **WAYS[way]).claim()
    one.run(0, numbered(0, 5))
    assert one.target.ids() == sorted(database.column("SELECT id FROM log")) == list(range(5))


@pytest.mark.parametrize(("made", "said"), [(POLICY, "row-level security"), (RULE, "a rule on INSERT")])
def test_prepared_refuses_what_copy_does_not_heed(database: Database, made: tuple[str, ...], said: str) -> None:
    database.run(*made)
    with pytest.raises(ConfigurationError, match=said):
        driver(database, prepared="true").claim()


def test_lost_staged_rows_are_noticed_beside_inline_ones(database: Database) -> None:
    """As many rows inline as are lost: a count of all inserted rows would see nothing."""
    database.run(*POLICY)
    one = driver(database).claim()
    staged = one.write(0, numbered(0, 5))
    one.options = {"inline_size": "1m"}
    inline = one.write(0, numbered(5, 10), partition=1)
    (name,) = one.target.leftovers()
    database.run(f"TRUNCATE spark_ext.{name}")
    with pytest.raises(PreparedLostError, match="has 0 of 5 rows"):
        one.commit([staged, inline], 0)


@pytest.mark.parametrize("way", WAYS)
def test_values_for_a_generated_always_identity_are_refused(database: Database, way: str) -> None:
    """COPY would take them and INSERT refuse them: in any way before the query starts."""
    database.run("CREATE TABLE out (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text)")
    with pytest.raises(ConfigurationError, match="column 'id' is GENERATED ALWAYS"):
        driver(database, **WAYS[way]).claim()
    given: dict[str, Any] = {"name": "a"}
    if way != "upsert":
        one = Driver(PostgresTarget(database, **WAYS[way]), schema=columns("name string")).claim()
        one.run(0, [given, given])
        assert one.target.ids() == [1, 2]


@pytest.mark.parametrize("way", WAYS)
def test_a_partitioned_table_takes_rows_in_each_way(database: Database, way: str) -> None:
    database.run(
        "CREATE TABLE out (id bigint PRIMARY KEY, name text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF out FOR VALUES FROM (0) TO (3)",
        "CREATE TABLE high PARTITION OF out FOR VALUES FROM (3) TO (10)",
    )
    one = driver(database, **WAYS[way]).claim()
    one.run(0, numbered(0, 5), partitions=2)
    assert one.target.ids() == list(range(5))
    with pytest.raises(DataError, match=r'no partition of relation "out" found'):
        one.run(1, numbered(9, 11))
    assert one.target.ids() == list(range(5))


@pytest.mark.parametrize("inline", ["0", "1m"])
@pytest.mark.parametrize("latest", [{}, {"newest_by": "name"}])
def test_a_null_in_an_upserts_key_is_refused(database: Database, inline: str, latest: dict[str, str]) -> None:
    """No two nulls are equal: such rows would be added again by each epoch, and joined into one within an epoch."""
    database.run("CREATE TABLE out (id bigint, name text)", "CREATE UNIQUE INDEX ON out (id)")
    one = driver(database, mode="upsert", key="id", inline_size=inline, **latest).claim()
    rows = [*numbered(0, 2), {"id": None, "name": "a"}, {"id": None, "name": "b"}]
    with pytest.raises(DataError, match=r"row 3, column 'id', value .*'a'.*: the key of an upsert may not be null"):
        one.run(0, rows)
    assert one.target.rows() == []


@pytest.mark.parametrize("inline", ["0", "1m"])
def test_a_null_key_is_refused_in_a_row_that_cannot_be_shown(database: Database, inline: str) -> None:
    schema = columns("id bigint, t timestamp")
    database.run("CREATE TABLE out (id bigint PRIMARY KEY, t timestamptz)")
    sink = PostgresTarget(database, mode="upsert", key="id", inline_size=inline).sink()
    times = pa.array([253402300800000000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_arrays([pa.array([None], pa.int64()), times], ["id", "t"])
    with pytest.raises(DataError, match=r"row 1, column 'id'.*the key of an upsert may not be null"):
        written(sink, schema, batch)


@pytest.mark.parametrize(
    "setting", ["default_transaction_isolation='serializable'", "search_path=''", "row_security=on"]
)
@pytest.mark.parametrize("way", WAYS)
def test_settings_of_a_database_change_nothing(database: Database, way: str, setting: str) -> None:
    database.run(f"ALTER DATABASE {database.name} SET {setting}")
    one = Driver(PostgresTarget(database, "public.out", **WAYS[way])).claim()
    one.run(0, numbered(0, 5))
    assert one.target.ids() == list(range(5))


@pytest.mark.parametrize("inline", ["0", "1m"])
def test_a_time_that_json_has_no_text_for_is_named(database: Database, inline: str) -> None:
    schema = columns("id bigint, s struct<t: timestamp>")
    sink = PostgresTarget(database, inline_size=inline).sink()
    times = pa.array([0, None, 253402300800000000, 1], pa.int64()).cast(pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_arrays([pa.array(range(4)), pa.StructArray.from_arrays([times], ["t"])], ["id", "s"])
    with pytest.raises(DataError, match=r"row 3, column 's'.*outside the years 1 to 9999"):
        written(sink, schema, batch)


def test_a_table_whose_partition_a_crash_empties_is_refused(database: Database) -> None:
    database.run(
        "CREATE TABLE out (id bigint, name text) PARTITION BY RANGE (id)",
        "CREATE TABLE high PARTITION OF out FOR VALUES FROM (3) TO (10) PARTITION BY RANGE (id)",
        "CREATE UNLOGGED TABLE higher PARTITION OF high FOR VALUES FROM (3) TO (9)",
    )
    with pytest.raises(ConfigurationError, match="the partition 'higher' of the table 'out' is unlogged"):
        driver(database).claim()


def test_a_table_that_becomes_unlogged_later_is_refused(database: Database) -> None:
    one = driver(database).claim()
    one.run(0, numbered(0, 3))
    database.run("ALTER TABLE out SET UNLOGGED")
    with pytest.raises(ConfigurationError, match="the table 'out' is unlogged") as refused:
        one.run(1, numbered(3, 5))
    assert "SET LOGGED" in refused.value.do
    database.run("ALTER TABLE out SET LOGGED")
    one.run(1, numbered(3, 5))
    assert one.target.ids() == list(range(5))


def test_a_temporary_table_is_refused(database: Database) -> None:
    with pytest.raises(ConfigurationError, match=r"the table 'pg_temp\.out' is temporary"):
        driver(database, table="pg_temp.out", create_table="true").claim()


def test_another_connections_application_name_changes_nothing(database: Database) -> None:
    one = driver(database)
    name = f"spark_ext:{one.target.sink()._mark}:{'9' * 20}"  # type: ignore[attr-defined]
    with psycopg.connect(database.dsn, application_name=name) as other:
        one.claim()
        one.run(0, numbered(0, 3))
        assert other.execute("SHOW application_name").fetchone() == (name,)


DAY, TIME = pa.date32(), pa.timestamp("us", "UTC")
LEAST, MOST = -(2**63), 2**63 - 1
ENDS = "4714-11-24 00:00:00+00 BC", "294247-01-10 04:00:54.775807+00"
EDGES: dict[str, tuple[pa.DataType, int, int, tuple[str, str]]] = {
    "date": (DAY, -2_440_588, 2_145_042_905, ("4714-11-24 BC", "5874897-12-31")),
    "timestamptz": (TIME, -210_866_803_200_000_000, MOST, ENDS),
}


@pytest.mark.parametrize("kind", EDGES)
def test_the_first_and_the_last_times_of_the_server(database: Database, kind: str) -> None:
    arrow, first, last, texts = EDGES[kind]
    database.run(f"CREATE TABLE out (t {kind}, a {kind}[])")
    spark = "date" if kind == "date" else "timestamp"
    schema = columns(f"t {spark}, a array<{spark}>")
    sink = PostgresTarget(database, inline_size="1m").sink()

    def run(times: list[int | None], lists: list[list[int] | None], epoch: int) -> None:
        raw = pa.int32() if kind == "date" else pa.int64()
        plain = pa.array(times, raw).view(arrow)
        nested = pa.array(lists, pa.list_(raw))
        nested = pa.ListArray.from_arrays(nested.offsets, nested.values.view(arrow), mask=nested.is_null())
        written(sink, schema, pa.RecordBatch.from_arrays([plain, nested], ["t", "a"]), epoch)

    run([first, None, last], [[first, last], None, []], 0)
    assert database.column("SELECT t::text FROM out ORDER BY out.t") == [*texts, None]
    least, most = (-(2**31), 2**31 - 1) if kind == "date" else (LEAST, MOST)
    infinity = most - 10_957 if kind == "date" else MOST
    outside = [one for one in (first - 1, least, least + 10_957, infinity + 1, most) if one <= most]
    for number, wrong in enumerate(one for one in outside if not first <= one <= last):
        with pytest.raises(DataError, match=r"row 2, column 't'.*PostgreSQL has no date or time"):
            run([first, wrong], [None, None], number + 1)
        with pytest.raises(DataError, match=r"row 3, column 'a'.*PostgreSQL has no date or time"):
            run([0, 0, 0], [[first, last], None, [0, wrong]], number + 1)
    assert database.column("SELECT count(*) FROM out") == [3]
