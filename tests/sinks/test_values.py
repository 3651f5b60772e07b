"""Each sink, from Arrow to an independent reader: a value is there as it was given, or its row is refused unwritten.

Values are in a form that compares equal only for equal ones, and that has all of Spark's: texts are bytes, times are
numbers since 1970, floats are as `repr` writes them, and maps are lists of pairs.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import types as kinds
from pyspark.sql import types as T

from spark_ext.errors import DataError
from spark_ext.model.commits import Task
from spark_ext.model.identity import Identity
from spark_ext.schemas.parquet_types import has_local_times
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.http_2pc.sink import HttpTwoPhaseCommit
from spark_ext.sinks.kafka_2pc.sink import KafkaTwoPhaseCommit
from spark_ext.sinks.runtime.writer import write_task
from spark_ext.testing.sink_bad_rows import BadRowsKit
from spark_ext.testing.sink_driver import STATES, Driver, SinkTarget, arrow_schema
from tests.conformance.test_commit_delta import DeltaTarget, UpsertTarget
from tests.exchange.exchange_kit import ExchangeTarget
from tests.sinks.files_2pc.files_target import FilesTarget, csv_table

DAY: Final = 86_400_000_000
YEARS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The years 1 to 9999, in microseconds."""

# -- values -----------------------------------------------------------------------------------------------------------

TEXTS: Final = ["", "\0", 'a\0"b', "null", "\0null\0", "a\r\nb\n", '"', "\\", ",;\t", "\u2028\x85\x1c", "\ufeff"]
LONG: Final = ["é" * 9_000, "x" * 254, "__HIVE_DEFAULT_PARTITION__"]
RAW: Final = [b"\xff", b"M\xf6hre", b"\xed\xa0\x80", b"\xc0\x80", b"ok\xe2\x82"]
"""No text: a byte that UTF-8 never has, Latin-1, a lone surrogate, an overlong NUL, an end that is missing."""

texts = st.one_of(st.sampled_from(TEXTS + LONG), st.text(max_size=8)).map(str.encode) | st.sampled_from(RAW)


