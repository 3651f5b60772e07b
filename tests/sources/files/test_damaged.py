"""`files` on Parquet files that are damaged, encrypted, odd or not as declared: read, or refused by name."""

import base64
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from spark_ext.errors import ConfigurationError, DataError
from spark_ext.schemas.columns import conform
from spark_ext.sources.contract import Limit
from tests.sources.files.files_kit import DDL, elsewhere, fuzzed, opened, read_all, source, table, write


class Keys(pe.KmsClient):  # type: ignore[misc]
    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped: bytes, _: str) -> bytes:
        return base64.b64decode(wrapped)


def encrypted(path: Path, *, plain_footer: bool) -> None:
    factory = pe.CryptoFactory(lambda _: Keys())
    how = pe.EncryptionConfiguration(footer_key="f", column_keys={"k": ["b"]}, plaintext_footer=plain_footer)
    rows = pa.table({"a": pa.array([1, 2], pa.int64()), "b": ["x", "y"]})
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), how)
    with pq.ParquetWriter(path, rows.schema, encryption_properties=properties) as writer:
        writer.write_table(rows)


IN_ANOTHER_PROCESS = """
import sys
from spark_ext.errors import DataError
from spark_ext.schemas.columns import conform
from spark_ext.sources.contract import Limit
from tests.sources.files.files_kit import read_all, source
for ddl in sys.argv[2:]:
    try:
        print(read_all(source(sys.argv[1], ddl)))
    except DataError as refused:
        print(type(refused).__name__, refused.what)
"""


def test_encrypted_columns_are_refused_and_others_are_read(tmp_path: Path) -> None:
    encrypted(tmp_path / "x.parquet", plain_footer=True)
    plain, secret = elsewhere(IN_ANOTHER_PROCESS, str(tmp_path), "a bigint", "b string")
    assert plain == "[{'a': 1}, {'a': 2}]"
    assert secret.startswith("DataError file 'x.parquet': ")
    assert "decrypt" in secret
    encrypted(tmp_path / "x.parquet", plain_footer=False)
    (refused,) = elsewhere(IN_ANOTHER_PROCESS, str(tmp_path), "a bigint")
    assert refused.startswith("DataError file 'x.parquet': ")


def fuzz_footers(path: Path, first: int, last: int) -> int:
    rows = {"id": range(20), "word": [f"w{n}" for n in range(20)], "s": [{"a": n} for n in range(20)]}
    pq.write_table(pa.table(rows), path, row_group_size=7, write_page_checksum=True)
    footer = 8 + int.from_bytes(path.read_bytes()[-8:-4], "little")
    return fuzzed(path, "", "id bigint, s struct<a:bigint>", seeds=range(first, last), tail=footer)


def test_any_damage_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    assert fuzz_footers(tmp_path / "x.parquet", 0, 240) > 50


@pytest.mark.slow(15, "4,000 damaged files")
def test_any_damage_at_length(tmp_path: Path) -> None:
    assert fuzz_footers(tmp_path / "x.parquet", 1000, 5_000) > 50


def test_a_column_of_which_a_file_has_no_values_is_named() -> None:
    with pytest.raises(pa.ArrowInvalid, match="column 's' has no values"):
        conform(pa.record_batch({"id": [1]}), pa.schema([("id", pa.int64()), ("s", pa.struct([]))]), {})


