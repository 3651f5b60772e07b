"""`files` on Parquet files that are damaged, encrypted or odd: an error that names the file, and no dead process."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from spark_ext.errors import ConfigurationError, DataError
from spark_ext.schemas.columns import conform
from spark_ext.sources.contract import Limit
from tests.sources.files.files_kit import read_all, source, table, write


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


def read_elsewhere(*arguments: str) -> list[str]:
    ran = subprocess.run([sys.executable, "-c", *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran
    return ran.stdout.splitlines()


def test_encrypted_columns_are_refused_and_others_are_read(tmp_path: Path) -> None:
    """In a process of its own."""
    encrypted(tmp_path / "x.parquet", plain_footer=True)
    plain, secret = read_elsewhere(IN_ANOTHER_PROCESS, str(tmp_path), "a bigint", "b string")
    assert plain == "[{'a': 1}, {'a': 2}]"
    assert secret.startswith("DataError file 'x.parquet': ")
    assert "decrypt" in secret
    encrypted(tmp_path / "x.parquet", plain_footer=False)
    (refused,) = read_elsewhere(IN_ANOTHER_PROCESS, str(tmp_path), "a bigint")
    assert refused.startswith("DataError file 'x.parquet': ")


FUZZ = """
import random, sys
from pathlib import Path
from spark_ext.errors import SparkExtError
from tests.sources.files.files_kit import read_all, source
path, wide = Path(sys.argv[1]), int(sys.argv[4])
data = path.read_bytes()
begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
seen = set()
for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    pick, other = random.Random(seed), bytearray(data)
    for _ in range(pick.randint(1, 3)):
        other[pick.randrange(begin if wide else 0, len(other))] = pick.randrange(256)
    path.write_bytes(other)
    for ddl in (None, "id bigint, s struct<a:bigint>"):
        try:
            read_all(source(path, ddl))
            seen.add("read")
        except SparkExtError as refused:
            assert "x.parquet" in str(refused), seed
            seen.add(type(refused).__name__)
        except BaseException:
            print(seed, flush=True)
            raise
print(sorted(seen))
"""


def fuzzed(path: Path, first: int, last: int) -> None:
    rows = {"id": range(20), "word": [f"w{n}" for n in range(20)], "s": [{"a": n} for n in range(20)]}
    for footer_only in ("1", "0"):
        pq.write_table(pa.table(rows), path / "x.parquet", row_group_size=7, write_page_checksum=True)
        found = read_elsewhere(FUZZ, str(path / "x.parquet"), str(first), str(last), footer_only)
        assert "DataError" in found[-1]


def test_any_damage_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    fuzzed(tmp_path, 0, 120)


@pytest.mark.slow(15, "4,000 damaged files")
def test_any_damage_at_length(tmp_path: Path) -> None:
    fuzzed(tmp_path, 1000, 3_000)


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
    made = source(tmp_path)
    (channel,) = made.discover()
    size = (tmp_path / "x.parquet").stat().st_size
    step = made.advance(channel, 0, Limit(bytes=size // 2))
    assert 20 <= step.end <= 30
    assert (step.bytes or 0) <= size // 2


EPOCH = 2_440_588
"""1970-01-01 as a Julian day."""


def int96(path: Path, day: int, nanos: int) -> None:
    rows = pa.table({"at": pa.array([0], pa.timestamp("us"))})
    pq.write_table(rows, path, use_deprecated_int96_timestamps=True, use_dictionary=False, compression="none")
    data, zero = path.read_bytes(), bytes(8) + EPOCH.to_bytes(4, "little")
    assert data.count(zero) == 1
    path.write_bytes(
        data.replace(zero, nanos.to_bytes(8, "little", signed=True) + day.to_bytes(4, "little", signed=True))
    )


@pytest.mark.parametrize("year", [-4000, 9999, 290_000, -10_000, 300_000, 5_000_000])
def test_int96_of_far_years(tmp_path: Path, year: int) -> None:
    """A time that microseconds cannot hold is refused, and one before the first Julian day."""
    day = EPOCH + int((year - 1970) * 365.2425)
    int96(tmp_path / "x.parquet", day, 0)
    made = source(tmp_path)
    (channel,) = made.discover()
    if not -4000 <= year <= 290_000:
        with pytest.raises(DataError, match=r"x\.parquet.*row 0 .*'at': an INT96 time is out of range"):
            list(made.read(channel, 0, 1))
        return
    (batch,) = made.read(channel, 0, 1)
    assert batch["at"].cast(pa.int64()).to_pylist() == [(day - EPOCH) * 86_400_000_000]


def test_int96_that_spark_has_let_overflow_is_refused(tmp_path: Path) -> None:
    """Of the year 290,000, as Spark writes it: day and time of day are negative."""
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
def test_a_first_file_without_a_schema_for_spark_is_refused_by_column(
    tmp_path: Path, kind: pa.DataType, match: str
) -> None:
    pq.write_table(pa.table({"n": [1], "v": pa.nulls(1, kind)}), tmp_path / "x.parquet")
    with pytest.raises(ConfigurationError, match=match):
        source(tmp_path)
    assert read_all(source(tmp_path, "n bigint")) == [{"n": 1}]


def test_a_value_that_spark_does_not_have_is_not_called_damage(tmp_path: Path) -> None:
    rows = pa.table({"at": pa.array([1000, 1001], pa.timestamp("ns"))})
    pq.write_table(rows, tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"row 1 does not fit the declared columns: column 'at': .*1001"):
        read_all(source(tmp_path))
