"""Hostile values of each type are in the table as they were given, by the server's own functions, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import types as T

from spark_ext.errors import DataError
from spark_ext.testing.sink_driver import Driver
from tests.servers.postgres import Database
from tests.sinks.postgres_2pc.postgres_kit import PostgresTarget
from tests.sinks.test_values import SIMPLE, Column, batch_of, columns, from_json, no_text

MICROS = (
    "extract(epoch FROM date_trunc('second', v))::bigint * 1000000 + extract(microseconds FROM v)::bigint % 1000000"
)
"""The server's quotients of large numbers have few digits after the point."""

SHOWN: dict[type[T.DataType], tuple[str, Callable[[Any], Any]]] = {
    T.StringType: ("convert_to(v, 'UTF8')", bytes),
    T.BinaryType: ("v", bytes),
    T.FloatType: ("v::text", lambda text: from_json(T.FloatType(), text)),
    T.DoubleType: ("v::text", lambda text: repr(float(text))),
    T.DateType: ("v - date '1970-01-01'", int),
    T.TimestampType: (MICROS, int),
    T.TimestampNTZType: (MICROS, int),
}
"""How a value is asked for, and made of the answer."""


def refused(kind: T.DataType, value: Any) -> bool:
    """NUL, and times before 4714-11-24 BC or dates after 5874897: PostgreSQL has none."""
    if isinstance(kind, T.StringType):
        return no_text(kind, value) or b"\0" in value
    if isinstance(kind, T.DateType):
        return not -2_440_588 <= value < 2_145_042_906
    return isinstance(kind, (T.TimestampType, T.TimestampNTZType)) and value < -210_866_803_200_000_000


@pytest.mark.parametrize("inline", ["0", "1m"], ids=["staged", "inline"])
def test_a_value_is_read_as_it_was_given_or_refused_before_it_is_written(database: Database, inline: str) -> None:
    numbers = count(step=10)
    drivers: dict[T.DataType, Driver] = {}

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(column=columns(nested=False))
    def check(column: Column) -> None:
        _, kind, values = column
        first, table = next(numbers), f"t{[one for one, _ in SIMPLE].index(kind)}"
        schema, batch = batch_of(kind, values)
        batch = batch.set_column(0, "id", pa.array(range(first, first + len(values))))
        target = PostgresTarget(database, table, inline_size=inline)
        if kind not in drivers:
            drivers[kind] = Driver(target, schema=schema)
            drivers[kind].claim()
        shown, made = SHOWN.get(type(kind), ("v", lambda value: value))
        query = f"SELECT {shown} AS v FROM {table} WHERE id >= {first} ORDER BY id"
        if any(value is not None and refused(kind, value) for value in values):
            with pytest.raises(DataError):
                drivers[kind].commit([drivers[kind].write_batches(first, iter([batch]))], first)
            assert target.query(query) == []
        else:
            drivers[kind].commit([drivers[kind].write_batches(first, iter([batch]))], first)
            found = [row["v"] for row in target.query(query)]
            assert [None if value is None else made(value) for value in found] == values

    check()