def test_a_column_that_is_there_twice_is_refused_by_name(tmp_path: Path) -> None:
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"])
    pq.write_table(rows, tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet.*has the column 'a' twice"):
        read_all(source(tmp_path, "a bigint"))
    assert read_all(source(tmp_path, "b bigint")) == [{"b": 3}]


def test_enum_is_text(tmp_path: Path) -> None:
    schema = pa.schema([("e", pa.string())])
    pq.write_table(pa.table({"e": ["a"]}, schema), tmp_path / "x.parquet", store_schema=False)
    data = (tmp_path / "x.parquet").read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    # In the footer's schema: the converted type UTF8 (0) becomes ENUM (4), the logical type STRING (1) ENUM (4).
    changed = data[footer:].replace(b"\x25\x00\x4c\x1c\x00\x00", b"\x25\x08\x4c\x4c\x00\x00", 1)
    assert changed != data[footer:]
    (tmp_path / "x.parquet").write_bytes(data[:footer] + changed)
    assert pq.read_schema(tmp_path / "x.parquet").field("e").type == pa.binary()
    assert source(tmp_path).schema().simpleString() == "struct<e:string>"
    assert read_all(source(tmp_path)) == [{"e": "a"}]


def test_a_byte_limit_takes_a_part_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", table(0, 50), "parquet")
    made, channel = opened(tmp_path)
    size = (tmp_path / "x.parquet").stat().st_size
    step = made.advance(channel, 0, Limit(bytes=size // 2))
    assert 20 <= step.end <= 30
    assert (step.bytes or 0) <= size // 2


EPOCH = 2_440_588  # 1970-01-01 as a Julian day


def int96(path: Path, day: int, nanos: int) -> None:
    rows = pa.table({"at": pa.array([0], pa.timestamp("us"))})
    pq.write_table(rows, path, use_deprecated_int96_timestamps=True, use_dictionary=False, compression="none")
    data, zero = path.read_bytes(), bytes(8) + EPOCH.to_bytes(4, "little")
    assert data.count(zero) == 1
    moment = nanos.to_bytes(8, "little", signed=True) + day.to_bytes(4, "little", signed=True)
    path.write_bytes(data.replace(zero, moment))


@pytest.mark.parametrize("year", [-4000, 9999, 290_000, -10_000, 300_000, 5_000_000])
def test_int96_of_far_years(tmp_path: Path, year: int) -> None:
    """A time that microseconds cannot hold is refused, and one before the first Julian day."""
    day = EPOCH + int((year - 1970) * 365.2425)
    int96(tmp_path / "x.parquet", day, 0)
    made, channel = opened(tmp_path)
    if not -4000 <= year <= 290_000:
        with pytest.raises(DataError, match=r"x\.parquet.*row 0 .*'at': an INT96 time is out of range"):
            list(made.read(channel, 0, 1))
        return
    (batch,) = made.read(channel, 0, 1)
    assert batch["at"].cast(pa.int64()).to_pylist() == [(day - EPOCH) * 86_400_000_000]


def test_int96_that_spark_has_let_overflow_is_refused(tmp_path: Path) -> None:
    micros = 9_089_380_393_200_000_000 + EPOCH * 86_400_000_000 - 2**64
    day = -(-micros // 86_400_000_000)
    int96(tmp_path / "x.parquet", day, (micros - day * 86_400_000_000) * 1000)
    with pytest.raises(DataError, match="an INT96 time is out of range"):
        read_all(source(tmp_path))


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        (pa.decimal256(50, 2), r"'v' has the type decimal256\(50, 2\), which Spark does not support"),
        (pa.list_(pa.decimal256(50, 2)), "which Spark does not support"),
        (pa.struct([("a", pa.null())]), "which Spark does not support"),
        (pa.null(), "all values of column 'v' are null"),
    ],
)
def test_a_first_file_with_no_spark_schema_is_refused_by_column(tmp_path: Path, kind: pa.DataType, match: str) -> None:
    pq.write_table(pa.table({"n": [1], "v": pa.nulls(1, kind)}), tmp_path / "x.parquet")
    with pytest.raises(ConfigurationError, match=match):
        source(tmp_path)
    assert read_all(source(tmp_path, "n bigint")) == [{"n": 1}]


def test_a_value_that_spark_does_not_have_is_not_called_damage(tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": pa.array([1000, 1001], pa.timestamp("ns"))}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"row 1 does not fit the declared columns: column 'at': .*1001"):
        read_all(source(tmp_path))


def test_a_changed_file_is_read_when_the_user_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write(path, table(0, 20), "parquet")
    _, channel = opened(tmp_path, DDL)
    write(path, table(100, 20), "parquet")
    accepting = source(tmp_path, DDL, changed_files="accept")
    assert accepting.advance(channel, 10, Limit()).end == 20
    assert [row for b in accepting.read(channel, 10, 20) for row in b["id"].to_pylist()] == list(range(110, 120))
    write(path, table(100, 4), "parquet")
    assert source(tmp_path, DDL, changed_files="accept").advance(channel, 10, Limit()).finished


def test_a_damaged_page_is_refused_while_reading(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table(0, 2000), path, row_group_size=500, compression="snappy", write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[1000:1100] = bytes(100)
    path.write_bytes(data)
    made, channel = opened(tmp_path, DDL)
    step = made.advance(channel, 0, Limit())
    with pytest.raises(DataError, match=r"x\.parquet"):
        list(made.read(channel, 0, step.end))


@pytest.mark.parametrize(
    ("found", "declared", "words"),
    [
        (pa.string(), "bigint", ["'id'", "string", "int64"]),
        (pa.int64(), "int", ["'id'", "int64", "int32"]),
        (pa.float64(), "float", ["'id'", "double", "float"]),
        (pa.uint64(), "bigint", ["'id'", "uint64", "int64"]),
        (pa.timestamp("us", "UTC"), "timestamp_ntz", ["'id'", "timestamp"]),
        (pa.list_(pa.int64()), "array<int>", ["'id'", "list"]),
    ],
)
def test_a_column_of_another_type_is_refused_while_planning(
    tmp_path: Path, found: pa.DataType, declared: str, words: list[str]
) -> None:
    pq.write_table(pa.table({"id": pa.nulls(3, found)}), tmp_path / "x.parquet")
    made, channel = opened(tmp_path, f"id {declared}")
    with pytest.raises(DataError) as refused:
        made.advance(channel, 0, Limit())
    assert all(word in refused.value.what for word in [*words, "x.parquet"])


def test_a_missing_column_and_a_missing_value_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", table(0, 2), "parquet")
    made, channel = opened(tmp_path, "id bigint, price double")
    with pytest.raises(DataError, match=r"no column 'price' \(double\); it has: id, word, at"):
        made.advance(channel, 0, Limit())
    with pytest.raises(DataError, match="'word' is declared as not nullable"):
        read_all(source(tmp_path, "id bigint, word string not null"))


@pytest.mark.parametrize(
    ("values", "declared", "read"),
    [
        (pa.array([1, None], pa.int8()), "bigint", [1, None]),
        (pa.array([1], pa.uint32()), "bigint", [1]),
        (pa.array([1], pa.int32()), "double", [1.0]),
        (pa.array([1.5], pa.float32()), "double", [1.5]),
        (pa.array(["a", "b"]).dictionary_encode(), "string", ["a", "b"]),
        (pa.array(["a"], pa.large_string()), "string", ["a"]),
        (pa.array([1_000], pa.timestamp("ms")), "timestamp", [datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)]),
        (pa.array([1_000], pa.timestamp("ns")), "timestamp", [datetime(1970, 1, 1, 0, 0, 0, 1, timezone.utc)]),
        (pa.array([[1, None]], pa.list_(pa.int32())), "array<bigint>", [[1, None]]),
        (pa.array([{"a": 1, "b": "x"}]), "struct<b:string,a:bigint>", [{"b": "x", "a": 1}]),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())), "map<string,bigint>", [[("k", 1)]]),
    ],
)
def test_a_type_whose_values_all_fit_is_cast(tmp_path: Path, values: pa.Array, declared: str, read: list[Any]) -> None:
    pq.write_table(pa.table({"ID": values}), tmp_path / "x.parquet")
    assert [row["id"] for row in read_all(source(tmp_path, f"id {declared}"))] == read
