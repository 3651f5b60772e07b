"""`files_2pc` without Spark: layouts, formats and what is refused."""

import gzip
import math
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as T

from spark_ext.errors import CommitError, ConfigurationError, DataError, StorageError
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.files_2pc.epoch_log import EpochLog
from spark_ext.sinks.files_2pc.formats import hive_folder
from spark_ext.sinks.files_2pc.sink import FilesTwoPhaseCommit, committed_files
from spark_ext.sources.files.source import Files
from spark_ext.testing.sink_driver import NUMBERS, Driver, numbered
from spark_ext.testing.source_kit import drive
from tests.sinks.files_2pc.files_target import FilesTarget, links
from tests.support.disks import fill, remount, small_disk

DAYS = columns("id bigint, day date, name string")


def driver(path: Path, kind: str = "parquet", schema: T.StructType = NUMBERS, **options: str) -> Driver:
    return Driver(FilesTarget(path, kind), schema=schema, options=options).claim()


def days(start: int, end: int) -> list[dict[str, Any]]:
    return [{"id": n, "day": date(2024, 1, 1 + n % 3) if n % 4 else None, "name": f"n{n}"} for n in range(start, end)]


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_partitions_are_folders_and_their_values_are_in_no_file(tmp_path: Path, kind: str) -> None:
    driver(tmp_path, kind, DAYS, partition_by="day").run(0, days(0, 24), partitions=2)
    folders = {file.parent.name for file in committed_files(tmp_path)}
    assert folders == {"day=__HIVE_DEFAULT_PARTITION__", *(f"day=2024-01-0{n}" for n in (1, 2, 3))}
    if kind == "parquet":
        found = ds.dataset(committed_files(tmp_path), partition_base_dir=str(tmp_path / "_files"), partitioning="hive")
        assert sorted(found.to_table().column("id").to_pylist()) == list(range(24))
        assert all(pq.read_schema(file).names == ["id", "name"] for file in committed_files(tmp_path))


@pytest.mark.parametrize(
    ("value", "folder"),
    [("a b", "v=a b"), ("a/b=c%", "v=a%2Fb%3Dc%25"), ("ä€", "v=ä€"), (None, "v=__HIVE_DEFAULT_PARTITION__")],
)
def test_folders_are_spelled_as_spark_spells_them(value: str | None, folder: str) -> None:
    assert hive_folder("v", value) == folder


@pytest.mark.parametrize(
    ("kind", "compression", "suffix", "magic"),
    [
        ("parquet", "", ".snappy.parquet", b"PAR1"),
        ("parquet", "zstd", ".zstd.parquet", b"PAR1"),
        ("parquet", "none", ".parquet", b"PAR1"),
        ("csv", "", ".csv", b'5,"n5"\n'),
        ("csv", "gzip", ".csv.gz", b"\x1f\x8b"),
        ("json", "", ".json", b'{"id":5,"name":"n5"}\n'),
        ("json", "gzip", ".json.gz", b"\x1f\x8b"),
    ],
)
def test_compression_is_in_the_name(tmp_path: Path, kind: str, compression: str, suffix: str, magic: bytes) -> None:
    options: dict[str, Any] = {"compression": compression} if compression else {}
    driver(tmp_path, kind, **options).run(0, numbered(5, 6))
    (file,) = committed_files(tmp_path)
    assert file.name.endswith(suffix)
    content = file.read_bytes()
    assert content.startswith(magic)
    if suffix.endswith(".gz"):
        assert gzip.decompress(content) in (b'5,"n5"\n', b'{"id":5,"name":"n5"}\n')


def test_header_and_separator(tmp_path: Path) -> None:
    driver(tmp_path, "csv", header="true", sep=";").run(0, numbered(1, 3))
    (file,) = committed_files(tmp_path)
    assert file.read_text() == '"id";"name"\n1;"n1"\n2;"n2"\n'


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_a_file_that_is_large_enough_is_closed_and_another_begun(tmp_path: Path, kind: str) -> None:
    made = driver(tmp_path, kind, row_group_rows="100", target_file_size="1k", compression="none")
    made.run(0, numbered(0, 1000))
    assert len(committed_files(tmp_path)) > 3
    assert made.target.ids() == list(range(1000))


def test_links_are_optional_and_for_committed_files_only(tmp_path: Path) -> None:
    made = driver(tmp_path / "a")
    written = made.write(0, numbered(0, 5))
    assert links(tmp_path / "a") == set()
    made.commit([written], 0)
    assert links(tmp_path / "a") == {file.name for file in committed_files(tmp_path / "a")} != set()
    assert sorted(pq.read_table(tmp_path / "a").column("id").to_pylist()) == list(range(5)), "any reader finds them"
    driver(tmp_path / "b", publish="false").run(0, numbered(0, 5))
    assert links(tmp_path / "b") == set()