def integers(bits: int) -> st.SearchStrategy[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.sampled_from([low, high, 0, -1]) | st.integers(low, high)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    numbers = st.sampled_from([most, -most, 0, 1, -1]) | st.integers(-most, most)
    return numbers.map(lambda number: Decimal(f"{number}E-{scale}"))


def floats(width: Any, least: float) -> st.SearchStrategy[str]:
    return (st.sampled_from([-0.0, least]) | st.floats(width=width)).map(repr)


def times(unit: int, bits: int) -> st.SearchStrategy[int]:
    """Spark's first and last, those around the years 1 and 9999, one before 1582, and any other."""
    low, high = YEARS[0] // unit, YEARS[1] // unit
    return st.sampled_from([low, high, low - 1, high + 1, -141_428 * DAY // unit, 0, -1]) | integers(bits)


SIMPLE: Final[list[tuple[T.DataType, st.SearchStrategy[Any]]]] = [
    (T.StringType(), texts),
    (T.BinaryType(), st.binary(max_size=9)),
    (T.BooleanType(), st.booleans()),
    (T.ByteType(), integers(8)),
    (T.ShortType(), integers(16)),
    (T.IntegerType(), integers(32)),
    (T.LongType(), integers(64)),
    (T.FloatType(), floats(32, 2.0**-149)),
    (T.DoubleType(), floats(64, 5e-324)),
    (T.DecimalType(7, 2), decimals(7, 2)),
    (T.DecimalType(38, 0), decimals(38, 0)),
    (T.DecimalType(38, 38), decimals(38, 38)),
    (T.DateType(), times(DAY, 32)),
    (T.TimestampType(), times(1, 64)),
    (T.TimestampNTZType(), times(1, 64)),
]

Column = tuple[T.DataType, T.DataType, list[Any]]


@st.composite
def columns(draw: st.DrawFn, nested: bool = True) -> Column:
    """A simple type, one that is made of it, and some values of that."""
    simple, values = draw(st.sampled_from(SIMPLE))
    kind, values = simple, st.none() | values
    shape = draw(st.sampled_from(["", "array", "struct", "map", "keys"])) if nested else ""
    if shape == "array":
        kind, values = T.ArrayType(kind), st.none() | st.lists(values, max_size=2)
    elif shape == "struct":
        values = st.none() | st.fixed_dictionaries({"a": values, "b": st.lists(values, max_size=2)})
        kind = T.StructType([T.StructField("a", kind), T.StructField("b", T.ArrayType(kind))])
    elif shape:
        key = texts if shape == "keys" else st.sampled_from([b"k", b"l"])
        values = st.none() | st.lists(st.tuples(key, values), max_size=2, unique_by=lambda item: item[0])
        kind = T.MapType(T.StringType(), kind)
    return simple, kind, draw(st.lists(values, min_size=1, max_size=3))


def array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """As Spark makes it, which does not look into texts."""
    mask = pa.array([value is None for value in values], pa.bool_())
    if kinds.is_string(kind):
        raw = pa.array(values, pa.binary())
        return pa.Array.from_buffers(kind, len(raw), raw.buffers(), raw.null_count)
    if kinds.is_timestamp(kind) or kinds.is_date(kind):
        return pa.array(values, pa.int32() if kinds.is_date(kind) else pa.int64()).cast(kind)
    if kinds.is_floating(kind):
        return pa.array([None if value is None else float(value) for value in values], kind)
    if kinds.is_struct(kind):
        inner = [array([(value or {}).get(field.name) for value in values], field.type) for field in kind]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=mask)
    if kinds.is_nested(kind):
        flat = [item for value in values for item in value or ()]
        ends = pc.cumulative_sum(pa.array([0, *(len(value or ()) for value in values)], pa.int32()))
        if kinds.is_list(kind):
            return pa.ListArray.from_arrays(ends, array(flat, kind.value_type), type=kind, mask=mask)
        keys, items = array([key for key, _ in flat], kind.key_type), array([item for _, item in flat], kind.item_type)
        return pa.MapArray.from_arrays(ends, keys, items, type=kind, mask=mask)
    return pa.array(values, kind)


def batch_of(kind: T.DataType, values: list[Any]) -> tuple[T.StructType, pa.RecordBatch]:
    schema = T.StructType([T.StructField("id", T.LongType()), T.StructField("v", kind)])
    wanted = arrow_schema(schema)
    return schema, pa.RecordBatch.from_arrays(
        [pa.array(range(len(values))), array(values, wanted.field("v").type)], schema=wanted
    )


def plain(scalar: pa.Scalar) -> Any:
    """A value from Arrow."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if kinds.is_struct(kind):
        return {field.name: plain(scalar[field.name]) for field in kind}
    if kinds.is_map(kind):
        return [(plain(entry[0]), plain(entry[1])) for entry in scalar.values]
    if kinds.is_nested(kind):
        return [plain(item) for item in scalar.values]
    if hasattr(scalar, "as_buffer"):
        return scalar.as_buffer().to_pybytes()
    if kinds.is_floating(kind):
        return repr(scalar.as_py())
    return scalar.value if kinds.is_temporal(kind) else scalar.as_py()


def from_json(kind: T.DataType, value: Any) -> Any:
    """A value from what the pages say of JSON."""
    if value is None or isinstance(kind, (T.BooleanType, T.IntegralType)):
        return value
    if isinstance(kind, T.StructType):
        return {field.name: from_json(field.dataType, value[field.name]) for field in kind}
    if isinstance(kind, T.ArrayType):
        return [from_json(kind.elementType, item) for item in value]
    if isinstance(kind, T.MapType):
        return [(key.encode(), from_json(kind.valueType, item)) for key, item in value.items()]
    if isinstance(kind, T.DateType):
        return date.fromisoformat(value).toordinal() - 719_163
    if isinstance(kind, (T.TimestampType, T.TimestampNTZType)):
        assert value.endswith("Z") == isinstance(kind, T.TimestampType)
        passed = datetime.fromisoformat(value.removesuffix("Z")) - datetime(1970, 1, 1)
        return passed.days * DAY + passed.seconds * 1_000_000 + passed.microseconds
    if isinstance(kind, T.FloatType):
        return repr(struct.unpack("f", struct.pack("f", float(value)))[0])
    if isinstance(kind, T.DoubleType):
        return repr(float(value))
    if isinstance(kind, T.DecimalType):
        return Decimal(value)
    return base64.b64decode(value) if isinstance(kind, T.BinaryType) else value.encode()


def from_text(kind: T.DataType, text: str) -> Any:
    """A value from the text of a partition."""
    simple = text == "true" if isinstance(kind, T.BooleanType) else text
    return from_json(kind, int(text) if isinstance(kind, T.IntegralType) else simple)


# -- sinks ------------------------------------------------------------------------------------------------------------

Put = Callable[[Path, T.StructType, pa.RecordBatch], list[Any]]
"""Has a sink store rows in an empty folder, and reads the column `v` by somebody else's reader."""


def committed(target: SinkTarget, schema: T.StructType, batch: pa.RecordBatch, **options: str) -> None:
    driver = Driver(target, incarnation=0, schema=schema, options={"commit_attempts": "1", **options})
    driver.commit([driver.write_batches(0, iter([batch]))], 0)


def delta(kind: type[DeltaTarget]) -> Put:
    def put(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
        committed(kind(folder), schema, batch)
        return [plain(value) for value in DeltaTable(folder).to_pyarrow_table().sort_by("id")["v"]]

    return put


def by_partition(found: list[tuple[Path, str | None]], schema: T.StructType) -> list[Any]:
    """The values of rows, from the files in which they are and the texts of their partitions."""
    values = {
        number: None if text is None else from_text(schema["v"].dataType, text)
        for file, text in found
        for number in pq.ParquetFile(file).read()["id"].to_pylist()
    }
    return [values[number] for number in sorted(values)]


def delta_partitions(kind: type[DeltaTarget]) -> Put:
    def put(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
        committed(kind(folder), schema, batch, partition_by="v")
        actions = [json.loads(line) for entry in folder.glob("_delta_log/*.json") for line in lines(entry.read_text())]
        adds = [action["add"] for action in actions if "add" in action]
        return by_partition([(folder / unquote(add["path"]), add["partitionValues"]["v"]) for add in adds], schema)

    return put


def folders(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
    committed(FilesTarget(folder, "parquet"), schema, batch, partition_by="v")
    files = [(file, unquote(file.parent.name.removeprefix("v="))) for file in folder.glob("_files/*/part-*")]
    return by_partition(
        [(file, None if text == "__HIVE_DEFAULT_PARTITION__" else text) for file, text in files], schema
    )


def exchange(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
    committed(ExchangeTarget(folder, partitions="1"), schema, batch)
    (file,) = folder.glob("out/data/*.arrow")
    return [plain(value) for value in pa.ipc.open_file(file).read_all()["v"]]


def delta_exchange(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
    committed(ExchangeTarget(folder, partitions="1", kind="delta"), schema, batch)
    return [plain(value) for value in pq.read_table(next(folder.glob("out/data/*.parquet")))["v"]]


def files(form: str) -> Put:
    def put(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
        committed(FilesTarget(folder, form), schema, batch)
        (file,) = (folder / "_files").iterdir()
        if form == "json":
            return [from_json(schema["v"].dataType, json.loads(line)["v"]) for line in lines(file.read_text("utf-8"))]
        table = pq.read_table(file) if form == "parquet" else csv_table(file, batch.schema)
        return [plain(value) for value in table["v"]]

    return put


def task(sink: TwoPhaseCommitSink, schema: T.StructType, batch: pa.RecordBatch) -> None:
    write_task(sink, schema, iter([batch]), Task("out", "q", 0, 0, 0, 0, 0), Identity())


def http(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
    """The lines of the outbox, which are sent as they are."""
    task(HttpTwoPhaseCommit({"uid": "out", "url": "http://127.0.0.1:1", "outbox": str(folder)}), schema, batch)
    (file,) = folder.rglob("part-*.parquet")
    found = [line for piece in pq.ParquetFile(file).read()["lines"].to_pylist() for line in lines(piece)]
    return [from_json(schema["v"].dataType, json.loads(line)["v"]) for line in found]


def kafka(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
    """The messages as they are staged, which are sent as they are."""
    given = {"uid": "out", "topic": "t", "bootstrap_servers": "127.0.0.1:1", "staging": str(folder)}
    messages = T.StructType([T.StructField("value", schema["v"].dataType)])
    task(KafkaTwoPhaseCommit(given), messages, batch.select(["v"]).rename_columns(["value"]))
    (file,) = folder.rglob("*.arrow")
    return [plain(value) for value in pa.ipc.open_stream(file).read_all()["value"]]


def lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


# -- what is refused --------------------------------------------------------------------------------------------------

Refused = Callable[[T.DataType, Any], bool]


def leaves(simple: T.DataType, value: Any) -> Iterator[tuple[T.DataType, Any]]:
    """The simple values in a value, none of them null; keys are texts."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from leaves(simple, item)
    elif isinstance(value, tuple):
        yield T.StringType(), value[0]
        yield from leaves(simple, value[1])
    elif value is not None:
        yield simple, value


def no_text(kind: T.DataType, value: Any) -> bool:
    return isinstance(kind, T.StringType) and value.decode(errors="replace").encode() != value


def no_iso(kind: T.DataType, value: Any) -> bool:
    """JSON and CSV have no such time, and readers cannot read the bounds that delta-rs notes of it in a merge."""
    far = isinstance(kind, (T.DateType, T.TimestampType, T.TimestampNTZType)) and (
        not YEARS[0] <= value * (DAY if isinstance(kind, T.DateType) else 1) <= YEARS[1]
    )
    return far or no_text(kind, value)


def no_csv(kind: T.DataType, value: Any) -> bool:
    """Readers leave NUL out."""
    return no_iso(kind, value) or (isinstance(kind, T.StringType) and b"\0" in value)


def no_partition(kind: T.DataType, value: Any) -> bool:
    """Readers take it for null, or it has no text."""
    return no_iso(kind, value) or (isinstance(kind, T.StringType) and value in (b"", b"__HIVE_DEFAULT_PARTITION__"))


def no_folder(kind: T.DataType, value: Any) -> bool:
    """A name has 255 bytes: `v=` and the value."""
    return no_partition(kind, value) or (isinstance(kind, T.StringType) and len(value) > 253)


def no_folder_of_delta_rs(kind: T.DataType, value: Any) -> bool:
    """It writes out each byte that is not plain, and floats without exponents."""
    spelled = quote(value) if isinstance(kind, T.StringType) else ""
    spelled = format(Decimal(value), "f") if isinstance(kind, (T.FloatType, T.DoubleType)) else spelled
    return no_partition(kind, value) or len(spelled) > 253


SINKS: Final[dict[str, tuple[Put, Refused]]] = {
    "delta": (delta(DeltaTarget), no_text),
    "upsert": (delta(UpsertTarget), no_iso),
    "exchange": (exchange, no_text),
    "delta exchange": (delta_exchange, no_text),
    "parquet": (files("parquet"), no_text),
    "json": (files("json"), no_iso),
    "csv": (files("csv"), no_csv),
    "http": (http, no_iso),
    "kafka": (kafka, no_text),
    "delta partition": (delta_partitions(DeltaTarget), no_partition),
    "upsert partition": (delta_partitions(UpsertTarget), no_folder_of_delta_rs),
    "parquet partition": (folders, no_folder),
}
"""For each sink, how rows come into it, and the values that it refuses: all others it has to store."""


def takes(name: str, kind: T.DataType) -> bool:
    """Whether the sink takes a type; others it refuses before the start."""
    if name == "kafka":
        return isinstance(kind, (T.StringType, T.BinaryType))
    if name == "upsert partition" and (
        (isinstance(kind, T.DecimalType) and kind.scale) or isinstance(kind, T.TimestampType)
    ):
        return False  # delta-rs changes such values
    if "partition" in name or name == "csv":
        return not isinstance(kind, T.BinaryType)
    return name not in ("delta", "delta exchange", "upsert") or not has_local_times(kind, only_in_maps=True)


@pytest.mark.parametrize("name", SINKS)
@settings(max_examples=40)
@given(data=st.data())
def test_a_value_is_read_as_it_was_given_or_refused_before_it_is_written(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    put, refused = SINKS[name]
    nested = "partition" not in name and name not in ("csv", "kafka")
    simple, kind, values = data.draw(columns(nested).filter(lambda column: takes(name, column[1])))
    folder = tmp_path_factory.mktemp("values") / "t"
    if any(refused(*leaf) for value in values for leaf in leaves(simple, value)):
        with pytest.raises(DataError):
            put(folder, *batch_of(kind, values))
        assert [*folder.rglob("*.json"), *folder.rglob("*.jsonl")] == [], "there is no log of a commit"
    else:
        assert put(folder, *batch_of(kind, values)) == values


@pytest.mark.parametrize("form", ["delta", "json"])
def test_a_row_with_bytes_that_are_no_text_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """At any depth, and it alone, though its neighbours are in the same array; the bytes can be read in the table."""
    monkeypatch.setenv(STATES, str(tmp_path / "states"))
    schema, batch = batch_of(T.ArrayType(T.StringType()), [[b"a"], [b"b", b"M\xf6hre"], None])
    target = DeltaTarget(tmp_path / "t") if form == "delta" else FilesTarget(tmp_path / "t", form)
    kit = BadRowsKit(target, schema, partition_by="")
    kit.driver().claim()
    kit.driver().commit([kit.driver().write_batches(0, iter([batch]))], 0)
    kit.settle(0)
    assert target.ids() == [0, 2]
    (bad,) = kit.found()
    assert bad["reason"] == "column 'v.element' has a text that is not UTF-8"
    assert json.loads(bad["position"]) == {"partition": 0, "row": 1}
    assert json.loads(bad["raw"]) == {"id": 1, "v": ["b", repr(b"M\xf6hre")]}
