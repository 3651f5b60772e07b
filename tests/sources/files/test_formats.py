"""`files` and its formats: types, dialects, lines, compressed files, and the column that names the file of a row."""

import gzip
import os
import random
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from spark_ext.datafiles.input_file import InputFile
from spark_ext.errors import ConfigurationError, DataError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import Limit
from spark_ext.sources.files import metadata
from spark_ext.sources.files.source import Files
from spark_ext.testing.source_kit import drive
from tests.sources.files.files_kit import DDL, START, opened, options, read_all, source, table, write, write_orc


def test_schema_of_odd_parquet_types(tmp_path: Path) -> None:
    odd = {
        "u": pa.array([1], pa.uint32()), "d": pa.array(["a"]).dictionary_encode(),
        "n": pa.array([1_000], pa.timestamp("ns")), "l": pa.array([[1]], pa.large_list(pa.uint8())),
    }  # fmt: skip
    pq.write_table(pa.table(odd), tmp_path / "x.parquet")
    assert source(tmp_path).schema().simpleString() == "struct<u:bigint,d:string,n:timestamp_ntz,l:array<smallint>>"
    assert read_all(source(tmp_path)) == [{"u": 1, "d": "a", "n": datetime(1970, 1, 1, 0, 0, 0, 1), "l": [1]}]