def test_a_start_that_publishes_makes_earlier_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that know nothing of the log would find the later rows only. Links that were deleted stay so."""
    target = FilesTarget(tmp_path, "parquet")

    def start(number: int, **options: str) -> Driver:
        return Driver(target, number, options=options)

    start(1).claim()
    start(1).run(0, numbered(0, 5))
    kept = links(tmp_path)
    without = start(2, publish="false").claim()
    without.run(1, numbered(5, 10))
    assert links(tmp_path) == kept
    for name in kept:
        (tmp_path / name).unlink()  # as those who keep rows for a month only

    def late(log: EpochLog, decide: Callable[..., Any], writer: str) -> Any:
        monkeypatch.undo()
        without.run(2, numbered(10, 15))
        return log.append(decide, writer)

    monkeypatch.setattr(EpochLog, "append", late)
    start(3).claim()
    assert sorted(pq.read_table(tmp_path).column("id").to_pylist()) == list(range(5, 15))
    for name in links(tmp_path):
        (tmp_path / name).unlink()
    start(4).claim()
    assert links(tmp_path) == set()


def test_the_source_of_this_project_reads_what_is_committed(tmp_path: Path) -> None:
    made = driver(tmp_path / "t", schema=DAYS, partition_by="day")
    made.run(0, days(0, 10))
    made.write(1, days(90, 95))
    trace = drive(Files, {"uid": "in", "path": str(tmp_path / "t")}, schema=DAYS)
    assert sorted(trace.all_rows().to_pylist(), key=lambda row: row["id"]) == days(0, 10)


def test_links_that_a_crash_prevented_are_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = driver(tmp_path)
    with monkeypatch.context() as crash:
        crash.setattr(FilesTwoPhaseCommit, "_publish", lambda *_: None)
        made.run(0, numbered(0, 5))
    assert links(tmp_path) == set()
    made.run(0, numbered(0, 5))
    assert links(tmp_path) == {file.name for file in committed_files(tmp_path)} != set()
    assert made.target.leftovers() == set(), "the rows that were prepared anew are not kept"


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("csv", "id bigint, b binary", "column 'b' has the type binary, which csv does not support"),
        ("csv", "id bigint, a array<int>", "column 'a' has the type array<int>, which csv does not support"),
        ("csv", "id bigint, s struct<x int>", "column 's' has the type struct<x:int>, which csv does not support"),
        ("csv", "only string", "column 'only' is the only one in its files and may be null"),
        ("json", "m map<int, int>", "its keys have to be strings"),
        ("json", "s struct<m map<date, int>>", "column 's.m' has the type map<date,int>"),
        ("parquet", "Id bigint, id bigint", "columns 'Id' and 'id' differ in case only"),
        ("json", "a array<struct<s: int, S: int>>", r"columns 'a\.element\.s' and 'a\.element\.S' differ in case only"),
    ],
)
def test_what_a_format_does_not_hold_is_refused(tmp_path: Path, kind: str, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        driver(tmp_path / "t", kind, columns(text))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "snappy", "format": "csv"}, "compression 'snappy' is for parquet"),
        ({"header": "true"}, "header and sep require format=csv"),
        ({"format": "orc"}, "option 'format'"),
        ({"sep": ";;", "format": "csv"}, "option 'sep'"),
        ({"sep": "\\", "format": "csv"}, "sep cannot be"),
        ({"sep": "1", "format": "csv"}, "'1' may be part of a value of column 'id'"),
        ({"partition_by": "nowhere"}, "partition column 'nowhere' is not a column of the query; it has: id, name"),
        ({"partition_by": "id,name"}, "no column is left"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FilesTwoPhaseCommit({"uid": "out", "path": str(tmp_path), **options}).validate(NUMBERS)


WITHOUT_QUOTES: list[tuple[T.DataType, list[Any]]] = [
    (T.BooleanType(), [True, False]),
    (T.LongType(), [-(2**63), 1234567890]),
    (T.DecimalType(38, 37), [Decimal("-1e-37"), Decimal("9.8765432101")]),
    (T.FloatType(), [-1.5e-30, 3e38, math.inf, -math.inf, math.nan]),
    (T.DoubleType(), [-1.5e-300, 1e300, 0.1]),
    (T.DateType(), [date(1, 1, 1), date(9876, 12, 30)]),
    (T.TimestampType(), [datetime(1987, 12, 6, 5, 43, 21, 98765, tzinfo=timezone.utc)]),
    (T.TimestampNTZType(), [datetime(1987, 12, 6, 5, 43, 21, 98765)]),
]


@pytest.mark.parametrize(("kind", "values"), WITHOUT_QUOTES)
def test_no_separator_is_part_of_a_value_without_quotes(tmp_path: Path, kind: T.DataType, values: list[Any]) -> None:
    schema = T.StructType([T.StructField("s", T.StringType()), T.StructField("v", kind)])
    made = Driver(FilesTarget(tmp_path / "t", "csv"), schema=schema, options={"sep": "|"}).claim()
    made.run(0, [{"s": " ", "v": value} for value in values])
    lines = [line for path in committed_files(tmp_path / "t") for line in path.read_text().splitlines()]
    for number, character in enumerate(sorted(set("".join(line.split("|")[1] for line in lines)))):
        sink = FilesTwoPhaseCommit(
            {"uid": "out", "path": str(tmp_path / str(number)), "format": "csv", "sep": character}
        )
        with pytest.raises(ConfigurationError, match=r"may be part of a value of column 'v' .* only strings"):
            sink.validate(schema)
    for other in ",;|\t~":
        FilesTwoPhaseCommit({"uid": "out", "path": str(tmp_path / "u"), "format": "csv", "sep": other}).validate(schema)


@pytest.mark.parametrize(
    ("kind", "schema", "options", "message"),
    [
        ("csv", DAYS, {}, "format='parquet', the query has format='csv'"),
        ("parquet", DAYS, {"partition_by": "day"}, "partition_by='', the query has partition_by=day"),
        ("parquet", NUMBERS, {}, "column 'day' is date in the folder and missing in the query"),
        ("parquet", columns("id int, day date, name string"), {}, "column 'id' is bigint in the folder and int"),
    ],
)
def test_a_folder_of_other_files_is_refused(
    tmp_path: Path, kind: str, schema: T.StructType, options: dict[str, str], message: str
) -> None:
    driver(tmp_path, schema=DAYS).run(0, days(0, 3))
    with pytest.raises(ConfigurationError, match=message):
        driver(tmp_path, kind, schema, **options)
    assert len(committed_files(tmp_path)) == 1


def test_a_folder_that_is_not_ours_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"the folder is not empty .* it has 'notes.txt'"):
        driver(tmp_path)
    # Without a job nothing is claimed: the first commit refuses.
    alone = Driver(FilesTarget(tmp_path, "parquet"), incarnation=0)
    written = alone.write(0, numbered(0, 3))
    with pytest.raises(ConfigurationError, match="not empty"):
        alone.commit([written], 0)
    assert {item.name for item in tmp_path.iterdir() if not item.name.startswith("reg")} == {"_files", "notes.txt"}
    with pytest.raises(ConfigurationError, match="contains no output of files_2pc"):
        committed_files(tmp_path / "nowhere")


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(ConfigurationError, match="Not a directory") as refused:
            driver(path)
        assert "sink 'out'" in refused.value.operator
    good = driver(tmp_path / "out")
    (tmp_path / "out" / "_files").touch()
    # A part of the output that somebody has damaged may be put back while the epoch is tried again.
    with pytest.raises(StorageError, match="the folder could not be written") as damaged:
        good.write(3, numbered(0, 3), partition=1)
    assert "epoch 3, partition 1" in damaged.value.operator


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "1m") as place:
        yield place


def test_a_full_disk_is_reported_and_the_epoch_can_be_repeated(disk: Path) -> None:
    made = driver(disk / "out", commit_attempts="1")
    made.run(0, numbered(0, 5))
    ready = made.write(1, numbered(5, 10))
    filling = fill(disk)
    with pytest.raises(StorageError, match="No space left") as full:
        made.write(2, numbered(10, 20_000))
    assert "epoch 2, partition 0" in full.value.operator
    with pytest.raises(CommitError, match="No space left"):
        made.commit([ready], 1)
    assert made.target.ids() == list(range(5))
    filling.unlink()
    made.commit([ready], 1)
    assert made.target.ids() == list(range(10))
    assert made.target.leftovers() == set(), "the task has removed what it had begun"
    assert not list((disk / "out").rglob(".draft-*"))


def test_a_read_only_disk_is_reported_at_the_start(disk: Path) -> None:
    driver(disk / "out").run(0, numbered(0, 5))
    assert remount(disk, "ro")
    second = Driver(FilesTarget(disk / "out", "parquet"), incarnation=2)
    with pytest.raises(StorageError, match="Read-only file system") as caught:
        second.claim()
    assert "permissions" in caught.value.do
    assert second.target.ids() == list(range(5)), "it can be read"


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_partition_value_unfit_to_name_a_folder_is_bad_data(tmp_path: Path, kind: str) -> None:
    schema = columns("id bigint, name string, n int")
    for number, (character, most) in enumerate({"x": 250, "ä": 125, "/": 83}.items()):
        driver = Driver(FilesTarget(tmp_path / str(number), kind), schema=schema, options={"partition_by": "name"})
        driver.claim()
        driver.run(0, [{"id": 1, "name": character * most, "n": 1}])
        with pytest.raises(DataError, match=r"'name' makes the name of a folder 25[6-8] bytes long.*allow 255"):
            driver.run(1, [{"id": 2, "name": character * (most + 1), "n": 2}])
        assert len(committed_files(tmp_path / str(number))) == 1 and driver.target.leftovers() == set()


def test_a_path_that_is_too_long_is_bad_data(tmp_path: Path) -> None:
    schema = columns(", ".join(["id bigint", *(f"p{number} string" for number in range(20))]))
    options = {"partition_by": ",".join(f"p{number}" for number in range(20))}
    driver = Driver(FilesTarget(tmp_path / "out", "parquet"), schema=schema, options=options).claim()
    with pytest.raises(DataError, match="the path of a file is too long"):
        driver.run(0, [{"id": 1} | {f"p{number}": "x" * 240 for number in range(20)}])
