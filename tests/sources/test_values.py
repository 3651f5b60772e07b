"""Each source, from what an independent writer has made into Arrow: what `docs/values.md` says of each value."""

import io
import json
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_from_bytes

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from spark_ext.clients.pinned_schemas import Pinned
from spark_ext.errors import ConfigurationError, DataError
from spark_ext.ingest import typed_rows
from spark_ext.schemas.arrow import arrow_type
from spark_ext.sources import registered
from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from spark_ext.sources.exchange import ExchangeSource
from spark_ext.sources.files.source import Files
from spark_ext.testing.source_kit import SourceRun
from tests.exchange.exchange_kit import ExchangeTarget
from tests.schemas.test_protobuf import made as protobuf
from tests.sinks.test_values import committed
from tests.sources.files.files_kit import needs_newer_pyarrow
from tests.values import table
from tests.values.cells import Unsayable, check_read, marks
from tests.values.forms import DAY, batch_of, columns, leaves, plain
from tests.values.table import ARRAYS, BAD, ODD, SAME, TYPES, VALUES, Row

Found = tuple[dict[int, Any], int]
"""Values by the numbers of their rows, and how many rows were bad."""
Get = Callable[[Path, T.DataType, list[Any]], Found]
"""Has an independent writer store values, and reads them by a source."""


# -- files ------------------------------------------------------------------------------------------------------------


def read(path: Path, kind: T.DataType, **options: str) -> Found:
    schema = T.StructType([T.StructField("id", T.LongType()), T.StructField("v", kind)])
    return run(Files, {"path": str(path), **options}, schema)


def day(days: int) -> str:
    """As Spark writes it: years outside 0 to 9999 with a sign, the calendar repeats every 400 years."""
    cycles, rest = divmod(days + 719_528, 146_097)
    one = date(2000, 1, 1) + timedelta(rest)
    year = one.year - 2000 + 400 * cycles
    return f"{'+' if year > 9999 else '-' if year < 0 else ''}{abs(year):04}-{one:%m-%d}"


def moment(value: int, zone: str) -> str:
    days, rest = divmod(value, DAY)
    seconds, micros = divmod(rest, 1_000_000)
    return f"{day(days)}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}{zone}"


def spelled(kind: T.DataType, value: Any) -> str:
    """A value as a text; a nested one is any text, as its type is refused."""
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    if isinstance(value, str):
        return value  # a float, or a value that no type has
    if isinstance(kind, T.DateType):
        return day(value)
    if isinstance(kind, (T.TimestampType, T.TimestampNTZType)):
        return moment(value, "Z" if isinstance(kind, T.TimestampType) else "")
    return str(value).lower() if isinstance(kind, T.BooleanType) else str(value)


def of_csv(folder: Path, kind: T.DataType, values: list[Any]) -> Found:
    """Texts with line ends need `multiline`."""
    rows = ""
    for n, value in enumerate(values):
        text = "" if value is None else spelled(kind, value)
        rows += f"{n}," + ('"' + text.replace('"', '""') + '"' if isinstance(value, bytes) else text) + "\n"
    (folder / "x.csv").write_bytes(rows.encode(errors="surrogateescape"))
    lines = any(isinstance(value, bytes) and set(value) & set(b"\r\n") for value in values)
    return read(folder / "x.csv", kind, multiline=str(lines).lower())


JSON_FLOATS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def as_json(kind: T.DataType, value: Any) -> str:
    """A surrogate stays one: it is escaped."""
    if value is None:
        return "null"
    if isinstance(kind, T.StructType):
        return "{" + ", ".join(f'"{one.name}": {as_json(one.dataType, value[one.name])}' for one in kind) + "}"
    if isinstance(kind, T.ArrayType):
        return f"[{', '.join(as_json(kind.elementType, one) for one in value)}]"
    if isinstance(kind, T.MapType):
        return "{}"
    if isinstance(kind, T.BinaryType):
        return '""'
    text = spelled(kind, value)
    if isinstance(kind, T.StringType):
        # Python escapes with surrogates what is not ASCII; bytes that are no text are written as they are.
        valid = value.decode(errors="replace").encode() == value
        return json.dumps(text) if valid else f'"{text}"'
    quoted = isinstance(kind, (T.DateType, T.TimestampType, T.TimestampNTZType))
    return f'"{text}"' if quoted else JSON_FLOATS.get(text, text)


