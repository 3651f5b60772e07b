"""What Spark stores and reads back of values that sinks refuse: the table has all of it among its limits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.sinks.files_2pc.files_target import FilesTarget
from tests.sinks.test_values import committed
from tests.values.forms import batch_of
from tests.values.table import (
    BAD,
    COLLATED,
    DURATIONS,
    INTERVALS,
    LIMITS,
    MONTHS,
    NO_UTF8,
    SINKS,
    START,
    TYPES,
    VALUES,
    VARIANTS,
    VOID,
    Row,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SQL: Final = {
    DURATIONS: "interval '1 02:03:04.5' day to second",
    MONTHS: "interval '1-2' year to month",
    INTERVALS: "make_interval(1, 2, 3)",
    VARIANTS: """parse_json('{"a": 1}')""",
    VOID: "null",
    COLLATED: "'a' collate UTF8_LCASE",
}
FORMS: Final[dict[str, tuple[str, bool, dict[str, str]]]] = {
    "delta_2pc": ("delta", False, {}),
    "delta_2pc, partition": ("delta", True, {}),
    "files_2pc, Parquet": ("parquet", False, {}),
    "files_2pc, JSON": ("json", False, {}),
    "files_2pc, CSV": ("csv", False, {"quote": '"', "escape": '"', "multiLine": "true", "nullValue": "\0null\0"}),
    "files_2pc, folder": ("parquet", True, {}),
}
"""Spark's format, whether the value is a partition, and options. Upserts refuse what appends do."""


def rows_of(spark: SparkSession, file: Path, row: Row) -> DataFrame:
    """The last example, of a file that Spark has not looked into."""
    if row in SQL:
        return spark.sql(f"SELECT 1L AS id, {SQL[row]} AS v")
    kind, values = next(iter(row.examples.items()))
    schema, batch = batch_of(kind, values[-1:])
    pq.write_table(pa.Table.from_batches([batch]), file)
    return spark.read.schema(schema).parquet(str(file))


def stores(spark: SparkSession, given: DataFrame, path: str, form: str, partition: bool, own: dict[str, str]) -> bool:
    """Whether Spark reads back what it has written."""
    try:
        writer = given.write.format(form).options(**own)
        (writer.partitionBy("v") if partition else writer).save(path)
        reader = spark.read.format(form).options(**own)
        found = (reader if form == "delta" else reader.schema(given.schema)).load(path)
        texts = [one.selectExpr("id", "hex(CAST(v AS string)) AS v").collect() for one in (given, found)]
        return texts[0] == texts[1]
    except (PySparkException, Py4JJavaError):
        return False


@pytest.mark.slow(40, "Spark writes and reads a hundred small tables")
def test_spark_stores_what_the_limits_say_and_no_more(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    found = dict[str, set[str]]()
    for name, (form, partition, options) in FORMS.items():
        refused = [row for row in (*VALUES, *TYPES) if SINKS[name].get(row) in (BAD, START) and row is not NO_UTF8]
        given = {row: rows_of(spark, tmp_path / f"{name}-{n}.parquet", row) for n, row in enumerate(refused)}
        found[name] = {
            f"{row.type} {row.what}"
            for n, row in enumerate(refused)
            if stores(spark, given[row], f"{tmp_path}/{name}-{n}", form, partition, options)
        }
    told = {
        name: {
            f"{row.type} {row.what}"
            for one in LIMITS
            if "Spark" in one.clients and name in one.sinks
            for row in one.rows
        }
        for name in FORMS
    }
    assert found == told, "\n".join(f"{name}: {sorted(found[name])}" for name in FORMS)


def test_spark_finds_a_column_without_type_in_parquet(spark: SparkSession, tmp_path: Path) -> None:
    schema, batch = batch_of(*next(iter(VOID.examples.items())))
    committed(FilesTarget(tmp_path / "t", "parquet"), schema, batch)
    (file,) = (tmp_path / "t/_files").iterdir()
    assert list(map(tuple, spark.read.parquet(str(file)).collect())) == [(0, None)]
