"""Bodies of events as the declared columns. Pure.

They are parsed in one go. If something in it does not fit, what fits is found by pieces, and in these by what Arrow
says of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from pyarrow import types
from pydantic_core import from_json

from spark_ext import worker_internals
from spark_ext.errors import refused
from spark_ext.ingest.records import BLANK
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.schemas.casts import MOST_SHOWN
from spark_ext.schemas.columns import conform
from spark_ext.schemas.text_types import as_declared, json_objects, parsed_in_json
from spark_ext.schemas.values import null_in

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MOST_REASON: Final = 200  # characters
SIFTED: Final = 64  # rows of the pieces in which bad ones are looked for

# A line is one row. Where JSON allows the end of a line it allows a tab, and in texts neither.
_ON_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"\t\t")
_NAMED: Final = re.compile(r" in row (\d+)$")
_NO_FORM: Final = (types.is_map, types.is_binary, types.is_duration, types.is_null)
_DAY: Final = re.compile(r"\s*[-+]?[0-9]{4,}-[0-9]{2}-[0-9]{2}")
_LONGEST: Final = 20  # characters of an integer of 64 bits
_LARGE: Final = 1e300
_APART: Final = (b" :", b"\t:", b"\r:", b"\n:")
_KINDS: Final[tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...]] = (
    (types.is_string, (str,)),
    (types.is_integer, (int,)),
    (types.is_floating, (int, float)),
    (types.is_boolean, (bool,)),
    (types.is_temporal, (str,)),
    (types.is_struct, (dict,)),
    (types.is_list, (list,)),
)

Bad: TypeAlias = Callable[[int, str], object]
Fit: TypeAlias = Callable[[Sequence[bytes]], bool]
Judge: TypeAlias = Callable[[Any], "str | None"]


def check_columns(schema: StructType, who: str) -> None:
    """Refuse declared columns that JSON has no form for.

    Raises:
        ConfigurationError: one has such a type, at any depth.
    """
    for field in arrow_schema(schema):
        if _is_foreign(field.type):
            raise refused(
                f"column '{field.name}' has the type {field.type}, which has no form in JSON",
                who,
                "declare a struct or a string, or leave the JSON undecoded, and convert it in the query",
            )


def _is_foreign(kind: pa.DataType) -> bool:
    inner = (kind.field(at).type for at in range(kind.num_fields))
    return any(one(kind) for one in _NO_FORM) or any(map(_is_foreign, inner))


def rows_of(bodies: Sequence[bytes | None], schema: StructType, bad: Bad) -> pa.RecordBatch:
    """The bodies that fit, in their order; the numbers of the others, in any order, and why go to `bad`."""
    wanted = arrow_schema(schema)
    lines: list[bytes] = []
    places: list[int] = []
    for place, body in enumerate(bodies):
        line = (body or b"").strip(BLANK)
        if line[:1] == b"{" and line[-1:] == b"}":
            lines.append(line.translate(_ON_ONE_LINE) if b"\n" in line or b"\r" in line else line)
            places.append(place)
        else:
            bad(place, "it is not a JSON object")
    try:
        found = [_converted(_parsed(lines, wanted), wanted)] if lines else []
    except pa.ArrowException:
        found = list(_sifted(lines, places, wanted, bad))
    table = pa.Table.from_batches(found, wanted).combine_chunks()
    return (table.to_batches() or [pa.RecordBatch.from_pylist([], wanted)])[0]


def _parsed(lines: Sequence[bytes], wanted: pa.Schema) -> pa.Table:
    """One row for each line, which begins and ends with a brace, so that none continues in the next."""
    columns = [_loose(field.with_type(parsed_in_json(field.type))) for field in wanted]
    table = json_objects(pa.py_buffer(b"\n".join(lines)), pa.schema(columns), several_lines=False)
    if table.num_rows != len(lines):
        raise pa.ArrowInvalid("it has several objects")
    return table


def _loose(field: pa.Field) -> pa.Field:
    """A column as it is parsed: with nulls, as Arrow would not say in which row one is, and with room for floats."""
    kind = field.type
    if types.is_struct(kind):
        kind = pa.struct(list(map(_loose, kind)))
    elif types.is_list(kind):
        kind = pa.list_(_loose(kind.value_field))
    elif types.is_float32(kind):  # 1e39 would be infinite
        kind = pa.float64()
    return pa.field(field.name, kind)


def _converted(table: pa.Table, wanted: pa.Schema) -> pa.RecordBatch:
    (batch,) = as_declared(table, wanted, None).combine_chunks().to_batches()
    batch = conform(batch, wanted, {})
    if (column := null_in(batch)) is not None:
        raise pa.ArrowInvalid(f"column '{column}' is declared as not nullable and has a null")
    return batch


def _sifted(lines: Sequence[bytes], places: Sequence[int], wanted: pa.Schema, bad: Bad) -> Iterator[pa.RecordBatch]:
    """What fits. A call of Arrow's parser takes as long as a hundred rows, so that few are made."""
    judge = _judge(pa.struct(wanted), "")
    reasons = [_misfit(line, judge) for line in lines]
    for place, reason in zip(places, reasons, strict=True):
        if reason is not None:
            bad(place, reason)
    left = [at for at, reason in enumerate(reasons) if reason is None]
    if left:
        yield from _parsed_in_parts([lines[at] for at in left], [places[at] for at in left], wanted, bad)


