"""Batch reads, without Spark: what is planned, what is refused, and what becomes of bad rows."""

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from spark_ext.errors import ConfigurationError, DataError, ReplayError
from spark_ext.model.offsets import Position
from spark_ext.schemas.columns import spark_schema
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import Advance, BadRow, Channel, ChannelSource, Limit
from spark_ext.sources.datagen import DataGen
from spark_ext.sources.hybrid.source import Hybrid
from spark_ext.sources.runtime.adapter import data_source
from spark_ext.sources.runtime.batch import BatchReader
from spark_ext.spark.session import formats
from spark_ext.testing.source_kit import drive, read_batch
from spark_ext.worker_internals import pickled, unpickled
from tests.sources.memory import Memory, Store, memory

ROWS = columns("channel string, n bigint")


def rows_of(reader: DataSourceReader) -> list[dict[str, Any]]:
    """What Spark would get, from tasks in other processes."""
    there: Any = unpickled(pickled(reader))
    return [
        row
        for task in reader.partitions()
        for batch in there.read(unpickled(pickled(task)))
        for row in batch.to_pylist()
    ]


def loaded(kind: type[ChannelSource], schema: StructType | None = None, /, **options: object) -> list[dict[str, Any]]:
    """As `spark.read.format(kind).schema(schema).options(...).load()` has it."""
    made = data_source(kind)(options={name: str(value) for name, value in options.items()})
    found = made.schema() if schema is None else schema
    return rows_of(made.reader(found if isinstance(found, StructType) else columns(found)))


@settings(max_examples=25)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 20), max_size=4),
    st.integers(1, 5),
    st.none() | st.integers(1, 7),
    st.booleans(),
)
def test_it_has_the_rows_of_a_stream(there: dict[str, int], readers: int, step: int | None, bounded: bool) -> None:
    """Whatever a source takes at a time; without an end what there is when the read is planned."""
    store = Store(there, ends=bounded, step=step)
    in_batch = read_batch(memory(store, bounded=bounded, readers=readers)).all_rows().to_pylist()
    stream = drive(lambda options: memory(store, bounded=bounded, **options), {}, available_now=True)
    assert sorted(map(repr, in_batch)) == sorted(map(repr, stream.all_rows().to_pylist()))
    assert len(in_batch) == sum(there.values())


def test_limits_and_rates_say_how_fast_a_stream_is_and_are_left_out() -> None:
    paced = {"rows": "5000", "channels": "3", "rows_per_second": "0.001", "max_rows_per_epoch": "1"}
    [*found] = loaded(DataGen, **paced, discovery_interval="1 s", readers=2)
    assert sorted(row["id"] for row in found) == list(range(5000))
    staged = {f"{stage}.{name}": value for stage in ("a", "b") for name, value in paced.items() if name != "channels"}
    staged |= {"stages": "a,b", "a.format": "datagen", "b.format": "datagen", "max_rows_per_epoch": "1"}
    del staged["a.max_rows_per_epoch"], staged["b.max_rows_per_epoch"]
    assert len(loaded(Hybrid, **staged)) == 10_000


def test_it_is_read_by_as_many_tasks_as_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_EXT_PARALLELISM", "5")
    adapter = data_source(DataGen)
    for more, tasks in (({}, 5), ({"readers": "2"}, 2), ({"rows": "0"}, 0)):
        made = adapter(options={"rows": "2000000", **more})
        assert len(made.reader(columns("id bigint")).partitions()) == tasks


def test_a_source_without_an_end_is_refused_unless_it_says_where_it_is_now() -> None:
    for more in ({}, {"rows_per_second": "10"}):
        with pytest.raises(ConfigurationError, match="a batch read needs an end") as refused:
            loaded(DataGen, uid="gen", **more)
        assert refused.value.operator == "source 'gen' (datagen)" and "'rows' of datagen" in refused.value.do
    assert len(loaded(DataGen, uid="gen", rows=3)) == 3, "as the advice says"


def test_what_comes_while_it_is_planned_is_not_read() -> None:
    class Growing(Memory):
        def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
            assert self.store.advances < 100, "it does not end"
            self.store.rows[channel.id] += 1
            return super().advance(channel, start, limit)

    source = Growing({"uid": "s"})
    source.store, source.always_bounded = Store({"a": 5}, ends=False), False
    assert len(rows_of(BatchReader(source, ROWS))) == 5


def test_an_end_that_lies_in_the_future_is_not_waited_for() -> None:
    store = Store({"a": 5}, ends=False)
    with pytest.raises(ConfigurationError, match="which it has not reached") as refused:
        BatchReader(memory(store), ROWS).partitions()
    assert "wait for the end" in refused.value.do
    store.ends = True
    assert len(rows_of(BatchReader(memory(store), ROWS))) == 5