def of_json(folder: Path, kind: T.DataType, values: list[Any]) -> Found:
    rows = "".join(f'{{"id": {n}, "v": {as_json(kind, value)}}}\n' for n, value in enumerate(values))
    (folder / "x.json").write_bytes(rows.encode(errors="surrogateescape"))
    return read(folder / "x.json", kind)


def of_http_ingest(_: Path, kind: T.DataType, values: list[Any]) -> Found:
    """Bodies of events, as an inbox with declared columns has them."""
    schema = T.StructType([T.StructField("id", T.LongType()), T.StructField("v", kind)])
    typed_rows.check_columns(schema, "inbox")
    texts = [f'{{"id": {n}, "v": {as_json(kind, value)}}}' for n, value in enumerate(values)]
    why: dict[int, str] = {}
    rows = typed_rows.rows_of([text.encode(errors="surrogateescape") for text in texts], schema, why.__setitem__)
    return {n.as_py(): plain(value) for n, value in zip(rows["id"], rows["v"], strict=True)}, len(why)


def of_folder(folder: Path, kind: T.DataType, values: list[Any]) -> Found:
    """A value in the name of a folder; null is the folder that Hive names so."""
    for n, value in enumerate(values):
        name = "__HIVE_DEFAULT_PARTITION__"
        if value is not None:
            name = quote_from_bytes(spelled(kind, value).encode(errors="surrogateescape"), safe=" ")
        if len(name) > 253:
            raise Unsayable
        (folder / f"v={name}").mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": [n]}), folder / f"v={name}" / f"{n}.parquet")
    return read(folder, kind)


def rows_of(kind: T.DataType, values: list[Any]) -> pa.Table:
    """As a file with types has them; a value that no type of Spark has is in a wider type of the file."""
    odd = any(isinstance(value, str) for value in values)
    if not odd or ("1e39" not in values and isinstance(kind, (T.FloatType, T.DoubleType))):
        _, batch = batch_of(kind, values)
        if not batch.num_columns:
            raise Unsayable
        return pa.Table.from_batches([batch])
    wide: pa.DataType
    made: list[Any]
    if isinstance(kind, T.DecimalType):
        wide = pa.decimal256(76, 0) if kind.scale == 0 else pa.decimal128(38, 6)
        made = [Decimal(value) for value in values]
    elif isinstance(kind, T.IntegralType):
        wide, made = pa.uint64() if isinstance(kind, T.LongType) else pa.int64(), [int(value) for value in values]
    elif isinstance(kind, T.FloatType):
        wide, made = pa.float64(), [float(value) for value in values]
    elif table.NANOSECONDS in values:
        wide, made = pa.timestamp("ns", arrow_type(kind).tz), [1]
    else:
        raise Unsayable
    try:
        return pa.table({"id": range(len(made)), "v": pa.array(made, wide)})
    except (pa.ArrowInvalid, OverflowError):
        raise Unsayable from None


def of_parquet(folder: Path, kind: T.DataType, values: list[Any]) -> Found:
    try:
        pq.write_table(rows_of(kind, values), folder / "x.parquet")
    except pa.ArrowNotImplementedError:
        raise Unsayable from None
    return read(folder / "x.parquet", kind)


def of_orc(folder: Path, kind: T.DataType, values: list[Any]) -> Found:
    rows = rows_of(kind, values)
    if needs_newer_pyarrow(rows):
        pytest.skip("this pyarrow reads times of ORC files wrongly, and is refused for them")
    try:
        orc.write_table(rows, folder / "x.orc")
    except pa.ArrowException:
        raise Unsayable from None
    return read(folder / "x.orc", kind)


# -- Avro, Protobuf and JSON, in files and in messages ----------------------------------------------------------------

AVRO: Final[dict[type[T.DataType], Any]] = {
    T.IntegerType: "int", T.LongType: "long", T.FloatType: "float", T.DoubleType: "double", T.BooleanType: "boolean",
    T.StringType: "string", T.BinaryType: "bytes", T.DateType: {"type": "int", "logicalType": "date"},
    T.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    T.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}  # fmt: skip
