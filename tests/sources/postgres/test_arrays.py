"""The source `postgres`: arrays of PostgreSQL that are not lists."""

from __future__ import annotations

import pytest

from spark_ext.errors import DataError
from spark_ext.schemas.ddl import columns
from tests.servers.postgres import Database
from tests.sources.postgres.postgres_runs import run, table, to_rest

__all__ = ["table"]  # a fixture


@pytest.mark.parametrize("value", ["{{1,2},{3,4}}", "[5:6]={1,2}", "[0:1]={1,2}", "{{{1}}}"])
@pytest.mark.parametrize("kind", ["int[]", "text[]"])
def test_an_array_that_is_not_a_list_is_refused_by_its_column(table: Database, value: str, kind: str) -> None:
    table.run(f"ALTER TABLE t ADD fine {kind}, ADD a {kind}", "UPDATE t SET fine = '{3,null}', a = '{}' WHERE id < 9")
    table.run(f"UPDATE t SET a = '{value}' WHERE id = 17")
    with pytest.raises(DataError, match="column 'a' contains an array of several dimensions, or one whose first index"):
        to_rest(run(table))
    found = run(table, schema=columns("id bigint, a string"))
    to_rest(found)
    assert {row["a"] for row in found.trace.all_rows().to_pylist()} == {None, "{}", value}


def test_lists_are_read_beside_nulls_and_empty_ones(table: Database) -> None:
    """What is a list stays one."""
    table.run("ALTER TABLE t ADD a int[], ADD b text[]", "UPDATE t SET a = '{1,null}', b = '{}' WHERE id = 2")
    found = run(table)
    to_rest(found)
    rows = {row["id"]: (row["a"], row["b"]) for row in found.trace.all_rows().to_pylist()}
    assert rows[2] == ([1, None], []) and rows[3] == (None, None) and len(rows) == 20
