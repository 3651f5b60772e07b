"""`files` with `metadata=true`: the column that says from which file a row is."""

from __future__ import annotations

import os
import random
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from spark_ext.datafiles.input_file import InputFile
from spark_ext.errors import ConfigurationError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.files import metadata
from spark_ext.sources.files.source import Files
from spark_ext.testing.source_kit import drive
from tests.sources.files.files_kit import DDL, options, read_all, source, table, write, write_orc

FIELDS = "file_path string, file_name string, file_size bigint, file_modification_time timestamp"


@pytest.mark.parametrize("kind", ["parquet", "orc", "avro"])
def test_it_is_added_to_the_columns_of_the_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"ä b.{kind}"
    write(path, table(0, 3), kind)
    os.utime(path, ns=(0, 1_600_000_000_123_456_789))
    made = source(tmp_path, metadata="true")
    index = "row_index bigint" if kind != "avro" else ""
    assert made.schema() == columns(f"{DDL}, _metadata struct<{', '.join(filter(None, [FIELDS, index]))}>")
    found = [row["_metadata"] for row in read_all(made)]
    numbers: list[dict[str, Any]] = [{"row_index": n} if index else {} for n in range(3)]
    assert found == [
        {
            "file_path": path.as_uri(),
            "file_name": path.name,
            "file_size": path.stat().st_size,
            "file_modification_time": datetime(2020, 9, 13, 12, 26, 40, 123456, timezone.utc),
            **number,
        }
        for number in numbers
    ]


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_declared_fields_are_filled_wherever_the_column_stands(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "sub" / f"x.{kind}", table(0, 4), kind)
    made = source(tmp_path, "id bigint, _metadata struct<file_name string>, word string, at timestamp", metadata="true")
    rows = read_all(made)
    assert [(row["id"], row["_metadata"]) for row in rows] == [(n, {"file_name": f"x.{kind}"}) for n in range(4)]
    assert list(rows[0]) == ["id", "_metadata", "word", "at"]
    only = source(tmp_path, "_metadata struct<file_name string>", metadata="true", header="true")
    if kind == "parquet":
        assert read_all(only) == [{"_metadata": {"file_name": "x.parquet"}}] * 4


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_row_numbers_are_those_of_the_file_under_limits_and_behind_bad_rows(tmp_path: Path, kind: str) -> None:
    values = [1_000 if n % 3 else 1_001 for n in range(20)]  # nanoseconds, of which every third is not whole
    rows = pa.table({"n": range(20), "t": pa.array(values, pa.timestamp("ns"))})
    if kind == "parquet":
        pq.write_table(rows, tmp_path / "x.parquet", row_group_size=7)
    else:
        write_orc(tmp_path / "x.orc", rows)
    schema = columns("n bigint, t timestamp_ntz, _metadata struct<row_index bigint>")
    given = options(tmp_path, metadata="true", on_bad_row="quarantine")
    trace = drive(Files, given, schema=schema, rng=random.Random(3))
    read = [(row["n"], row["_metadata"]["row_index"]) for row in trace.rows(f"x.{kind}").to_pylist()]
    assert read == [(n, n) for n in range(20) if n % 3]


@pytest.mark.parametrize(
    ("kind", "ddl", "match"),
    [
        ("csv", DDL, "declared schema does not have"),
        ("csv", "id bigint, _metadata string", "declared as string"),
        ("csv", "id bigint, _metadata struct<path string>", "field 'path' of the type string"),
        ("parquet", "id bigint, _metadata struct<file_size int>", "field 'file_size' of the type int32"),
        ("json", "id bigint, _metadata struct<row_index bigint>", r"rows of json files have no numbers.*x\.json"),
        ("avro", "id bigint, _metadata struct<row_index bigint>", "rows of avro files have no numbers"),
    ],
)
def test_other_fields_are_refused_before_a_row_is_read(tmp_path: Path, kind: str, ddl: str, match: str) -> None:
    write(tmp_path / f"x.{kind}", table(0, 3), kind)
    with pytest.raises(ConfigurationError, match=match):
        read_all(source(tmp_path, ddl, metadata="true"))


def test_a_column_of_that_name_in_the_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"_metadata": [1]}), tmp_path / "x.parquet")
    with pytest.raises(ConfigurationError, match="has a column '_metadata' of its own"):
        Files(options(tmp_path, metadata="true")).schema()
    assert read_all(source(tmp_path)) == [{"_metadata": 1}]


@pytest.mark.parametrize(
    ("place", "path", "wanted"),
    [
        ("s3://key:secret@bucket/in", "bucket/in/x.csv", "s3://bucket/in/x.csv"),
        ("s3://bucket/in?region=eu", "bucket/in/x.csv", "s3://bucket/in/x.csv"),
        ("hdfs://u:p@host:8020/in", "/in/x.csv", "hdfs://host:8020/in/x.csv"),
    ],
)
def test_an_address_has_no_credentials(place: str, path: str, wanted: str) -> None:
    remote = fs.SubTreeFileSystem("/", fs.LocalFileSystem())
    assert metadata.uri(InputFile(remote, path, "x.csv", 1, None, "in"), place) == wanted
