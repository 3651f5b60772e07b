"""The source `postgres`: keys of several columns, in the order in which rows are compared."""

import json
from typing import Any

import pytest

from spark_ext.errors import ConfigurationError, DataError, ReplayError
from spark_ext.sources.contract import Channel
from spark_ext.sources.postgres.key import Key
from spark_ext.sources.postgres.ranges import cut
from spark_ext.sources.postgres.source import Postgres
from tests.servers.postgres import Database
from tests.sources.postgres.postgres_runs import options, run, the_table, to_rest, view_of


@pytest.fixture
def table(database: Database) -> Database:
    database.run(
        "CREATE TABLE t (a int, b text, word text, PRIMARY KEY (a, b))",
        "INSERT INTO t SELECT n / 4, 'b' || n % 4, 'w' || n FROM generate_series(0, 19) n",
        "ANALYZE t",
    )
    return database


def test_positions_are_lists_and_can_be_given(table: Database) -> None:
    found = run(table, limit=3)
    assert found.epoch()
    (name,) = found.offset.running
    assert json.loads(name)[0] == ["a", "b"]
    assert found.offset.running[name].at["upto"] == ["0", "b3"]
    assert found.seek(name, [4, "b2"]) == {"upto": ["4", "b2"]}
    assert found.seek(name, {"upto": ["4", "b2"]}) == {"upto": ["4", "b2"]}
    for wrong in ("4", ["4"], ["4", "b", "c"], ["x", "b"], [None, "b"], [True, "b"], ["9", "b"], [["4"], "b"], 4):
        with pytest.raises(ConfigurationError, match=r"a list of values of 'a, b' up to \(4, b3\)"):
            found.seek(name, wrong)
    to_rest(found)
    assert [row["word"] for row in found.trace.rows(name).to_pylist()] == ["w0", "w1", "w2", "w18", "w19"]


@pytest.mark.parametrize("way", [{}, {"incremental": "xmin"}], ids=["bounded", "xmin"])
@pytest.mark.parametrize(("first", "key"), [("a,b", "b,a"), ("a,b", "id"), ("a,b", "a,b,id"), ("id", "a,b")])
def test_another_key_in_a_later_run_is_refused(table: Database, way: dict[str, Any], first: str, key: str) -> None:
    """With increments as well: the ranges that were planned are of the other key."""
    table.run("ALTER TABLE t ADD id int GENERATED ALWAYS AS IDENTITY UNIQUE")
    found = run(table, limit=3, key=first, **way)
    assert found.epoch()
    other = Postgres(options(table, **way, key=key))
    other.resume([Channel(name, None, state.data) for name, state in found.offset.running.items()], frozenset())
    former, now = (one.replace(",", ", ") for one in (first, key))
    with pytest.raises(ConfigurationError, match=f"divided by '{former}' so far, but the key is now '{now}'"):
        other.discover()


def test_a_changed_order_of_a_part_of_the_key_is_refused(table: Database) -> None:
    found = run(table, limit=3)
    assert found.epoch()
    found.source._view.lost()  # type: ignore[attr-defined]
    table.run('ALTER TABLE t ALTER b TYPE text COLLATE "C"')
    found.restart()
    with pytest.raises(ReplayError, match="key 'a, b'"):
        to_rest(found)


def test_a_null_in_a_part_of_a_querys_key_is_refused(table: Database) -> None:
    with pytest.raises(DataError, match="key 'a, b' is null"):
        run(table, query="SELECT a, nullif(b, 'b3') AS b FROM t", key="a, b").epoch()


def test_the_primary_key_is_default_unless_a_column_is_unique(table: Database) -> None:
    def key_of(**given: str) -> Key:
        made = Postgres(options(table, **given))
        made.schema()
        return made._relation.key

    assert key_of() == Key(("a", "b"), ('pg_catalog."int4"', 'pg_catalog."text"'), ("int4", "text"))
    table.run("ALTER TABLE t ADD id int GENERATED ALWAYS AS IDENTITY UNIQUE")
    assert key_of().columns == ("id",)
    assert key_of(key="b, a").columns == ("b", "a")
    assert key_of(key="a,b,id").columns == ("a", "b", "id")


def test_statistics_of_the_first_column_give_whole_keys(database: Database) -> None:
    """Without frequent values; with them the rows are counted."""
    database.run(
        "CREATE TABLE t (a int, b int, PRIMARY KEY (a, b))",
        "INSERT INTO t SELECT n, 1 FROM generate_series(1, 3000) n",
        "ANALYZE t",
    )
    view = view_of(database)
    for wide in (300, 20):
        relation = the_table(view.connection, "t")
        ranges = cut(view.connection, relation, wide)
        assert 3000 / wide <= len(ranges) <= 3 * 3000 / wide
        assert all(isinstance(one.high, tuple) and len(one.high) == 2 for one in ranges)
    view.release()
    database.run("UPDATE t SET b = a + 10, a = 7 WHERE a > 100", "ANALYZE t")
    relation = the_table(view.connection, "t")
    assert 9 <= len(cut(view.connection, relation, 300)) <= 12
    view.lost()