def test_bad_line_is_named(tmp_path: Path) -> None:
    lines = [f"{n},w,2024-01-01T00:00:00Z" for n in range(1000)]
    lines[700] = "700,w,yesterday"
    (tmp_path / "x.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"x\.csv': line 701 \(byte \d+\) does not fit the declared columns: .*'at'"):
        read_all(source(tmp_path, DDL))
    (tmp_path / "x.csv").unlink()
    (tmp_path / "y.json").write_text('{"id":1}\n{"id":2}\n{"id":"x"}\n{"id":3}\n')
    with pytest.raises(DataError, match=r"y\.json.*line 3 .*/id"):
        read_all(source(tmp_path, DDL))


def test_csv_by_header_takes_columns_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbfat;other;ID\r\n2024-01-01 00:00:00;zz;7\r\n\r\n;;8\r\n")
    rows = read_all(source(tmp_path, "id int, at timestamp", header="true", sep=";"))
    assert rows == [{"id": 7, "at": START}, {"id": 8, "at": None}]
    with pytest.raises(DataError, match=r"no column 'price'; it has: at, other, ID"):
        read_all(source(tmp_path, "price int", header="true", sep=";"))


def test_csv_dialect(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1\t'a\tb\\'c'\t31/12/2023 10:00\nNA\t''\tNA\n")
    rows = read_all(
        source(
            tmp_path, "id int, word string, at timestamp_ntz", sep="\\t", quote="'", escape="\\", null_value="NA",
            timestamp_format="%d/%m/%Y %H:%M",
        )
    )  # fmt: skip
    assert rows == [{"id": 1, "word": "a\tb'c", "at": datetime(2023, 12, 31, 10)}, {"id": None, "word": "", "at": None}]


def test_multiline_csv_is_one_step(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('id,word\n1,"two\nlines"\n2,b\n')
    made, channel = opened(tmp_path, "id int, word string", header="true", multiline="true")
    assert made.advance(channel, 0, Limit(rows=1)).finished
    assert read_all(made) == [{"id": 1, "word": "two\nlines"}, {"id": 2, "word": "b"}]
    with pytest.raises(DataError, match=r"x\.csv.*line 2 "):
        read_all(source(tmp_path, "id int, word string", header="true"))


def test_gzip_may_have_members_and_be_padded_with_zeros(tmp_path: Path) -> None:
    member = gzip.compress(b"".join(b"%d\n" % n for n in range(20_000)))
    file = tmp_path / "x.csv.gz"
    for content, times in {
        member: 1, member + bytes(1): 1, member + bytes(3_000_000): 1, member * 2 + bytes(512): 2,
        gzip.compress(b"") + member: 1, member + gzip.compress(b""): 1, b"": 0,
    }.items():  # fmt: skip
        file.write_bytes(content)
        assert [row["id"] for row in read_all(source(tmp_path, "id int"))] == list(range(20_000)) * times
    for damaged in (
        member + bytes(512) + member, member[:-1], member[:-9] + bytes(9), member + b"x", bytes(512), bytes(4) + member,
    ):  # fmt: skip
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"x\.csv\.gz': it is damaged"):
            read_all(source(tmp_path, "id int"))


def test_json_over_lines_and_nested(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"id":\n 1, "tags": ["a"], "on": "2024-02-03"}\n\n{"id": 2}')
    rows = read_all(source(tmp_path, "id int, tags array<string>, on date", multiline="true"))
    assert [(row["id"], row["tags"], str(row["on"])) for row in rows] == [(1, ["a"], "2024-02-03"), (2, None, "None")]


def test_times_within_json_are_read_as_those_outside(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(
        'null\n{"s": {"at": "05/03/2020", "on": "2020-01-02", "in": [{"n": 1.5, "at": "01/02/2020"}, null, {}]}}\n'
        '{"s": null}\n{"s": {"in": []}}\n{"s": {"on": "1999-12-31", "in": [{"n": "2.25"}]}}\n'
    )
    ddl = "s struct<at: timestamp, on: date, in: array<struct<n: decimal(5,2), at: timestamp_ntz>>>"
    utc = timezone.utc
    assert [row["s"] for row in read_all(source(tmp_path, ddl, timestamp_format="%d/%m/%Y"))] == [
        None,
        {
            "at": datetime(2020, 3, 5, tzinfo=utc),
            "on": date(2020, 1, 2),
            "in": [{"n": Decimal("1.50"), "at": datetime(2020, 2, 1)}, None, {"n": None, "at": None}],
        },
        None,
        {"at": None, "on": None, "in": []},
        {"at": None, "on": date(1999, 12, 31), "in": [{"n": Decimal("2.25"), "at": None}]},
    ]


@pytest.mark.parametrize(
    ("value", "kind"), [('{"t": "2020-01-01T00:00:00+02:00"}', "struct<t: timestamp_ntz>"), ("[12]", "array<date>")]
)
def test_a_value_within_json_that_is_none_of_its_type_is_refused(tmp_path: Path, value: str, kind: str) -> None:
    (tmp_path / "x.json").write_text(f'{{"s": {value}}}\n')
    with pytest.raises(DataError, match="line 1"):
        read_all(source(tmp_path, f"s {kind}"))


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_time_by_a_pattern_is_not_another_one(tmp_path: Path, kind: str) -> None:
    def write(text: str) -> None:
        (tmp_path / f"x.{kind}").write_text(f'{{"t": "{text}"}}\n' if kind == "json" else f"{text}\n")

    write("2013-02-30")
    with pytest.raises(DataError, match=r"line 1 .*'2013-02-30' is a day that its month does not have"):
        read_all(source(tmp_path, "t timestamp", timestamp_format="%Y-%m-%d"))
    write("2013-02-20 05:00 CET")
    with pytest.raises(ConfigurationError, match=r"%Z is not supported"):
        read_all(source(tmp_path, "t timestamp", timestamp_format="%Y-%m-%d %H:%M %Z"))
    write("2013-02-20 05:00 +0200")
    with pytest.raises(ConfigurationError, match="'t' has times without a zone"):
        read_all(source(tmp_path, "t timestamp_ntz", timestamp_format="%Y-%m-%d %H:%M %z"))
    rows = read_all(source(tmp_path, "t timestamp", timestamp_format="%Y-%m-%d %H:%M %z"))
    assert rows == [{"t": datetime(2013, 2, 20, 3, tzinfo=timezone.utc)}]


def test_blanks_around_a_number_are_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(" 1.5 \n-2\n\t3\n")
    assert [row["n"] for row in read_all(source(tmp_path, "n decimal(8,2)"))] == [Decimal("1.5"), -2, 3]


def test_lines_longer_than_a_block(tmp_path: Path) -> None:
    words = ["x" * 9_000_000, "y", "z" * 17_000_000, "w"]
    (tmp_path / "x.csv").write_text("\n".join(f"{n},{word}" for n, word in enumerate(words)))
    assert [row["word"] for row in read_all(source(tmp_path, "id int, word string"))] == words


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
            "file_path": path.as_uri(), "file_name": path.name, "file_size": path.stat().st_size,
            "file_modification_time": datetime(2020, 9, 13, 12, 26, 40, 123456, timezone.utc), **number,
        }
        for number in numbers
    ]  # fmt: skip


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
def test_row_numbers_are_the_files_despite_limits_and_bad_rows(tmp_path: Path, kind: str) -> None:
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
    with pytest.raises(ConfigurationError, match="have a column '_metadata' of their own"):
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