def _parsed_in_parts(
    lines: Sequence[bytes], places: Sequence[int], wanted: pa.Schema, bad: Bad
) -> Iterator[pa.RecordBatch]:
    try:
        table = _parsed(lines, wanted)
    except pa.ArrowException as problem:
        if len(lines) == 1:
            bad(places[0], _reason(problem))
        for low, high in _parts(len(lines), problem):
            yield from _parsed_in_parts(lines[low:high], places[low:high], wanted, bad)
    else:
        yield from _converted_in_parts(table, places, wanted, bad)


def _converted_in_parts(
    table: pa.Table, places: Sequence[int], wanted: pa.Schema, bad: Bad
) -> Iterator[pa.RecordBatch]:
    try:
        yield _converted(table, wanted)
    except pa.ArrowException as problem:
        if len(places) == 1:
            bad(places[0], _reason(problem))
        for low, high in _parts(len(places), problem):
            yield from _converted_in_parts(table.slice(low, high - low), places[low:high], wanted, bad)


def _parts(rows: int, problem: Exception) -> list[tuple[int, int]]:
    """Where to look for bad rows: in pieces, and in these around the row that Arrow names, or by halves."""
    named = _NAMED.search(str(problem))
    at = int(named[1]) - 1 if named else -1  # it counts a row that is put before them
    if rows > SIFTED:
        cuts = [*range(0, rows, SIFTED), rows]
    elif 0 <= at < rows:
        cuts = [0, at, at + 1, rows]
    else:
        cuts = [0, rows // 2, rows]
    return [(low, high) for low, high in pairwise(cuts) if low < high < low + rows]


def _reason(problem: Exception) -> str:
    return _NAMED.sub("", str(problem).removeprefix("JSON parse error: "))[:MOST_REASON]


class _Whole(str):
    """A number without a fraction or an exponent, as it is written."""


class _Number(str):
    """Another number, as it is written."""


_DECODER: Final = json.JSONDecoder(parse_int=_Whole, parse_float=_Number, parse_constant=_Number)


# Text is a plain one: numbers are of classes of their own.
_FORMS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], object]], ...]] = (
    (types.is_string, lambda value: type(value) is str),
    (types.is_timestamp, lambda value: type(value) is str and _DAY.match(value)),
    (types.is_date, lambda value: type(value) is str and _DAY.match(value)),
    (types.is_time, lambda value: type(value) is str),
    (types.is_boolean, lambda value: isinstance(value, bool)),
    (types.is_integer, lambda value: isinstance(value, _Whole)),
    (types.is_floating, lambda value: isinstance(value, (_Whole, _Number))),
    (types.is_decimal, lambda value: isinstance(value, str)),
)


def _misfit(line: bytes, judge: Judge) -> str | None:
    """Why a line does not fit, of the reasons that can be told without Arrow, which has the same and others."""
    try:
        value = _DECODER.decode(line.decode())
    except RecursionError:
        return None
    except ValueError as problem:
        return f"it is not JSON: {problem}"[:MOST_REASON]
    return judge(value)


@cache
def _shown(kind: pa.DataType) -> str:
    """A type as it was declared: by Spark's name, if it has one."""
    from pyspark.errors import PySparkTypeError

    try:
        return worker_internals.from_arrow_type(kind).simpleString()
    except PySparkTypeError:
        return str(kind)


