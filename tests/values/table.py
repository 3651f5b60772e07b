"""What each source and sink does with each kind of value: the table of `docs/values.md`, and what its tests expect.

A row is a kind of value, with hostile examples. A column is a source or a sink; what is not said of it is `SAME`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

from pyspark.sql import types as T

from tests.values.forms import DAY, YEARS

SAME: Final = "="
BAD: Final = "bad row"
START: Final = "refused"
NONE: Final = "–"
LEGEND: Final = {
    SAME: "the value passes unchanged",
    BAD: "refused before anything of its epoch is visible: `DATA`, or put aside as a [bad row](bad-rows.md)",
    START: "the column is refused by name before the first row is read or written",
    NONE: "the format, the server or the type has no such value",
    "another word": "the value passes, as that",
}


@dataclass(frozen=True, eq=False)
class Row:
    type: str
    what: str
    examples: Mapping[T.DataType, list[Any]]
    holds: Callable[[Any], bool] = lambda _: False  # whether a value of the types of the examples is one of these


def _text(*examples: Any) -> dict[T.DataType, list[Any]]:
    return {T.StringType(): [one if isinstance(one, bytes) else one.encode() for one in examples]}


def _no_utf8(value: bytes) -> bool:
    return value.decode(errors="replace").encode() != value


_FIRST_DAY, _LAST_DAY = -2_440_588, 2_145_042_905  # 4714-11-24 BC and 5874897-12-31: PostgreSQL has no others
_FIRST = _FIRST_DAY * DAY
_LOW, _HIGH = YEARS
_ZERO = _LOW - 366 * DAY
_NANOS = 2**63 // 1000  # a time that does not fit 64 bits of nanoseconds is before 1677 or after 2262
_TIMES: Final[dict[str, tuple[list[int], Callable[[int], bool]]]] = {
    "from 1677-09-22 to 2262-04-11": ([0, -1, _NANOS - DAY, DAY - _NANOS], lambda value: abs(value) < _NANOS),
    "other years from 1 to 9999": (
        [_LOW, _HIGH, -141_428 * DAY],
        lambda value: _LOW <= value <= _HIGH and abs(value) >= _NANOS,
    ),
    "of the year 0": ([_ZERO, _LOW - 1], lambda value: _ZERO <= value < _LOW),
    "from 4714 BC to 294247": (
        [_ZERO - 1, _HIGH + 1, _FIRST, 2**63 - 1],
        lambda value: _FIRST <= value < _ZERO or value > _HIGH,
    ),
    "before 4714 BC": ([_FIRST - 1, -(2**63)], lambda value: value < _FIRST),
}
_S, _L = T.StringType(), T.LongType()
_STRUCT = T.StructType([T.StructField("a", _S), T.StructField("b", T.ArrayType(_S))])

TEXT = Row(
    "string", "any other, such as `null`, quotes, separators, U+FEFF, U+2028",
    _text("null", "NULL", "NaN", '"', 'a""b', "\\", ",;\t|", "\u2028\x85\x1c", "\ufeffx", "😀", " x ", "a=b/c%20",
          "é" * 9),
)  # fmt: skip
LINES = Row(
    "string", "with line breaks", _text("a\r\nb\n", "\n", "x\ry"), lambda value: b"\n" in value or b"\r" in value
)
EMPTY = Row("string", "empty", _text(""), lambda value: value == b"")
NUL = Row("string", "with NUL", _text("\0", 'a\0"b', "\0null\0"), lambda value: b"\0" in value)
FOLDER = Row(
    "string", "`__HIVE_DEFAULT_PARTITION__`", _text("__HIVE_DEFAULT_PARTITION__"),
    lambda value: value == b"__HIVE_DEFAULT_PARTITION__",
)  # fmt: skip
LONG = Row("string", "of 254 bytes and more", _text("x" * 254, "é" * 9_000), lambda value: len(value) > 253)
LONG_ESCAPED = Row("string", "the same with `%` escapes", _text("é" * 100), lambda value: len(quote(value)) > 253)
NO_UTF8 = Row(
    "string", "bytes that are not UTF-8, such as lone surrogates",
    _text(b"\xff", b"M\xf6hre", b"\xed\xa0\x80", b"\xc0\x80", b"ok\xe2\x82"), _no_utf8,
)  # fmt: skip
BINARY = Row("binary", "bytes that are UTF-8", {T.BinaryType(): [b"", b"\0", b"text"]})
RAW = Row("binary", "others", {T.BinaryType(): [b"\xff\xfe", b"M\xf6hre"]}, _no_utf8)
BOOLEAN = Row("boolean", "both", {T.BooleanType(): [True, False]})
_BITS: Final = ((T.ByteType(), 7), (T.ShortType(), 15), (T.IntegerType(), 31), (_L, 63))
INTEGERS = Row(
    "tinyint, smallint, int, bigint", "from the least to the greatest",
    {kind: [-(1 << bits), (1 << bits) - 1, 0, -1] for kind, bits in _BITS},
)  # fmt: skip
FLOATS = Row(
    "float, double", "with `-0.0`, NaN, the infinities",
    {T.FloatType(): ["-0.0", "0.10000000149011612", "nan", "inf", "-inf"],
     T.DoubleType(): ["-0.0", "0.1", "nan", "inf", "-inf", "1e+16"]},
)  # fmt: skip
TINY = Row(
    "double", "of more than 253 digits without an exponent", {T.DoubleType(): ["5e-324", "1.7976931348623157e+308"]},
    lambda value: len(format(Decimal(value), "f")) > 253,
)  # fmt: skip
WHOLE = Row(
    "decimal(p, 0)", "up to 38 digits", {T.DecimalType(38, 0): [Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(0)]}
)
DECIMALS = Row(
    "decimal(p, s)", "up to 38 digits",
    {T.DecimalType(38, 38): [Decimal(f"{10**38 - 1}E-38"), Decimal("-1E-38")],
     T.DecimalType(7, 2): [Decimal("-0.01"), Decimal("99999.99"), Decimal("1.50")]},
)  # fmt: skip
DATES = Row("date", "of the years 1 to 9999", {T.DateType(): [_LOW // DAY, _HIGH // DAY, 0, -1, -141_428]})
ZERO_DATES = Row(
    "date", "of the year 0", {T.DateType(): [_ZERO // DAY, _LOW // DAY - 1]}, lambda value: _ZERO <= value * DAY < _LOW
)
FAR_DATES = Row(
    "date", "from 4714 BC to 5874897", {T.DateType(): [_ZERO // DAY - 1, _HIGH // DAY + 1, _FIRST_DAY, _LAST_DAY]},
    lambda value: _FIRST_DAY <= value < _ZERO // DAY or _HIGH // DAY < value <= _LAST_DAY,
)  # fmt: skip
FARTHEST_DATES = Row(
    "date", "others", {T.DateType(): [_FIRST_DAY - 1, _LAST_DAY + 1, -(2**31), 2**31 - 1]},
    lambda value: not _FIRST_DAY <= value <= _LAST_DAY,
)  # fmt: skip
INSTANTS, OTHER_INSTANTS, ZERO_INSTANTS, FAR_INSTANTS, FARTHEST_INSTANTS = (
    Row("timestamp", what, {T.TimestampType(): values}, holds) for what, (values, holds) in _TIMES.items()
)
LOCAL, OTHER_LOCAL, ZERO_LOCAL, FAR_LOCAL, FARTHEST_LOCAL = (
    Row("timestamp_ntz", what, {T.TimestampNTZType(): values}, holds) for what, (values, holds) in _TIMES.items()
)
NULLS = Row("any", "null", {_S: [None]})
ARRAYS = Row(
    "array", "with nulls",
    {T.ArrayType(_S): [[], [b"a", None], None], T.ArrayType(T.DoubleType()): [["-0.0", "nan", None]]},
)  # fmt: skip
STRUCTS = Row(
    "struct", "with nulls", {_STRUCT: [{"a": b"", "b": []}, {"a": None, "b": None}, {"a": b'"', "b": [b"\\", None]}]}
)
MAPS = Row("map", "with strings as keys", {T.MapType(_S, _L): [[], [(b"", 1), (b'k"', None)]]})
OTHER_MAPS = Row("map", "with other keys", {T.MapType(_L, _S): [[(1, b"a")], [(-(2**63), b"")], [(0, None)]]})
LOCAL_MAPS = Row("map", "with `timestamp_ntz`", {T.MapType(_S, T.TimestampNTZType()): [[(b"k", 0)]]})

VALUES: Final = (
    NULLS, TEXT, LINES, EMPTY, NUL, FOLDER, LONG, LONG_ESCAPED, NO_UTF8, BINARY, RAW, BOOLEAN, INTEGERS, FLOATS, TINY,
    WHOLE, DECIMALS, DATES, ZERO_DATES, FAR_DATES, FARTHEST_DATES, INSTANTS, OTHER_INSTANTS, ZERO_INSTANTS,
    FAR_INSTANTS, FARTHEST_INSTANTS, LOCAL, OTHER_LOCAL, ZERO_LOCAL, FAR_LOCAL, FARTHEST_LOCAL, ARRAYS, STRUCTS, MAPS,
    OTHER_MAPS, LOCAL_MAPS,
)  # fmt: skip

DURATIONS = Row("interval day to second", "any", {T.DayTimeIntervalType(): [0, -1, 2**62]})
MONTHS = Row("interval year to month", "any", {T.YearMonthIntervalType(): [1]})
INTERVALS = Row("interval", "any", {T.CalendarIntervalType(): [1]})
VARIANTS = Row("variant", "any", {T.VariantType(): [{"metadata": b"\1\0\0", "value": b"\x0c\1"}]})
VOID = Row("void", "null", {T.NullType(): [None]})
COLLATED = Row("string with a collation", "any", {T.StringType("UTF8_LCASE"): [b"a"]})
TYPES: Final = (DURATIONS, MONTHS, INTERVALS, VARIANTS, VOID, COLLATED)  # types that few targets have
NANOSECONDS: Final = "1970-01-01T00:00:00.000000001"
_TIME: Final[dict[T.DataType, list[Any]]] = {
    T.TimestampType(): ["2016-12-31T23:59:60Z"],
    T.TimestampNTZType(): ["2016-12-31T23:59:60"],
}
GREAT_INTEGER = Row("tinyint, bigint", "greater ones", {T.ByteType(): ["128"], _L: [str(2**63)]})
MANY_DIGITS = Row("decimal(38, 0)", "39 digits", {T.DecimalType(38, 0): [str(10**38)]})
POWER = Row("decimal(38, 0)", "2^256", {T.DecimalType(38, 0): [str(2**256), "1e300"]})
FINE_DECIMAL = Row("decimal(5, 2)", "more places", {T.DecimalType(5, 2): ["0.125"]})
GREAT_FLOAT = Row("float", "`1e39`", {T.FloatType(): ["1e39"]})
LEAP_SECOND = Row("timestamp, timestamp_ntz", "second 60", _TIME)
NANOS = Row("timestamp_ntz", "nanoseconds", {T.TimestampNTZType(): [NANOSECONDS]})
_INFINITE: Final[dict[T.DataType, list[Any]]] = {T.DateType(): ["infinity"], T.TimestampType(): ["-infinity"]}
INFINITE = Row("date, timestamp", "`infinity`", _INFINITE)
ODD: Final = (GREAT_INTEGER, MANY_DIGITS, POWER, FINE_DECIMAL, GREAT_FLOAT, LEAP_SECOND, NANOS, INFINITE)
"""Values that are in the input and not in the declared type."""

_FARTHEST: Final = (FARTHEST_DATES, FARTHEST_INSTANTS, FARTHEST_LOCAL)
_TOO_LONG: Final = (FAR_DATES, FAR_INSTANTS, FAR_LOCAL, *_FARTHEST)  # years that have more or fewer than four digits
_FAR: Final = (ZERO_DATES, ZERO_INSTANTS, ZERO_LOCAL, *_TOO_LONG)  # years that Python does not have
_FAR_TIMES: Final = tuple(row for row in _FAR if row.type != "date")
_NESTED: Final = (ARRAYS, STRUCTS, MAPS, OTHER_MAPS, LOCAL_MAPS)
Cells = Mapping[Row, str]


def _cells(given: Mapping[str, tuple[Row, ...]]) -> Cells:
    return {row: word for word, rows in given.items() for row in rows}


_PARTITION: Final = {BAD: (NO_UTF8, EMPTY, FOLDER, *_FAR), START: (BINARY, RAW, *_NESTED, *TYPES)}
_JSON: Final = {"Base64": (BINARY, RAW), "text": (WHOLE, DECIMALS)}
_INSTANTS: Final = (INSTANTS, OTHER_INSTANTS, ZERO_INSTANTS, FAR_INSTANTS, FARTHEST_INSTANTS)
_NO_BYTES: Final = tuple(
    row for row in (*VALUES, *TYPES) if row.type not in ("any", BINARY.type, TEXT.type, COLLATED.type)
)

SINKS: Final[Mapping[str, Cells]] = {  # by name; a name with a comma is a way through a sink
    "delta_2pc": _cells({BAD: (NO_UTF8,), START: (LOCAL_MAPS, *TYPES)}),
    "delta_2pc, upsert": _cells({BAD: (NO_UTF8,), START: (LOCAL_MAPS, *TYPES)}),
    "delta_2pc, partition": _cells(_PARTITION),
    "delta_2pc, partition of an upsert": _cells(_PARTITION),
    "files_2pc, Parquet": _cells({BAD: (NO_UTF8,), START: TYPES[:4]}),
    "files_2pc, JSON": _cells({BAD: (NO_UTF8, *_FAR), START: (OTHER_MAPS, *TYPES[:4]), **_JSON}),
    "files_2pc, CSV": _cells({BAD: (NO_UTF8, NUL, *_FAR), START: (BINARY, RAW, *_NESTED, *TYPES[:4])}),
    "files_2pc, folder": _cells({BAD: (*_PARTITION[BAD], LONG), START: (BINARY, RAW, *_NESTED, *TYPES[:-1])}),
    "exchange_2pc": _cells({BAD: (NO_UTF8,), START: (MONTHS, INTERVALS)}),
    "exchange_2pc, Delta": _cells({BAD: (NO_UTF8,), START: (LOCAL_MAPS, *TYPES)}),
    "postgres_2pc": _cells(
        {BAD: (NO_UTF8, NUL, *_FARTHEST), START: TYPES[1:-1], "jsonb": (STRUCTS, MAPS, OTHER_MAPS, LOCAL_MAPS)}
    ),
    "http_2pc": _cells({BAD: (NO_UTF8, *_FAR), START: TYPES[:4], **_JSON, "array": (OTHER_MAPS,)}),
    "kafka_2pc": _cells({BAD: (NO_UTF8,), START: _NO_BYTES}),
    "kafka_2pc, Avro": _cells({BAD: (NO_UTF8,), START: (OTHER_MAPS, *TYPES[:-1])}),
}


@dataclass(frozen=True)
class Limit:
    """Values that sinks refuse though another client of the target stores them and reads them back."""

    clients: tuple[str, ...]
    sinks: tuple[str, ...]
    rows: tuple[Row, ...]
    why: str


_DELTA: Final = ("delta_2pc", "delta_2pc, upsert", "exchange_2pc, Delta")
_PARTITIONS: Final = ("delta_2pc, partition", "delta_2pc, partition of an upsert")
_FILES: Final = tuple(name for name in SINKS if name.startswith("files_2pc"))
_DATES_OF_TEXT: Final = (ZERO_DATES, FAR_DATES, FARTHEST_DATES)
LIMITS: Final = (
    Limit(
        ("Spark",), _DELTA, (LOCAL_MAPS,),
        "delta-rs does not find the type there in a table that it creates, and could not open it any more",
    ),
    Limit(
        ("Spark", "delta-rs"), _PARTITIONS, (*_DATES_OF_TEXT, FAR_INSTANTS, ZERO_LOCAL, FAR_LOCAL, FARTHEST_LOCAL),
        "Python and Arrow do not read most of the texts that are in the log: pandas and pyarrow could not read the "
        "table any more",
    ),
    Limit(
        ("Spark", "delta-rs"), _PARTITIONS, (BINARY,),
        "the column's other values become other bytes in the log, and where delta-rs rewrites files all of them do",
    ),
    Limit(("delta-rs",), _PARTITIONS, (EMPTY, FOLDER), "Spark reads null"),
    Limit(("delta-rs",), _PARTITIONS, (ZERO_INSTANTS, FARTHEST_INSTANTS), "Spark reads another time"),
    Limit(("pyarrow",), ("files_2pc, folder",), (EMPTY,), "Spark reads null"),
    Limit(
        ("Spark", "pyarrow"), ("files_2pc, folder",), (ZERO_DATES, ZERO_INSTANTS, ZERO_LOCAL, BINARY),
        "Python has no year 0, and the name of a folder no other bytes than UTF-8",
    ),
    Limit(
        ("Spark",), ("files_2pc, folder",),
        (FAR_DATES, FARTHEST_DATES, FAR_INSTANTS, FARTHEST_INSTANTS, FAR_LOCAL, FARTHEST_LOCAL),
        "Python and Arrow do not read such a name of a folder",
    ),
    Limit(
        ("Spark",), ("files_2pc, JSON", "files_2pc, CSV"), (FAR_DATES, FARTHEST_DATES),
        "it writes `+10000-01-01`, which Python and Arrow do not read",
    ),
    Limit(("Spark",), ("files_2pc, JSON",), (ZERO_DATES,), "Python has no year 0"),
    Limit(("Spark", "pyarrow"), ("files_2pc, CSV",), (ZERO_DATES,), "Python has no year 0"),
    Limit(("pyarrow",), ("files_2pc, CSV",), (ZERO_INSTANTS, ZERO_LOCAL), "Python has no year 0"),
    Limit(("pyarrow",), ("files_2pc, CSV",), (BINARY,), "CSV has no other bytes than UTF-8"),
    Limit(("pyarrow", "Python"), ("files_2pc, CSV",), (NUL,), "Spark leaves the character out when it reads the file"),
    Limit(
        ("Spark", "pyarrow"), _FILES, (DURATIONS,),
        "the two have no common form: a text of Spark's own, and in Parquet a number with a note of its writer",
    ),
    Limit(
        ("Spark", "psycopg"), (*_FILES, "postgres_2pc"), (MONTHS,),
        "pyspark has no form for them in Arrow, by which rows reach a sink",
    ),
    Limit(("psycopg",), ("postgres_2pc",), (INTERVALS,), "pyspark has no form for them in Arrow either"),
    Limit(
        ("Spark",), (*_DELTA, "files_2pc, Parquet", "files_2pc, JSON"), (VARIANTS,),
        "this sink alone does not write it: write `to_json`",
    ),
    Limit(("psycopg",), ("postgres_2pc",), (VARIANTS,), "this sink alone does not write it: write `to_json`"),
    Limit(
        ("Spark", "delta-rs"), _DELTA, (VOID,),
        "this sink alone does not write it: cast the column to the type it is to have",
    ),
    Limit(("pyarrow",), ("files_2pc, folder",), (VOID,), "a column without values divides nothing"),
    Limit(("fastavro",), ("kafka_2pc, Avro",), (VOID,), "a schema without type is of no use later: cast it"),
)  # fmt: skip
"""What an independent client can store, and why a sink refuses it; whatever else sinks refuse, none of these stores."""


READ_AS: Final = {"null": None, "infinity": "inf"}  # what a source makes of values for which it has a word
_TEXT_READ: Final = {
    BAD: (NO_UTF8, *_TOO_LONG, GREAT_INTEGER, MANY_DIGITS, POWER, FINE_DECIMAL, LEAP_SECOND, NANOS, INFINITE),
    "infinity": (GREAT_FLOAT,),
}
_TABLE: Final = {BAD: (NO_UTF8,), START: (VARIANTS,), NONE: (LOCAL_MAPS, *ODD, DURATIONS, MONTHS, INTERVALS)}
_OBJECTS: Final = {
    BAD: (*_TEXT_READ[BAD], GREAT_FLOAT),
    START: (BINARY, RAW, MAPS, OTHER_MAPS, LOCAL_MAPS, DURATIONS, MONTHS, INTERVALS, VARIANTS, VOID),
}
_MESSAGE: Final = (*ODD, *TYPES)
_NOT_IN_PROTOBUF: Final = tuple(row for row in VALUES if row.type.startswith(("date", "timestamp_ntz", "decimal")))

SOURCES: Final[Mapping[str, Cells]] = {
    "files, CSV": _cells({**_TEXT_READ, START: (*_NESTED, DURATIONS, MONTHS, INTERVALS, VARIANTS)}),
    "files, JSON": _cells(
        {**_TEXT_READ, START: (BINARY, RAW, MAPS, OTHER_MAPS, LOCAL_MAPS, DURATIONS, MONTHS, INTERVALS, VARIANTS)}
    ),
    "files, Parquet": _cells({
        BAD: (NO_UTF8, GREAT_INTEGER, MANY_DIGITS, FINE_DECIMAL, GREAT_FLOAT, NANOS),
        NONE: (POWER, LEAP_SECOND, INFINITE, MONTHS, INTERVALS),
    }),
    "files, ORC": _cells({
        BAD: (NO_UTF8, OTHER_INSTANTS, OTHER_LOCAL, GREAT_INTEGER, FINE_DECIMAL, GREAT_FLOAT, NANOS, *_FAR_TIMES),
        NONE: (MANY_DIGITS, POWER, LEAP_SECOND, INFINITE, DURATIONS, MONTHS, INTERVALS, VOID),
    }),
    "files, Avro": _cells({BAD: (NO_UTF8,), NONE: (OTHER_MAPS, *_MESSAGE)}),
    "files, folder": _cells({
        **_TEXT_READ, "null": (FOLDER,), BAD: (*_TEXT_READ[BAD], RAW, *_NESTED, DURATIONS, VARIANTS),
        START: (MONTHS, INTERVALS), NONE: (LONG, LONG_ESCAPED),
    }),
    "delta_snapshot": _cells(_TABLE),
    "delta_snapshot, follow": _cells(_TABLE),
    "postgres": _cells({
        BAD: (MANY_DIGITS, POWER, FINE_DECIMAL, INFINITE), START: (GREAT_INTEGER, GREAT_FLOAT),
        NONE: (NUL, NO_UTF8, *_FARTHEST, STRUCTS, MAPS, OTHER_MAPS, LOCAL_MAPS, LEAP_SECOND, NANOS, *TYPES),
    }),
    "http_ingest": _cells(_OBJECTS),
    "exchange": _cells({NONE: (NO_UTF8, *ODD, MONTHS, INTERVALS)}),
    "exchange, Delta": _cells({NONE: (NO_UTF8, LOCAL_MAPS, *_MESSAGE)}),
    "kafka_range, JSON": _cells(
        {BAD: (NO_UTF8,), NONE: tuple(row for row in (*VALUES, *_MESSAGE) if row.type not in ("any", "string"))}
    ),
    "kafka_range, JSON fields": _cells(_OBJECTS),
    "kafka_range, Avro": _cells({BAD: (NO_UTF8,), NONE: (OTHER_MAPS, *_MESSAGE)}),
    "kafka_range, Protobuf": _cells({BAD: (NO_UTF8, *_INSTANTS[2:]), NONE: (*_NOT_IN_PROTOBUF, LOCAL_MAPS, *_MESSAGE)}),
}  # fmt: skip


def words(cells: Cells, kind: T.DataType, value: Any) -> set[str]:
    return {cells.get(row, SAME) for row in VALUES if kind in row.examples and row.holds(value)}


def takes(cells: Cells, simple: T.DataType, kind: T.DataType) -> bool:
    """Whether there are columns of a type, which is a simple one or made of it."""
    rows = [row for row in VALUES if simple in row.examples and row is not NULLS]
    if isinstance(kind, T.MapType):
        rows.append(LOCAL_MAPS if isinstance(simple, T.TimestampNTZType) else MAPS)
    elif kind != simple:
        rows.append(ARRAYS if isinstance(kind, T.ArrayType) else STRUCTS)
    return START not in map(cells.get, rows) and (kind == simple or cells.get(rows[-1]) not in (BAD, NONE))
