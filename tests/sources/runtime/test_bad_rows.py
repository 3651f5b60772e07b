"""Bad rows in the reader: refused or collected, in a job only, and in the declared schema."""

import json
import pickle
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_ext.bad_rows.collector import Destination
from spark_ext.bad_rows.names import key_of, pending_folder
from spark_ext.bad_rows.row import METADATA
from spark_ext.errors import ConfigurationError, DataError
from spark_ext.model.offsets import Position, Range, Running, SourceOffset
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import BadRow, Channel
from spark_ext.sources.runtime.conform import conform, sifted
from spark_ext.sources.runtime.reader import ChannelReader, ReadTask
from spark_ext.sources.runtime.stream_reader import ReadAllAvailable
from spark_ext.spark.session import registry
from tests.queries.fakes import FakeQuery
from tests.sources.memory import Memory, Store, registration

DDL = columns("channel string, n bigint")
START, END = SourceOffset("s", 1), SourceOffset("s", 1, {"a": Running(10, begin=0, new=True)})


class Odd(Memory):
    """Odd numbers are bad; others come as text, of which `8` is none."""

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        for n in range(start, end):
            if n % 2:
                self.bad_row(BadRow({"n": n}, f"{n} is odd", str(n)))
            else:
                yield pa.RecordBatch.from_pydict({"channel": [channel.id], "n": ["eight" if n == 8 else str(n)]})


def odd(**options: object) -> Odd:
    source = Odd({"uid": "s", **{name: str(value) for name, value in options.items()}})
    source.store = Store({"a": 10})
    return source


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "registry"))
    entry = registration(state=str(tmp_path / "state"), checkpoint=str(tmp_path / "checkpoint"), lineage=1)
    registry.publish([entry], tmp_path / "registry")
    FakeQuery(tmp_path / "checkpoint").plan(END)
    return tmp_path


def tasks(source: Memory) -> list[ReadTask]:
    reader = ChannelReader(source, DDL)
    return [one for one in reader.partitions(START.to_json(), END.to_json()) if isinstance(one, ReadTask)]


def read(source: Memory, task: ReadTask) -> list[int]:
    reader = pickle.loads(pickle.dumps(ChannelReader(source, DDL)))
    batches = list(reader.read(pickle.loads(pickle.dumps(task))))
    assert all(batch.schema.field("n").type == pa.int64() for batch in batches)
    return [n for batch in batches for n in batch.column("n").to_pylist()]


def pending(job: Path) -> list[Path]:
    return sorted(Path(pending_folder(str(job / "state"), "s")).rglob("*.parquet"))


def test_they_are_left_in_one_file_of_the_range(job: Path) -> None:
    source = odd(on_bad_row="quarantine")
    [task] = tasks(source)
    assert read(source, task) == [0, 2, 4, 6]
    [file] = pending(job)
    found = pq.read_table(file).to_pylist()
    assert [row["raw"] for row in found] == ["1", "3", "5", "7", '{"channel": "a", "n": "eight"}', "9"]
    assert found[4]["position"] == '{"from": 0, "row": 4}', "the fifth row that the source has returned"
    assert pq.read_schema(file).metadata[METADATA] == b"", "the table of the state directory, wherever that is moved"
    before = file.read_bytes()
    read(source, task)
    assert pending(job) == [file] and file.read_bytes() == before, "the same when the range is read again"


def test_a_range_that_is_not_read_to_its_end_leaves_nothing(job: Path) -> None:
    source = odd(on_bad_row="quarantine")
    rows = ChannelReader(source, DDL).read(tasks(source)[0])
    assert isinstance(rows, Generator) and next(rows).num_rows == 1
    rows.close()
    assert pending(job) == []


@pytest.mark.parametrize("shape", ["declared", "of a pyarrow of its own"])
def test_a_null_in_a_column_declared_as_not_null(job: Path, shape: str) -> None:
    """Spark would take it for a zero."""
    strict = columns("channel string, n bigint not null")
    kinds = to_arrow_schema(strict) if shape == "declared" else pa.schema([("channel", pa.string()), ("n", pa.int64())])

    class WithNulls(Memory):
        def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_arrays([pa.array(["a"] * 3), pa.array([1, None, 3])], schema=kinds)

    for mode in ("fail", "quarantine"):
        source = WithNulls({"uid": "s", "on_bad_row": mode})
        source.store = Store({"a": 10})
        rows = ChannelReader(source, strict).read(tasks(source)[0])
        if mode == "fail":
            with pytest.raises(DataError, match="column 'n' is declared as not nullable and has a null"):
                list(rows)
        else:
            assert [n for batch in rows for n in batch.column("n").to_pylist()] == [1, 3]


def test_they_belong_in_the_table_that_the_source_names(job: Path) -> None:
    [task] = tasks(odd(on_bad_row="quarantine", bad_rows_path="/elsewhere", max_bad_rows=7))
    expected = Destination(
        str(job / "state"), str(job / "checkpoint"), "s", "/elsewhere", 1, key_of(END), incarnation=1, most=7
    )
    assert task.bad_rows is not None and replace(task.bad_rows, rules="") == expected


def test_a_start_that_reads_an_epoch_again_leaves_a_note(job: Path) -> None:
    def notes() -> list[str]:
        return sorted(path.name for path in Path(pending_folder(str(job / "state"), "s")).rglob("again-*"))

    reader = ChannelReader(odd(on_bad_row="quarantine"), DDL)
    end = reader.latestOffset(START.to_json(), ReadAllAvailable())
    FakeQuery(job / "other").plan(SourceOffset.from_json(end))
    [task] = reader.partitions(START.to_json(), json.loads(json.dumps(end)))
    assert notes() == [], "it has planned the epoch itself"
    assert isinstance(task, ReadTask) and task.bad_rows is not None
    tasks(odd(on_bad_row="quarantine"))
    tasks(odd(on_bad_row="quarantine", max_bad_rows=3, readers=2))
    assert notes() == [f"again-{task.bad_rows.rules}"], "what is allowed does not decide what is bad"
    tasks(odd())
    assert len(notes()) == 1


