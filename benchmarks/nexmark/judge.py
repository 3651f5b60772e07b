"""DuckDB's answer over the same events, and how a table differs from it, row by row as multisets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from benchmarks.nexmark.queries import Query

_STREAMS: Final = ("person", "auction", "bid", "side")


@dataclass(frozen=True)
class Difference:
    rows: int  # of the right answer
    lost: int  # rows of it that the table lacks
    doubled: int  # rows of it that the table has more often
    wrong: int  # rows that are not in it at all

    @property
    def none(self) -> bool:
        return self.lost == self.doubled == self.wrong == 0


def judge(query: Query, events: Path, table: Path) -> Difference:
    """How a Delta table, or a folder of Parquet files, differs from the answer; what was never created has no rows.

    Raises:
        ValueError: the table has other columns, or columns of other types.
    """
    with duckdb.connect() as db:
        answer = answer_of(db, query, events)
        found = _rows(table)
        return difference(db, answer, answer.slice(0, 0) if found is None else found)


def answer_of(db: duckdb.DuckDBPyConnection, query: Query, events: Path) -> pa.Table:
    db.execute("SET TimeZone = 'UTC'")
    for stream in _STREAMS:
        db.execute(f"CREATE OR REPLACE VIEW {stream} AS SELECT * FROM read_parquet('{events / stream}/*.parquet')")
    return db.sql(query.judge).to_arrow_table()


def difference(db: duckdb.DuckDBPyConnection, answer: pa.Table, found: pa.Table) -> Difference:
    """Compare two tables as multisets of rows."""
    found = _alike(found.select(answer.column_names) if set(found.column_names) == set(answer.column_names) else found)
    answer = _alike(answer)
    if found.schema != answer.schema:
        raise ValueError(f"the table has the columns\n{found.schema}\nand the answer\n{answer.schema}")
    db.register("found", found)
    db.register("answer", answer)
    columns = ", ".join(f'"{name}"' for name in answer.column_names)
    ((*rows,),) = db.execute(
        "SELECT coalesce(sum(due), 0), coalesce(sum(greatest(due - had, 0)), 0),\n"
        "  coalesce(sum(greatest(had - due, 0)) FILTER (WHERE due > 0), 0),\n"
        "  coalesce(sum(had) FILTER (WHERE due = 0), 0)\n"
        "FROM (SELECT sum(due) AS due, sum(had) AS had FROM (\n"
        "  SELECT *, 1 AS due, 0 AS had FROM answer UNION ALL SELECT *, 0 AS due, 1 AS had FROM found)\n"
        f"GROUP BY {columns})"
    ).fetchall()
    return Difference(*map(int, rows))


def part_files(table: Path) -> list[Path]:
    """The files that Flink's file sink has finished; the names of others begin with a point."""
    return sorted(table.glob("part-*"))


def _rows(table: Path) -> pa.Table | None:
    is_delta = (table / "_delta_log").exists()
    files = DeltaTable(str(table)).file_uris() if is_delta else list(map(str, part_files(table)))
    return ds.dataset(files, format="parquet").to_table() if files else None


def _alike(rows: pa.Table) -> pa.Table:
    """Without what differs between engines for the same values: nullability, units of times, widths of sums."""
    fields = []
    for field in rows.schema:
        kind = field.type
        if pa.types.is_timestamp(kind):
            kind = pa.timestamp("us", "UTC")
        elif pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0):
            kind = pa.int64()
        elif pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            kind = pa.string()
        fields.append(pa.field(field.name, kind))
    return rows.cast(pa.schema(fields))
