from datetime import datetime, timezone

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.delta import light_arrow

UTC = pa.timestamp("us", tz="UTC")


@given(st.lists(st.none() | st.datetimes(timezones=st.just(timezone.utc))))
def test_times_are_those_that_arrow_gives(times: list[datetime | None]) -> None:
    column = pa.chunked_array([pa.array(times, UTC)])
    assert light_arrow.times(column) == column.to_pylist() == times


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_number_is_that_of_arrow(value: int) -> None:
    assert light_arrow.int64(value) == pa.scalar(value, pa.int64())


def test_a_table_without_rows_and_the_rows_of_a_reader() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("at", UTC)])
    assert light_arrow.empty(schema) == schema.empty_table()
    rows = pa.table({"a": [1, 2], "at": pa.nulls(2, UTC)}, schema=schema)
    assert light_arrow.read_all(rows.to_reader(1)).equals(rows)
