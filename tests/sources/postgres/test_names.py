"""The source `postgres`: columns with the names of our SQL's aliases, names in quotes, and unusual types of keys."""

import re
from typing import Any

import pytest

from spark_ext.errors import ConfigurationError, ReplayError
from spark_ext.schemas.ddl import columns
from tests.servers.postgres import Database
from tests.sources.postgres.postgres_runs import ids, rows, run, to_end_with_replays, to_rest

ALIASES = (
    *"tukbrnxvlp",
    *("k0", "bounds", "value", "number", "count", "found", "name", "größe", "_spark_ext_hash", "_spark_ext_no_list"),
)
"""Names that our SQL has for tables and columns."""


@pytest.mark.parametrize("what", ["view", "query"])
def test_a_row_without_a_transaction_is_known_by_all_its_columns(table: Database, what: str) -> None:
    """Also if one of them has the name of our alias; and if it is null."""
    table.run("CREATE VIEW v AS SELECT id, word, CASE WHEN id < 5 THEN 'same' END AS t FROM t")
    more: dict[str, Any] = {"table": "v"} if what == "view" else {"query": "SELECT * FROM v"}
    found = run(table, key="id", **more)
    assert found.epoch()
    assert ids(found) == list(range(1, 21))
    table.run("UPDATE t SET word = 'changed' WHERE id = 3")
    with pytest.raises(ReplayError, match="some of them changed"):
        found.replay()


@pytest.mark.parametrize("alias", ["t", "k0", 'q"uote, %s', "n" * 63])
def test_columns_may_have_the_names_of_aliases(database: Database, alias: str) -> None:
    """All at once; one of them as key, alone and beside another one, and as the increasing column, with replays."""
    name = '"' + alias.replace('"', '""') + '"'
    others = ", ".join(f'"{other}" text' for other in ALIASES if other != alias)
    database.run(
        f"CREATE TABLE t ({name} int PRIMARY KEY, id int NOT NULL, list int[] DEFAULT '{{1}}', {others}, "
        f"UNIQUE (id, {name}))",
        f"INSERT INTO t ({name}, id) SELECT n, n / 2 FROM generate_series(1, 30) n",
        "ANALYZE t",
    )
    ways: tuple[dict[str, Any], ...] = (
        {"key": name}, {"key": f"id, {name}"}, {"incremental": "column", "incremental_column": name},
        {"incremental": "column", "incremental_column": "id", "key": name}, {"incremental": "xmin"},
    )  # fmt: skip
    for way in ways:
        found = run(database, limit=7, rows_per_channel="10", on_bad_row="quarantine", **way)
        to_end_with_replays(found)
        assert sorted(row[alias] for row in rows(found)) == list(range(1, 31)), way


def test_a_bad_array_beside_a_column_with_the_name_of_ours(database: Database) -> None:
    """The reader knows its own column by its place."""
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, a int[], \"_spark_ext_no_list\" text DEFAULT 'x')",
        "INSERT INTO t VALUES (1, '{1}'), (2, '{{1,2}}'), (3, NULL)",
    )
    found = run(database, on_bad_row="quarantine")
    to_rest(found)
    assert ids(found) == [1, 3]


def test_names_may_be_in_quotes(database: Database) -> None:
    """As those of tables; a name that is there as it stands is taken as it is."""
    database.run(
        'CREATE SCHEMA "My Schema"',
        'CREATE TABLE "My Schema"."T, ""1" ("Order, no" int, "Day" int, word text, PRIMARY KEY ("Day", "Order, no"))',
        """INSERT INTO "My Schema"."T, ""1" SELECT n, n / 4, 'w' FROM generate_series(1, 20) n""",
    )
    name = '"My Schema"."T, ""1"'
    given: dict[str, Any] = {"table": name, "key": '"Day" , "Order, no"', "columns": '"Order, no", word'}
    found = run(database, incremental="column", incremental_column='"Day"', **given)
    to_rest(found)
    assert sorted(row["Order, no"] for row in rows(found)) == list(range(1, 21))
    assert found.trace.all_rows().column_names == ["Order, no", "word"]
    with pytest.raises(ConfigurationError, match="key column 'order' does not exist"):
        run(database, table=name, key='"order"').epoch()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ('"char"', [chr(97 + n) for n in range(9)]),
        ("mood", ["sad", "ok", "happy"]),
        ('shop."Big mood"', ["z", "a", "m"]),
    ],
)
@pytest.mark.parametrize("analyzed", [True, False])
def test_keys_of_few_values(database: Database, kind: str, values: list[str], analyzed: bool) -> None:
    """An enumeration has the order of its declaration. Alone, and as the first of two columns."""
    database.run(
        "CREATE SCHEMA shop",
        "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')",
        "CREATE TYPE shop.\"Big mood\" AS ENUM ('z', 'a', 'm')",
        f"CREATE TABLE t (kind {kind} PRIMARY KEY)",
        f"CREATE TABLE two (kind {kind}, id int, PRIMARY KEY (kind, id))",
    )
    for value in values:
        database.run(
            f"INSERT INTO t VALUES ('{value}')", f"INSERT INTO two SELECT '{value}', n FROM generate_series(1, 9) n"
        )
    if analyzed:
        database.run("ANALYZE")
    found = run(database, limit=1, rows_per_channel="2", schema=columns("kind string"))
    to_end_with_replays(found)
    assert found.offset.ended
    assert sorted(row["kind"] for row in rows(found)) == sorted(values)
    both = run(database, limit=4, rows_per_channel="6", table="two", incremental="xmin")
    to_end_with_replays(both)
    read = sorted((row["kind"], row["id"]) for row in both.trace.all_rows().to_pylist())
    assert read == sorted((value, n) for value in values for n in range(1, 10))


def test_a_key_without_ranges_is_refused_with_a_way_out(database: Database) -> None:
    database.run("CREATE TABLE t (id int[] PRIMARY KEY)", "INSERT INTO t VALUES ('{1}'), ('{2}')")
    with pytest.raises(ConfigurationError, match="column 'id' is an array") as refused:
        run(database).epoch()
    assert re.search("query that casts", refused.value.do)
    found = run(database, query="SELECT id::text AS id FROM t", key="id")
    to_rest(found)
    assert sorted(row["id"] for row in rows(found)) == ["{1}", "{2}"]