@pytest.mark.parametrize(
    "kind", [one for one in formats.load() if getattr(one, "only_in_jobs", "")], ids=lambda one: one.name()
)
def test_what_only_a_job_can_read_is_refused_by_name(kind: type[ChannelSource]) -> None:
    assert kind.name() in ("control", "control_stamp", "http_ingest")
    path = {"path": "/nowhere"} if kind.name() == "http_ingest" else {}
    with pytest.raises(ConfigurationError, match=f"a batch read is not possible: {kind.only_in_jobs}"):
        loaded(kind, ROWS, uid="in", **path)


def test_only_a_stream_needs_a_uid() -> None:
    made = unpickled(pickled(data_source(DataGen)(options={"rows": "3"})))
    assert len(rows_of(made.reader(columns("id bigint")))) == 3
    with pytest.raises(ConfigurationError, match="the option 'uid' is missing") as refused:
        made.streamReader(columns("id bigint"))
    assert refused.value.operator == "datagen (no uid)"


# -- bad rows ---------------------------------------------------------------------------------------------------------


class Odd(Memory):
    """Odd numbers are bad; others come as text, of which `8` is none."""

    store = Store({"a": 10, "b": 4})

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        for n in range(start, end):
            if n % 2:
                self.bad_row(BadRow({"n": n}, f"{n} is odd", str(n)))
            else:
                yield pa.RecordBatch.from_pydict({"channel": [channel.id], "n": ["eight" if n == 8 else str(n)]})


def test_a_bad_row_fails_the_read_as_it_fails_a_query() -> None:
    with pytest.raises(DataError, match="1 is odd"):
        loaded(Odd)


def test_bad_rows_are_left_out_up_to_the_limit() -> None:
    found = loaded(Odd, on_bad_row="quarantine", bad_rows_path="/nowhere/table", max_bad_share=0.1)
    assert [(row["channel"], row["n"]) for row in found] == [("a", 0), ("a", 2), ("a", 4), ("a", 6), ("b", 0), ("b", 2)]
    assert len(loaded(Odd, on_bad_row="quarantine", max_bad_rows=8, readers=1)) == 6
    with pytest.raises(DataError, match="more than 7 rows are bad, which is what max_bad_rows allows") as refused:
        loaded(Odd, on_bad_row="quarantine", max_bad_rows=7, readers=1)
    assert "bad_rows_of" in refused.value.do and "nothing was written" in refused.value.kept


@pytest.mark.parametrize("rows", ["*", "channel string, n bigint"])
@pytest.mark.parametrize("mode", ["fail", "quarantine"])
def test_bad_rows_can_be_looked_at(rows: str, mode: str) -> None:
    found = loaded(Odd, uid="odd", bad_rows_of=rows, on_bad_row=mode, max_rows_per_epoch=3)
    assert {row["channel"] for row in found} == {"a", "b"}
    assert sorted(str(row["raw"]) for row in found if row["channel"] == "a") == [
        "1", "3", "5", "7", "9", '{"channel": "a", "n": "eight"}',
    ]  # fmt: skip
    [one] = [row for row in found if row["raw"] == "9"]
    assert {name: value for name, value in one.items() if value is not None} == {
        "uid": "odd", "channel": "a", "position": '{"n": 9}', "reason": "9 is odd", "raw": "9", "role": "source",
    }  # fmt: skip
    assert loaded(Odd, bad_rows_of=rows)[0]["uid"] is None


def test_the_frame_of_bad_rows_has_the_columns_of_their_table() -> None:
    from spark_ext.bad_rows.row import SCHEMA

    adapter = data_source(Odd)(options={"bad_rows_of": "*"})
    assert adapter.schema() == spark_schema(SCHEMA)
    with pytest.raises(ConfigurationError, match="not those declared") as refused:
        loaded(Odd, ROWS, bad_rows_of="*")
    assert "remove .schema(...)" in refused.value.do
    with pytest.raises(ConfigurationError, match="bad_rows_of is no schema: not a column: 'nothing'"):
        loaded(Odd, bad_rows_of="nothing")
    with pytest.raises(ConfigurationError, match="'bad_rows_of' is for batch reads"):
        data_source(Odd)(options={"uid": "odd", "bad_rows_of": "*"}).streamReader(ROWS)


def test_rows_that_change_while_they_are_read_are_read_again() -> None:
    class Changed(Memory):
        store = Store({"a": 1})

        def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
            yield from ()
            raise ReplayError("rows were updated", operator="source 'memory'", kept="all epochs", do="a new query")

    with pytest.raises(ReplayError, match="rows were updated") as refused:
        loaded(Changed)
    assert refused.value.do == "read it again" and "nothing was written" in refused.value.kept
