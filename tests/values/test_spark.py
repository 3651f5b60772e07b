"""What Spark stores and reads back of values that sinks refuse: the table has all of it among its limits."""

from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.sinks.files_2pc.files_target import FilesTarget
from tests.sinks.test_values import committed
from tests.values import table as kinds
from tests.values.forms import batch_of
from tests.values.table import Row

SQL: Final = {
    kinds.DURATIONS: "interval '1 02:03:04.5' day to second", kinds.MONTHS: "interval '1-2' year to month",
    kinds.INTERVALS: "make_interval(1, 2, 3)", kinds.VARIANTS: """parse_json('{"a": 1}')""", kinds.VOID: "null",
    kinds.COLLATED: "'a' collate UTF8_LCASE",
}  # fmt: skip
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


def texts(rows: DataFrame) -> list[Any]:
    return [tuple(row) for row in rows.selectExpr("id", "hex(CAST(v AS string))").collect()]


def read_back(given: DataFrame, path: str, form: str, partition: bool, own: dict[str, str]) -> list[Any] | None:
    """What Spark reads of what it has written; None if it refuses either."""
    try:
        writer = given.write.format(form).options(**own)
        (writer.partitionBy("v") if partition else writer).save(path)
        reader = given.sparkSession.read.format(form).options(**own)
        return texts((reader if form == "delta" else reader.schema(given.schema)).load(path))
    except (PySparkException, Py4JJavaError):
        return None


@pytest.mark.slow(60, "Spark writes and reads a hundred small tables")
def test_spark_stores_what_the_limits_say_and_no_more(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    refused = {
        name: [
            row
            for row in (*kinds.VALUES, *kinds.TYPES)
            if kinds.SINKS[name].get(row) in (kinds.BAD, kinds.START) and row is not kinds.NO_UTF8
        ]
        for name in FORMS
    }
    rows = dict.fromkeys(row for some in refused.values() for row in some)
    given = {row: rows_of(spark, tmp_path / f"{n}.parquet", row) for n, row in enumerate(rows)}
    expected = {row: texts(one) for row, one in given.items()}
    found = {
        name: {
            f"{row.type} {row.what}"
            for n, row in enumerate(refused[name])
            if read_back(given[row], f"{tmp_path}/{name}-{n}", *how) == expected[row]
        }
        for name, how in FORMS.items()
    }
    told = {
        name: {
            f"{row.type} {row.what}"
            for one in kinds.LIMITS
            if "Spark" in one.clients and name in one.sinks
            for row in one.rows
        }
        for name in FORMS
    }
    assert found == told, "\n".join(f"{name}: {sorted(found[name])}" for name in FORMS)


def test_spark_finds_a_column_without_type_in_parquet(spark: SparkSession, tmp_path: Path) -> None:
    schema, batch = batch_of(*next(iter(kinds.VOID.examples.items())))
    committed(FilesTarget(tmp_path / "t", "parquet"), schema, batch)
    (file,) = (tmp_path / "t/_files").iterdir()
    assert list(map(tuple, spark.read.parquet(str(file)).collect())) == [(0, None)]
