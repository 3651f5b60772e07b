"""Twenty pairs of a source and a sink in one job: hostile values of all types pass Spark unchanged.

What was given is known without Spark; what is there is read by Spark's own reader, pyarrow, json or psycopg.
"""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

import spark_ext as sx
from spark_ext.sinks.files_2pc.sink import committed_files
from spark_ext.worker_internals import to_arrow_schema
from tests.servers.postgres import Database
from tests.sinks.postgres_2pc import test_values as pg
from tests.sinks.postgres_2pc.postgres_kit import PostgresTarget
from tests.sources.postgres.test_values import KINDS, quoted, text
from tests.sources.test_values import delta_table
from tests.values.forms import DAY, YEARS, array, from_json, plain

LOW, HIGH = YEARS
TEXTS: Final = [b"M\xc3\xb6hre \xf0\x9f\x98\x80", b"", b'a\r\n"b"\\', b"\xef\xbb\xbf\xe2\x80\xa8", b"NULL", None]
COLUMNS: Final[dict[str, tuple[T.DataType, list[Any]]]] = {
    "id": (T.LongType(), [*range(6)]),
    "t": (T.StringType(), TEXTS),
    "r": (T.BinaryType(), [b"\xff\0", b"", b"M\xf6hre", b"\xed\xa0\x80", b"\\x00", None]),
    "s": (T.ShortType(), [-(2**15), 2**15 - 1, 0, -1, 1, None]),
    "u": (T.IntegerType(), [-(2**31), 2**31 - 1, 0, -1, 1, None]),
    "k": (T.LongType(), [-(2**63), 2**63 - 1, 0, -1, 1, None]),
    "b": (T.BooleanType(), [True, False, True, False, True, None]),
    "x": (T.FloatType(), ["-0.0", "nan", "inf", "-inf", "1.401298464324817e-45", None]),
    "v": (T.DoubleType(), ["-0.0", "nan", "inf", "-inf", "5e-324", None]),
    "n": (T.DecimalType(38, 10), [Decimal(f"{n}E-10") for n in (10**38 - 1, 1 - 10**38, 1, -1, 0)] + [None]),
    "value": (T.DateType(), [LOW // DAY, HIGH // DAY, -141_428, -141_427, 0, None]),
    "e": (T.TimestampType(), [LOW, HIGH, -141_428 * DAY - 1, -1, 1, None]),
    "excluded": (T.TimestampNTZType(), [LOW, HIGH, -141_428 * DAY - 1, -1, 1, None]),
    "count": (T.ArrayType(T.StringType()), [[], [b""], [None, b"null"], [b'"', b"{}", b"\\"], [b","], None]),
    'q"uote': (T.StringType(), TEXTS[::-1]),
    "n" * 63: (T.StringType(), TEXTS),
}
"""Columns, some of them named as aliases of our own SQL, and their values."""
LONG: Final = "ß" * 127 + "x"  # 255 bytes: the last column's name but in PostgreSQL, which has 63
FAR: Final = {"id": 6, "value": -2_440_588, "e": 2**63 - 1, "excluded": -210_866_803_200_000_000}
"""A row whose times not every sink has."""
SCHEMA: Final = T.StructType([T.StructField(name, kind) for name, (kind, _) in COLUMNS.items()])
VALUES: Final = {name: [*values, FAR.get(name)] for name, (_, values) in COLUMNS.items()}


def given() -> pa.Table:
    schema = to_arrow_schema(SCHEMA)
    return pa.Table.from_arrays([array(VALUES[field.name], field.type) for field in schema], schema=schema)


def into_files(folder: Path, _: Database) -> dict[str, str]:
    pq.write_table(given(), folder / "in.parquet")
    return {"format": "files", "path": f"{folder}/in.parquet"}


def into_delta(folder: Path, _: Database) -> dict[str, str]:
    delta_table(folder / "in", given())
    return {"format": "delta_snapshot", "path": f"{folder}/in"}


def into_followed(folder: Path, _: Database) -> dict[str, str]:
    delta_table(folder / "followed", given())
    return {"format": "delta_snapshot", "path": f"{folder}/followed", "follow": "true", "starting_version": "0"}


def into_postgres(_: Path, database: Database) -> dict[str, str]:
    made = ", ".join(
        f"{quoted(name)} {KINDS[type(kind)][0].format(kind.simpleString())}" for name, (kind, _) in COLUMNS.items()
    )
    parts = [KINDS[type(kind)][1].format(f"%(c{n})s::text", "") for n, (kind, _) in enumerate(COLUMNS.values())]
    with database.connect(client_encoding="utf8") as connection:
        connection.execute(f"CREATE TABLE given ({made}, PRIMARY KEY (id))")
        for row in range(len(VALUES["id"])):
            texts = {f"c{n}": text(kind, VALUES[name][row]) for n, (name, (kind, _)) in enumerate(COLUMNS.items())}
            connection.execute(f"INSERT INTO given VALUES ({', '.join(parts)})", texts)
    return {"format": "postgres", "table": "given", **database.options}


SOURCES: Final = {"files": into_files, "delta_snapshot": into_delta, "follow": into_followed, "postgres": into_postgres}
Found = dict[str, list[Any]]
Read = Callable[["SparkSession", str, Database], Found]


def plains(found: pa.Table) -> Found:
    ordered = found.sort_by("id").rename_columns({LONG: "n" * 63})
    return {name: [plain(value) for value in ordered[name]] for name in COLUMNS}


def from_delta(spark: SparkSession, path: str, _: Database) -> Found:
    return plains(spark.read.format("delta").load(path).toArrow())


def from_parquet(_: SparkSession, path: str, __: Database) -> Found:
    return plains(pa.concat_tables([pq.read_table(file) for file in committed_files(path)]))


def from_lines(_: SparkSession, path: str, __: Database) -> Found:
    lines = [line for file in committed_files(path) for line in Path(file).read_text("utf-8").split("\n") if line]
    rows = sorted(map(json.loads, lines), key=lambda row: int(row["id"]))
    rows = [{**row, "n" * 63: row[LONG]} for row in rows]
    return {name: [from_json(kind, row[name]) for row in rows] for name, (kind, _) in COLUMNS.items()}


def from_postgres(_: SparkSession, path: str, database: Database) -> Found:
    target = PostgresTarget(database, Path(path).name)
    return {name: pg.read(target, kind, column=name) for name, (kind, _) in COLUMNS.items()}


SINKS: Final[dict[str, tuple[dict[str, str], bool, Read]]] = {
    "delta": ({"format": "delta_2pc"}, True, from_delta),
    "upsert": ({"format": "delta_2pc", "mode": "upsert", "key": "id"}, False, from_delta),
    "parquet": ({"format": "files_2pc"}, True, from_parquet),
    "json": ({"format": "files_2pc", "json": "json"}, False, from_lines),
    "table": ({"format": "postgres_2pc"}, True, from_postgres),
}
"""Options, whether it has times outside the years 1 to 9999, and who reads it."""


@pytest.mark.slow(60, "twenty queries of a job, each over a source and a sink of its own")
def test_values_of_all_types_pass_unchanged(spark: SparkSession, tmp_path: Path, database: Database) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")  # has changed its offset by 35 minutes
    job = sx.Job(spark, "pairs", state=tmp_path / "state")
    for source, make in SOURCES.items():
        options = make(tmp_path, database)
        for sink, (own, far, _) in SINKS.items():
            name = f"{source}_{sink}"
            rows = (
                spark.readStream.format(options["format"]).options(uid=f"{name}-in", **without_format(options)).load()
            )
            rows = rows if far else rows.where("id < 6")
            rows = rows if sink == "table" else rows.withColumnRenamed("n" * 63, LONG)
            where = {"table": name, **database.options} if sink == "table" else {"path": f"{tmp_path}/{name}"}
            writer = rows.writeStream.format(own["format"]).options(uid=name, **where, **without_format(own))
            job.add(name, writer)
    job.run(until="now", progress=False)
    wrong = [
        (source, sink, name, values, found[name])
        for source in SOURCES
        for sink, (_, far, read) in SINKS.items()
        for found in [read(spark, f"{tmp_path}/{source}_{sink}", database)]
        for name, values in VALUES.items()
        if found[name] != (values if far else values[:6])
    ]
    assert not wrong


def without_format(options: dict[str, str]) -> dict[str, str]:
    """JSON is the sink's own option of that name."""
    return {("format" if name == "json" else name): value for name, value in options.items() if name != "format"}