def test_a_relative_path_is_that_of_the_users_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert odd(on_bad_row="quarantine", bad_rows_path="bad").options.bad_rows_path == str(tmp_path / "bad")
    with pytest.raises(ConfigurationError, match="takes for something else"):
        odd(on_bad_row="quarantine", bad_rows_path="a%20b")


def test_by_default_the_first_one_fails_the_query(job: Path) -> None:
    source = odd()
    [task] = tasks(source)
    assert task.bad_rows is None
    with pytest.raises(DataError, match="a row is bad: 1 is odd"):
        read(source, task)
    assert pending(job) == []


def test_an_error_of_the_sources_own_is_raised_as_it_is() -> None:
    mine = DataError("it is broken")
    with pytest.raises(DataError) as raised:
        odd().bad_row(BadRow(1, "odd"), mine)
    assert raised.value is mine


def test_outside_a_job_they_cannot_be_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "gone"))
    outside = SourceOffset("s", running={"a": Running(10, begin=0, new=True)})
    reader = ChannelReader(odd(on_bad_row="quarantine"), StructType())
    with pytest.raises(ConfigurationError, match="on_bad_row=quarantine needs a job"):
        reader.partitions(SourceOffset("s").to_json(), outside.to_json())


@pytest.mark.parametrize(
    "options", [{"max_bad_rows": 0}, {"max_bad_share": 0.1}, {"bad_rows_path": "x", "on_bad_row": "fail"}]
)
def test_limits_without_a_quarantine_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="on_bad_row=quarantine"):
        odd(**options)


@pytest.mark.slow(1, "10,000 rows, of which each is cast alone")
def test_a_share_of_the_rows_is_a_share_of_the_bad_ones(job: Path) -> None:
    source = odd(on_bad_row="quarantine")
    source.store = Store({"a": 10_000})
    piece = Range("a", None, 0, 10_000)
    to = Destination(str(job / "state"), str(job / "checkpoint"), "s", "t", 1, key_of(END), 1)
    good = [read(source, ReadTask((piece,), {"a": 0.2}, to)) for _ in range(2)]
    assert good[0] == good[1] and 800 < len(good[0]) < 1_200
    [file] = pending(job)
    assert 800 < pq.read_metadata(file).num_rows < 1_200


@given(st.lists(st.one_of(st.integers(-5, 5).map(str), st.sampled_from(["x", "", "1e99"])), max_size=30))
def test_rows_that_cannot_be_cast_are_found(values: list[str]) -> None:
    bad: list[BadRow] = []
    batch = pa.record_batch({"n": pa.array(values, pa.string())})
    schema = pa.schema([("n", pa.int8())])
    good = sifted(batch, schema, Range("c", None, 3, 9), "s", 100, bad.append)
    is_number = [value not in ("x", "", "1e99") for value in values]
    assert good.schema == schema
    assert good.column("n").to_pylist() == [int(v) for v, number in zip(values, is_number, strict=True) if number]
    rows = [100 + index for index, number in enumerate(is_number) if not number]
    assert [row.position for row in bad] == [{"from": 3, "row": row} for row in rows]


@pytest.mark.parametrize("column", [pa.array([[1]]), None])
def test_what_is_wrong_with_all_rows_is_no_matter_of_one(column: pa.Array | None) -> None:
    batch = pa.record_batch({"other": [1]} if column is None else {"n": column})
    with pytest.raises(DataError, match="rows do not have the declared schema"):
        sifted(batch, pa.schema([("n", pa.date32())]), Range("c", None, 0, 1), "s", 0, lambda row: None)


def test_by_default_a_batch_that_cannot_be_cast_is_refused() -> None:
    batch = pa.record_batch({"n": ["1", "x"]})
    with pytest.raises(DataError, match=r"Failed to parse string: 'x'.*") as refused:
        conform(batch, pa.schema([("n", pa.int8())]), Range("c", None, 3, 9), "s")
    assert refused.value.operator == "source 's', channel 'c', from 3" and "n int8" in refused.value.do


def test_a_batch_in_the_declared_schema_is_not_touched(job: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"channel": ["a"], "n": [1]})

    class Same(Memory):
        def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
            yield batch

    source = Same({"uid": "s", "on_bad_row": "quarantine"})
    source.store = Store({"a": 10})
    assert next(ChannelReader(source, DDL).read(tasks(source)[0])) is batch


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_text_that_is_not_utf8_is_a_bad_row_of_whatever_source(kind: pa.DataType) -> None:
    """Also where nothing has to be cast: Spark would pass the bytes on as text."""
    raw = pa.array([b"a", b"M\xf6hre", b"c"], pa.binary() if kind == pa.string() else pa.large_binary())
    batch = pa.record_batch({"t": pa.Array.from_buffers(kind, 3, raw.buffers())})
    wanted, found = pa.schema([("t", pa.string())]), list[BadRow]()
    piece = Range("a", None, 0, 3)
    with pytest.raises(DataError, match="column 't' has a text that is not UTF-8"):
        conform(batch, wanted, piece, "s")
    assert sifted(batch, wanted, piece, "s", 0, found.append)["t"].to_pylist() == ["a", "c"]
    assert [(row.position["row"], json.loads(row.raw or "")) for row in found] == [(1, {"t": repr(b"M\xf6hre")})]
