"""`postgres_2pc`: columns under other names, and columns that are added to the table."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext import failpoints
from spark_ext.errors import ConfigurationError, DataError
from spark_ext.options import new_names
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.postgres_2pc.sink import PostgresTwoPhaseCommit
from spark_ext.sinks.postgres_2pc.table import lacking, renamed
from spark_ext.sinks.postgres_2pc.types import Column
from spark_ext.testing.sink_driver import Driver, numbered
from tests.servers.postgres import Database
from tests.sinks.postgres_2pc.postgres_kit import WAYS, PostgresTarget

WIDE = "id bigint, name string, at timestamp, tags array<string>, more struct<a:int>"
ADD = {"schema_evolution": "add_columns"}


def driver(database: Database, ddl: str = "id bigint, name string", incarnation: int = 1, **options: str) -> Driver:
    return Driver(PostgresTarget(database, **options), incarnation, schema=columns(ddl))


read = new_names("name in rows=name in table")


@given(st.dictionaries(st.text(min_size=1), st.text(min_size=1), max_size=4))
def test_a_mapping_as_json_is_what_was_written(names: dict[str, str]) -> None:
    if len(set(names.values())) == len(names):
        assert read(json.dumps(names)) == names
    else:
        with pytest.raises(ValueError, match="new name of two columns"):
            read(json.dumps(names))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "is not of the form"),
        ("a=", "is not of the form"),
        ("a=b=c", "is not of the form"),
        ("a=x, b=x", "'x' is the new name of two columns"),
        ("a=x, a=y", "'a' is renamed twice"),
        ('{"a": "x", "a": "y"}', "'a' is renamed twice"),
        ('{"a": 1}', "is not of the form"),
        ('{"a"', "not a JSON object of names"),
    ],
)
def test_a_mapping_that_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'column_map'.*{said}"):
        PostgresTwoPhaseCommit({"uid": "out", "table": "out", "column_map": text})


def test_names_are_taken_as_they_are() -> None:
    assert read(" a = x,b=Y ,") == {"a": "x", "b": "Y"}
    assert renamed(columns("a int, b int"), {"a": "b", "b": "a"}, "x").names == ["b", "a"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere=x", "renames a column 'nowhere' that the query does not have; it has: id, name"),
        ("id=name", "two columns"),
    ],
)
def test_a_mapping_that_does_not_fit_the_rows_is_refused(database: Database, given: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        driver(database, column_map=given).claim()
    assert database.column("SELECT to_regclass('out') IS NULL") == [True]


@pytest.mark.parametrize(
    "way", [{}, {"inline_size": "1m"}, {"prepared": "true"}, {"mode": "upsert", "key": "Key"}], ids=str
)
def test_rows_are_written_under_other_names(database: Database, way: dict[str, Any]) -> None:
    database.run('CREATE TABLE out ("Key" bigint PRIMARY KEY, name text, "id" int DEFAULT 7)')
    one = driver(database, column_map="id=Key", **way).claim()
    one.run(0, numbered(0, 3), partitions=2)
    found = database.rows('SELECT "Key", name, id FROM out ORDER BY 1')
    assert [(row[0], row[2]) for row in found] == [(0, 7), (1, 7), (2, 7)]
    database.run('ALTER TABLE out ADD CHECK ("Key" < 100)')
    with pytest.raises(DataError):
        one.run(1, numbered(100, 101))


def test_a_new_table_has_the_new_names(database: Database) -> None:
    one = driver(database, column_map='{"name": "a, b"}', mode="upsert", key="id", newest_by="a, b").claim()
    one.run(0, numbered(0, 3))
    assert len(database.column('SELECT "a, b" FROM out')) == 3


def test_columns_are_refused_unless_they_are_to_be_added(database: Database) -> None:
    driver(database).claim()
    with pytest.raises(ConfigurationError, match="the table has no column 'at'"):
        driver(database, WIDE, 2).claim()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_start_adds_the_columns_that_the_table_lacks(database: Database, way: dict[str, Any]) -> None:
    driver(database, **way).claim().run(0, numbered(0, 2))
    one = driver(database, WIDE, 2, **ADD, **way).claim()
    kinds = database.rows(
        "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute "
        "WHERE attrelid = 'out'::regclass AND attnum > 2 ORDER BY attnum"
    )
    assert [tuple(row) for row in kinds] == [
        ("at", "timestamp with time zone", False),
        ("tags", "text[]", False),
        ("more", "jsonb", False),
    ]
    one.run(1, [{"id": 5, "name": "n", "at": None, "tags": ["a"], "more": {"a": 1}}])
    found = database.rows("SELECT id, tags, more FROM out ORDER BY id")
    assert [tuple(row) for row in found] == [(0, None, None), (1, None, None), (5, ["a"], {"a": 1})]
    # With fewer columns again: the others are null.
    driver(database, "id bigint, tags array<string>", 3, **ADD, **way).claim().run(2, [{"id": 6, "tags": None}])
    assert database.column("SELECT id FROM out WHERE name IS NULL") == [6]


@pytest.mark.parametrize("point", ["postgres.cleaned", "postgres.ready"])
def test_an_interrupted_start_is_repeated(database: Database, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """With a prepared transaction of the older start, which holds a lock on the table until it is cleaned up."""
    driver(database, prepared="true").claim().write(0, numbered(0, 2))
    with monkeypatch.context() as during:
        during.setenv(failpoints.VARIABLE, f"{point}=raise")
        with pytest.raises(Exception, match=r".*"):
            driver(database, WIDE, 2, **ADD).claim()
    one = driver(database, WIDE, 3, lock_timeout="2000", **ADD).claim()
    one.run(0, [{"id": 5, "name": "n", "at": None, "tags": None, "more": None}])
    assert one.target.ids() == [5]


def test_outside_a_job_the_first_epoch_adds_them(database: Database) -> None:
    database.run("CREATE TABLE out (id bigint, name text)")
    driver(database, WIDE, 0, **ADD).run(0, [{"id": 5, "name": "n", "at": None, "tags": ["a"], "more": None}])
    assert database.column("SELECT tags FROM out") == [["a"]]


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("id bigint, Name string", "'Name' cannot be added.*a column 'name', which differs only in case"),
        ("id bigint, ctid string", "'ctid' cannot be added.*a column of its own"),
        (f"id bigint, {'n' * 64} int", "cannot be added.*at most 63 bytes"),
        ("id string, new int", "column 'id' has the type bigint in the table, and string in the query"),
    ],
)
def test_columns_that_cannot_be_added_are_refused_and_nothing_is(database: Database, ddl: str, said: str) -> None:
    driver(database).claim()
    with pytest.raises(ConfigurationError, match=said):
        driver(database, ddl, 2, **ADD).claim()
    assert database.column(
        "SELECT count(*)::int FROM pg_attribute WHERE attrelid = 'out'::regclass AND attnum > 0"
    ) == [2]
    driver(database, incarnation=1).run(0, numbered(0, 1))


def test_only_missing_columns_are_lacking() -> None:
    there = [Column("id", "int8", "bigint"), Column("x", "text", "text")]
    assert [one.name for one in lacking(columns("id bigint, y int"), there, "x")] == ["y"]


def test_another_value_of_the_option_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'schema_evolution'"):
        PostgresTwoPhaseCommit({"uid": "out", "table": "out", "schema_evolution": "widen"})
