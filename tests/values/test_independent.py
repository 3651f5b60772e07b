"""What a sink refuses, no independent client of its target can store either; or the table says that one can."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Final

import fastavro
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import types as T

from tests.values.forms import batch_of
from tests.values.table import (
    BAD,
    COLLATED,
    DURATIONS,
    INTERVALS,
    LIMITS,
    MONTHS,
    NO_UTF8,
    NONE,
    SINKS,
    SOURCES,
    START,
    TYPES,
    VALUES,
    VARIANTS,
    VOID,
    Row,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.parametrize("value", NO_UTF8.examples[T.StringType()])
def test_bytes_that_are_no_text_are_read_by_nobody(tmp_path: Path, value: bytes) -> None:
    """From Parquet, as in Delta and exchanges, from text such as JSON and CSV, and from Avro."""
    _, batch = batch_of(T.StringType(), [value])
    rows = pa.Table.from_batches([batch])
    pq.write_table(rows, tmp_path / "x.parquet")
    with pytest.raises(UnicodeDecodeError):
        pq.read_table(tmp_path / "x.parquet")["v"].to_pylist()
    with pytest.raises(pa.ArrowException):
        pd.read_parquet(tmp_path / "x.parquet")
    with pytest.raises(UnicodeDecodeError):  # as json and csv are given them
        io.TextIOWrapper(io.BytesIO(value), "utf-8").read()
    with pytest.raises(UnicodeDecodeError):
        fastavro.schemaless_reader(io.BytesIO(bytes([2 * len(value)]) + value), "string", None)


def test_what_postgres_2pc_refuses_of_a_value_the_server_refuses_of_psycopg() -> None:
    """Which is what the test of the source's cells has found, as it fills its tables by psycopg."""
    assert {row for row, word in SINKS["postgres_2pc"].items() if word == BAD} == {
        row for row in VALUES if SOURCES["postgres"].get(row) == NONE and row.type in ("string", "date", *TIMES)
    }


TIMES: Final = ("timestamp", "timestamp_ntz")
SQL: Final = {
    DURATIONS: "interval '1 02:03:04.5' day to second",
    MONTHS: "interval '1-2' year to month",
    INTERVALS: "make_interval(1, 2, 3)",
    VARIANTS: """parse_json('{"a": 1}')""",
    VOID: "null",
    COLLATED: "'a' collate UTF8_LCASE",
}
CSV: Final = {"quote": '"', "escape": '"', "multiLine": "true", "nullValue": "\0null\0"}
APPENDS: Final = {
    "delta_2pc, upsert": "delta_2pc",
    "delta_2pc, partition of an upsert": "delta_2pc, partition",
}
BY_SPARK: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "delta_2pc": ("delta", {}),
    "delta_2pc, upsert": ("delta", {"merge": "true"}),
    "delta_2pc, partition": ("delta", {"partition": "true"}),
    "delta_2pc, partition of an upsert": ("delta", {"merge": "true", "partition": "true"}),
    "files_2pc, Parquet": ("parquet", {}),
    "files_2pc, JSON": ("json", {}),
    "files_2pc, CSV": ("csv", CSV),
    "files_2pc, folder": ("parquet", {"partition": "true"}),
}


def rows_of(spark: SparkSession, file: Path, row: Row) -> DataFrame:
    """The first example, of a file that Spark has not looked into."""
    if row in SQL:
        return spark.sql(f"SELECT 1L AS id, {SQL[row]} AS v")
    kind, values = next(iter(row.examples.items()))
    _, batch = batch_of(kind, values[:1])
    pq.write_table(pa.Table.from_batches([batch]), file)
    return spark.read.parquet(str(file))


def stores(spark: SparkSession, given: DataFrame, path: str, form: str, options: dict[str, str]) -> bool:
    """Whether Spark reads back what it has written."""
    own = {name: value for name, value in options.items() if name not in ("merge", "partition")}
    try:
        writer = given.limit(0 if "merge" in options else 1).write.format(form).options(**own)
        (writer.partitionBy("v") if "partition" in options else writer).save(path)
        if "merge" in options:
            given.createOrReplaceTempView("given")
            spark.sql(
                f"MERGE INTO delta.`{path}` t USING given ON t.id = given.id"
                " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
        reader = spark.read.format(form).options(**own)
        found = (reader.schema(given.schema) if form in ("csv", "json") else reader).load(path)
        texts = [one.selectExpr("id", "CAST(v AS string) AS v", "v IS NULL AS n").collect() for one in (given, found)]
        return texts[0] == texts[1]
    except (PySparkException, Py4JJavaError):
        return False


@pytest.mark.slow(240, "Spark writes and reads some two hundred small tables")
def test_spark_stores_none_of_it_either_but_for_what_the_table_says(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = dict[str, set[Row]]()
    for name, (form, options) in BY_SPARK.items():
        refused = [row for row in (*VALUES, *TYPES) if SINKS[name].get(row) in (BAD, START) and row is not NO_UTF8]
        if "merge" in options:  # others have been tried where no files are rewritten
            refused = [row for row in refused if row not in SINKS[APPENDS[name]]]
        given = {row: rows_of(spark, tmp_path / f"{name}-{n}.parquet", row) for n, row in enumerate(refused)}
        found[name] = {
            row for n, row in enumerate(refused) if stores(spark, given[row], f"{tmp_path}/{name}-{n}", form, options)
        }
    assert {name: sorted(f"{row.type} {row.what}" for row in rows) for name, rows in found.items()} == {
        name: sorted(f"{row.type} {row.what}" for row in LIMITS.get(name, {})) for name in BY_SPARK
    }


@pytest.mark.parametrize("day", [-719_529, -719_528, 2_932_897])
def test_delta_rs_does_not_read_the_bounds_of_far_dates_that_it_writes(tmp_path: Path, day: int) -> None:
    """Of the years -1, 0 and 10000: why `delta_2pc` refuses them where delta-rs rewrites files."""
    rows = pa.table({"id": [1], "v": pa.array([day], pa.int32()).cast(pa.date32())})
    write_deltalake(tmp_path, rows)
    with pytest.raises(ValueError, match=r"year 0 is out of range|Invalid isoformat string"):
        DeltaTable(tmp_path).to_pyarrow_table()
