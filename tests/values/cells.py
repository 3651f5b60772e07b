"""The check of a cell of the table: what was measured is what the table says."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from pyspark.errors import PySparkTypeError
from pyspark.sql import types as T

from spark_ext.errors import ConfigurationError, DataError
from tests.values.table import BAD, NONE, READ_AS, SAME, SINKS, SOURCES, START, Row


def check_cell(name: str, row: Row, put: Callable[[T.DataType, list[Any]], list[Any]]) -> None:
    """Put each example through a sink; `put` gives the values that are there, as an independent client reads them."""
    expected = SINKS[name].get(row, SAME)
    for kind, values in row.examples.items():
        if expected == START:
            with pytest.raises(ConfigurationError):
                put(kind, values)
        elif expected == BAD:
            for value in values:
                with pytest.raises(DataError):
                    put(kind, [value])
        else:
            assert expected != NONE and put(kind, values) == values


MAIN: Final = (
    "files, JSON", "delta_snapshot", "http_ingest", "exchange", "kafka_range, Avro", "delta_2pc", "files_2pc, JSON",
    "exchange_2pc", "http_2pc", "kafka_2pc",
)  # fmt: skip
"""The format of each connector whose cells are in the core."""
FURTHER: Final = pytest.mark.slow(0.1, "one of hundreds of cells of another format, each of which writes files")


def marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    return () if name in MAIN else (FURTHER,)


class Unsayable(Exception):
    """The format or the server has no such value."""


Found = tuple[Mapping[int, Any], int]  # values by the numbers of their rows, and how many rows were bad
Get = Callable[[T.DataType, list[Any]], Found]


def check_read(name: str, row: Row, get: Get) -> None:
    """Have each example read by a source, from where `get` puts it."""
    expected = SOURCES[name].get(row, SAME)
    found = {
        outcome(get, kind, some)
        for kind, values in row.examples.items()
        for some in (
            [values] if expected == SAME else [[value] for value in values if value is not None or len(values) == 1]
        )
    }
    if NONE in found and expected != NONE:  # one by one, as some examples can be said
        found = {outcome(get, kind, [value]) for kind, values in row.examples.items() for value in values} - {NONE}
    assert found == {expected}


def outcome(get: Get, kind: T.DataType, values: list[Any]) -> str:
    try:
        good, bad = get(kind, values)
    except Unsayable:
        return NONE
    except DataError:
        return BAD
    except (ConfigurationError, PySparkTypeError):  # the latter is Spark's own refusal, which names the type
        return START
    if bad:
        assert (bad, good) == (len(values), {})
        return BAD
    for word, value in READ_AS.items():
        if good == dict.fromkeys(range(len(values)), value) != dict(enumerate(values)):
            return word
    assert good == dict(enumerate(values)), values
    return SAME