ODD_TYPES: Final = [kind for row in TYPES for kind in row.examples]
MARK: Final = "@"
"""Stands for each byte of a text until it is written: fastavro writes UTF-8 alone."""


def avro(kind: T.DataType) -> Any:
    if kind in ODD_TYPES:
        raise Unsayable
    if isinstance(kind, T.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if isinstance(kind, T.ArrayType):
        return {"type": "array", "items": ["null", avro(kind.elementType)]}
    if isinstance(kind, T.StructType):
        fields = [{"name": one.name, "type": ["null", avro(one.dataType)]} for one in kind]
        return {"type": "record", "name": "R", "fields": fields}
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        return {"type": "map", "values": ["null", avro(kind.valueType)]}
    if type(kind) not in AVRO:
        raise Unsayable
    return AVRO[type(kind)]


def for_avro(kind: T.DataType, value: Any, marks: list[tuple[str, bytes]]) -> Any:
    """As fastavro takes it. Texts that are none are marks, which have to be replaced in what it writes."""
    if isinstance(value, str) and not isinstance(kind, (T.FloatType, T.DoubleType)):
        raise Unsayable
    if isinstance(value, bytes) and isinstance(kind, T.StringType):
        try:
            return value.decode()
        except UnicodeDecodeError:
            marks.append((MARK * len(value), value))
            return MARK * len(value)
    if isinstance(value, dict):
        return {one.name: for_avro(one.dataType, value[one.name], marks) for one in kind}  # type: ignore[attr-defined]
    if isinstance(value, list) and isinstance(kind, T.MapType):
        keys = [for_avro(kind.keyType, key, marks) for key, _ in value]
        return dict(zip(keys, [for_avro(kind.valueType, item, marks) for _, item in value], strict=True))
    if isinstance(value, list):
        return [for_avro(kind.elementType, one, marks) for one in value]  # type: ignore[attr-defined]
    if isinstance(kind, (T.FloatType, T.DoubleType)) and value is not None:
        if value == "1e39":
            raise Unsayable
        return float(value)
    return value


def replaced(content: bytes, marks: list[tuple[str, bytes]]) -> bytes:
    for mark, value in marks:
        content = content.replace(mark.encode(), value, 1)
    return content


def of_avro(folder: Path, kind: T.DataType, values: list[Any]) -> Found:
    fields = [{"name": "id", "type": "long"}, {"name": "v", "type": ["null", avro(kind)]}]
    marks: list[tuple[str, bytes]] = []
    rows = [{"id": n, "v": for_avro(kind, value, marks)} for n, value in enumerate(values)]
    out = io.BytesIO()
    fastavro.writer(out, {"type": "record", "name": "Row", "fields": fields}, rows)
    (folder / "x.avro").write_bytes(replaced(out.getvalue(), marks))
    return read(folder / "x.avro", kind)


def decoded(decoder: registered.Decoder, contents: list[bytes | None]) -> Found:
    why: dict[int, str] = {}
    column = decoder.column(contents, why.setdefault)
    return {n: plain(value) for n, value in enumerate(column) if n not in why}, len(why)


def of_kafka_avro(_: Path, kind: T.DataType, values: list[Any]) -> Found:
    schema, contents = avro(kind), list[bytes | None]()
    for value in values:
        marks: list[tuple[str, bytes]] = []
        out = io.BytesIO()
        if value is not None:
            fastavro.schemaless_writer(out, schema, for_avro(kind, value, marks))
        contents.append(b"\0\0\0\0\1" + replaced(out.getvalue(), marks) if value is not None else None)
    pinned = Pinned("avro", "s", 1, 1, json.dumps(schema))
    return decoded(registered.Avro(pinned, lambda: pytest.fail("no registry"), "test"), contents)


def of_kafka_json(_: Path, kind: T.DataType, values: list[Any]) -> Found:
    if not isinstance(kind, T.StringType) or kind in ODD_TYPES:
        raise Unsayable
    texts = [None if value is None else as_json(kind, value).encode(errors="surrogateescape") for value in values]
    good, bad = decoded(registered.JsonText(), texts)
    return {n: text if text is None else json.loads(text).encode() for n, text in good.items()}, bad


def of_kafka_fields(_: Path, kind: T.DataType, values: list[Any]) -> Found:
    fields = T.StructType([T.StructField("v", kind)])
    typed_rows.check_columns(fields, "source")
    texts = [f'{{"v": {as_json(kind, value)}}}'.encode(errors="surrogateescape") for value in values]
    decoder = registered.JsonFields(fields)
    found = decoder.column([None, *texts], (bad := dict[int, str]()).__setitem__)
    return {n: plain(found.field(0)[n + 1]) for n in range(len(values)) if n + 1 not in bad}, len(bad)


PROTO: Final[dict[type[T.DataType], str]] = {
    T.IntegerType: "int32", T.LongType: "int64", T.FloatType: "float", T.DoubleType: "double", T.BooleanType: "bool",
    T.StringType: "string", T.BinaryType: "bytes", T.TimestampType: "google.protobuf.Timestamp",
}  # fmt: skip


def proto(kind: T.DataType, name: str = "v", number: int = 1) -> str:
    if isinstance(kind, (T.ArrayType, T.MapType, T.StructType)) and "timestamp" in kind.simpleString():
        raise Unsayable  # left to the simple type
    if isinstance(kind, T.ArrayType):
        return f"repeated {proto_type(kind.elementType)} {name} = {number};"
    if isinstance(kind, T.MapType):
        return f"map<{proto_type(kind.keyType)}, {proto_type(kind.valueType)}> {name} = {number};"
    if isinstance(kind, T.StructType):
        inner = " ".join(proto(one.dataType, one.name, n) for n, one in enumerate(kind, 1))
        return f"message S {{ {inner} }} S {name} = {number};"
    return f"optional {proto_type(kind)} {name} = {number};"


def proto_type(kind: T.DataType) -> str:
    if kind in ODD_TYPES or type(kind) not in PROTO:
        raise Unsayable
    return PROTO[type(kind)]


def of_kafka_protobuf(_: Path, kind: T.DataType, values: list[Any]) -> Found:
    text = f'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message M {{ {proto(kind)} }}'
    decoder, made = protobuf(text)
    contents = list[bytes | None]()
    for value in values:
        marks: list[tuple[str, bytes]] = []
        given = for_avro(kind, value, marks)
        given = without_nulls(kind, given)
        message = made() if value is None or isinstance(kind, T.TimestampType) else made(v=given)
        if isinstance(kind, T.TimestampType) and value is not None:
            message.v.seconds, micros = divmod(value, 1_000_000)
            message.v.nanos = micros * 1000
        contents.append(b"\0\0\0\0\1\0" + replaced(message.SerializeToString(), marks))
    good, bad = decoded(decoder, contents)
    found = {n: value["v"] for n, value in good.items()}
    if isinstance(kind, T.MapType):  # its pairs may come in any order
        for n, pairs in found.items():
            order = list(dict(values[n] or ()))
            found[n] = pairs and sorted(pairs, key=lambda pair: order.index(pair[0]))
    return found, bad


def without_nulls(kind: T.DataType, value: Any) -> Any:
    """A field that is not set is null; arrays, maps and what is in them are never."""
    if isinstance(kind, T.StructType):
        return value and {
            one.name: value[one.name] for one in kind if without_nulls(one.dataType, value[one.name]) is not None
        }
    if not isinstance(kind, (T.ArrayType, T.MapType)):
        return value
    if value is None or None in (value.values() if isinstance(value, dict) else value):
        raise Unsayable
    return value


# -- tables and exchanges ---------------------------------------------------------------------------------------------


def run(kind: Any, options: dict[str, str], schema: T.StructType | None = None) -> Found:
    """All that is there, in one epoch."""
    made = SourceRun(kind, {"uid": "in", "on_bad_row": "quarantine", **options}, schema=schema, limits=[{}])
    made.epoch()
    rows = made.trace.all_rows()
    good = {n.as_py(): plain(value) for n, value in zip(rows["id"], rows["v"], strict=True)}
    return good, sum(map(len, made.trace.bad_rows.values()))


def refuse_odd(kind: T.DataType, values: list[Any]) -> None:
    """Tables and exchanges have Spark's own types."""
    odd = any(isinstance(value, str) for value in values)
    if "1e39" in values or (odd and not isinstance(kind, (T.FloatType, T.DoubleType))):
        raise Unsayable


def delta_table(path: Path, rows: pa.Table) -> None:
    """A table that others have made, whose file no library has looked into."""
    schema = Schema.from_arrow(rows.schema)
    DeltaTable.create(path, schema)
    pq.write_table(rows, path / "x.parquet")
    add = AddAction("x.parquet", (path / "x.parquet").stat().st_size, {}, 0, True, "{}")
    DeltaTable(path).create_write_transaction([add], "append", schema)


def of_delta(**options: str) -> Get:
    def get(folder: Path, kind: T.DataType, values: list[Any]) -> Found:
        refuse_odd(kind, values)
        variant = isinstance(kind, T.VariantType)
        made = rows_of(T.StringType(), [b"x"]) if variant else rows_of(kind, values)
        try:
            delta_table(folder / "t", made)
        except Exception:  # delta-rs has no class for it
            raise Unsayable from None
        if variant:
            declare_variant(folder / "t/_delta_log/00000000000000000000.json")
        return run(DeltaSnapshot, {"path": str(folder / "t"), **options})

    return get


def declare_variant(log: Path) -> None:
    """As Spark does, which delta-rs cannot."""
    features = ["variantType"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    text = log.read_text().replace('"type\\":\\"string', '"type\\":\\"variant')
    log.write_text(text.replace('"minReaderVersion":1,"minWriterVersion":2', json.dumps(protocol)[1:-1]))


def of_exchange(kind: str) -> Get:
    """The sink refuses what an exchange cannot have."""

    def get(folder: Path, of: T.DataType, values: list[Any]) -> Found:
        refuse_odd(of, values)
        try:
            committed(ExchangeTarget(folder, partitions="1", kind=kind), *batch_of(of, values))
        except (ConfigurationError, DataError):
            raise Unsayable from None
        return run(ExchangeSource, {"path": str(folder / "out"), "kind": kind})

    return get


SOURCES: Final[dict[str, Get]] = {
    "files, CSV": of_csv, "files, JSON": of_json, "files, Parquet": of_parquet, "files, ORC": of_orc,
    "files, Avro": of_avro, "files, folder": of_folder, "delta_snapshot": of_delta(),
    "delta_snapshot, follow": of_delta(follow="true", starting_version="0", poll_interval="0"),
    "http_ingest": of_http_ingest,
    "exchange": of_exchange("arrow"), "exchange, Delta": of_exchange("delta"), "kafka_range, JSON": of_kafka_json,
    "kafka_range, JSON fields": of_kafka_fields,
    "kafka_range, Avro": of_kafka_avro, "kafka_range, Protobuf": of_kafka_protobuf,
}  # fmt: skip
"""The columns of the table that need no server."""

CELLS = [
    pytest.param(name, row, id=f"{name}: {row.type} {row.what}", marks=marks(name))
    for name in SOURCES
    for row in (*VALUES, *ODD, *TYPES)
]


@pytest.mark.parametrize(("name", "row"), CELLS)
def test_each_cell_is_what_the_source_does(tmp_path: Path, name: str, row: Row) -> None:
    numbers = count()

    def get(kind: T.DataType, values: list[Any]) -> Found:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return SOURCES[name](folder, kind, values)

    check_read(name, row, get)


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in SOURCES])
@settings(max_examples=settings().max_examples // 4)  # each writes a file or more
@given(data=st.data())
def test_a_value_is_in_arrow_as_it_was_given_or_its_row_is_bad(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    cells = table.SOURCES[name]
    nested = cells.get(ARRAYS, SAME) == SAME
    simple, kind, values = data.draw(columns(nested).filter(lambda column: table.takes(cells, column[0], column[1])))
    words = [set().union(*(table.words(cells, *leaf) for leaf in leaves(simple, value))) for value in values]
    expected = {n: None if "null" in words[n] else value for n, value in enumerate(values) if BAD not in words[n]}
    try:
        good, bad = SOURCES[name](tmp_path_factory.mktemp("values"), kind, values)
    except Unsayable:
        return
    except DataError:
        assert len(expected) < len(values)
    else:
        assert (good, bad) == (expected, len(values) - len(expected))
