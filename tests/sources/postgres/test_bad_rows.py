"""The source `postgres` with `on_bad_row=quarantine`: values that Spark does not have."""

from __future__ import annotations

import json

import pytest

from spark_ext.schemas.ddl import columns
from tests.servers.postgres import Database
from tests.sources.postgres.postgres_runs import ids, run, table, to_end_with_replays

__all__ = ["table"]  # a fixture


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("timestamptz", "'infinity'", "column 'x' contains infinity"),
        ("date", "'-infinity'", "column 'x' contains infinity"),
        ("numeric", "1e25", "column 'x' has a value that is not a decimal128"),
        ("int[]", "'{{1,2},{3,4}}'", "column 'x' contains an array of several dimensions"),
    ],
)
def test_rows_with_a_value_that_spark_has_not_are_collected(
    table: Database, column: str, value: str, reason: str
) -> None:
    table.run(f"ALTER TABLE t ADD x {column}", f"UPDATE t SET x = {value} WHERE id IN (3, 9)", "ANALYZE t")
    found = run(table, limit=7, on_bad_row="quarantine")
    to_end_with_replays(found)
    assert ids(found) == [id for id in range(1, 21) if id not in (3, 9)]
    bad = [row for rows in found.trace.bad_rows.values() for row in rows]
    assert [json.loads(str(row.raw))["id"] for row in bad] == [3, 9]
    assert all(reason in row.reason and row.position.keys() == {"row", "hash"} for row in bad)
    assert len({row.position["hash"] for row in bad}) == 2


def test_declared_decimals_that_are_too_small(table: Database) -> None:
    found = run(table, schema=columns("id decimal(1,0), word string"), on_bad_row="quarantine")
    to_end_with_replays(found)
    assert ids(found) == list(range(1, 10))
    bad = [row for rows in found.trace.bad_rows.values() for row in rows]
    assert [json.loads(str(row.raw)) for row in bad] == [{"id": str(n), "word": f"w{n}"} for n in range(10, 21)]