def _judge(kind: pa.DataType, path: str) -> Judge:
    """Why a value does not fit a type."""

    def other(value: Any) -> str:
        text = value if isinstance(value, (_Whole, _Number)) else json.dumps(value)
        return f"column '{path}' is declared as {_shown(kind)} and has the value {text[:MOST_SHOWN]}"

    if types.is_struct(kind):
        names = {field.name: f"{path}.{field.name}" if path else field.name for field in kind}
        missing = {
            field.name: None if field.nullable else f"column '{name}' is declared as not nullable and has no value"
            for field, name in zip(kind, names.values(), strict=True)
        }
        fields = [(field.name, _judge(field.type, names[field.name])) for field in kind]

        def of_struct(value: Any) -> str | None:
            if not isinstance(value, dict):
                return other(value)
            inner = ((value.get(name), name, judge) for name, judge in fields)
            reasons = (missing[name] if one is None else judge(one) for one, name, judge in inner)
            return next(filter(None, reasons), None)

        return of_struct
    if types.is_list(kind):
        element = _judge(kind.value_type, f"{path}.element")

        def of_list(value: Any) -> str | None:
            if not isinstance(value, list):
                return other(value)
            return next(filter(None, (element(one) for one in value if one is not None)), None)

        return of_list
    holds = next((holds for is_kind, holds in _FORMS if is_kind(kind)), lambda _: True)
    if not types.is_integer(kind):
        return lambda value: None if holds(value) else other(value)
    least, most = -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1

    def of_integer(value: Any) -> str | None:
        within = holds(value) and len(value) <= _LONGEST and least <= int(value) <= most
        return None if within else other(value)

    return of_integer


def certain(schema: StructType) -> Fit:
    """Whether `rows_of` finds no bad row among bodies, for certain: with False only `rows_of` knows.

    Arrow's parser takes as long for one row as this for hundreds.
    """
    row = pa.struct(arrow_schema(schema))

    def fit(bodies: Sequence[bytes]) -> bool:
        try:
            found = _members([from_json(body, allow_inf_nan=False) for body in bodies], row, nullable=False)
        except (ValueError, pa.ArrowException):
            return False
        # With a name that is there twice there are more colons behind names than members. Texts may have some as well.
        text = b"".join(bodies)
        return found == text.count(b":") or (found == text.count(b'":') and not any(one in text for one in _APART))

    return fit


def _members(values: Sequence[Any], kind: pa.DataType, *, nullable: bool) -> int:
    """How many members the objects have among values that certainly fit a type; a ValueError if one may not."""
    if None in values:
        values = [value for value in values if value is not None or not nullable]
    kinds = next((kinds for is_kind, kinds in _KINDS if is_kind(kind)), ())
    if not set(map(type, values)) <= {*kinds}:
        raise ValueError("one is of another kind")
    if not values:
        return 0
    if types.is_struct(kind):
        fields = {field.name: field for field in kind}
        others = set[str]().union(*values) - fields.keys()
        inner = [([value.get(name) for value in values], field) for name, field in fields.items()]
        return (
            sum(map(len, values))
            + sum(_members(column, field.type, nullable=field.nullable) for column, field in inner)
            + sum(_undeclared(value[name]) for value in values for name in others & value.keys())
        )
    if types.is_list(kind):
        return _members([*chain.from_iterable(values)], kind.value_type, nullable=kind.value_field.nullable)
    if types.is_temporal(kind):
        as_declared(pa.table([pa.array(values, pa.string())], [""]), pa.schema([("", kind)]), None)
    elif kinds[-1] in (int, float):
        most = 1 << kind.bit_width - 1 if types.is_integer(kind) else 1e38 if types.is_float32(kind) else _LARGE
        if not -most <= min(values) <= max(values) < most:
            raise ValueError("one is too large")
    return 0


def _undeclared(value: Any) -> int:
    """The members within a value of an undeclared name, in which Arrow refuses a number that no double can hold."""
    if isinstance(value, dict):
        return len(value) + sum(map(_undeclared, value.values()))
    if isinstance(value, (int, float)) and not -_LARGE < value < _LARGE:
        raise ValueError("it is too large")
    return sum(map(_undeclared, value)) if isinstance(value, list) else 0
