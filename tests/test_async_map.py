"""`async_map`: order, bounds, failures and streaming of batches; without Spark where Spark adds nothing."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import PythonException
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import spark_ext as sx
from spark_ext import async_map
from spark_ext.asynchronous import _AsyncMap
from spark_ext.errors import ConfigurationError, DataError, SparkExtError, StateError, TransientError, from_text
from spark_ext.schemas.ddl import columns

NUMBERS = StructType([StructField("n", LongType())])


def task(fn: Callable[[Row], Any], **changes: Any) -> _AsyncMap:
    given: dict[str, Any] = {"concurrency": 8, "ordered": True, "timeout": None, "who": "async_map of fn", **changes}
    return _AsyncMap(fn, NUMBERS, given.pop("target", NUMBERS), **given)


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        yield pa.RecordBatch.from_pydict({"n": pa.array(range(start, start + size), pa.int64())})
        start += size


def numbers(out: Iterator[pa.RecordBatch]) -> list[int]:
    return [n for batch in out for n in batch.column("n").to_pylist()]


async def same(row: Row) -> dict[str, int]:
    return {"n": row.n}


async def first_last(row: Row) -> tuple[int]:
    """The first of each ten rows ends last."""
    await asyncio.sleep(0.05 if row.n % 10 == 0 else 0)
    return (row.n,)


def test_rows_come_out_in_order() -> None:
    assert numbers(task(first_last)(batches(25, 0, 30, 1))) == list(range(56))


def test_unordered_rows_come_out_as_they_end_and_all_of_them() -> None:
    ended: list[int] = []
    last = asyncio.Event()

    async def first_waits(row: Row) -> tuple[int]:
        if row.n == 0:
            await last.wait()
        ended.append(row.n)
        if len(ended) == 9:
            last.set()
        return (row.n,)

    found = numbers(task(first_waits, ordered=False)(batches(10)))
    assert found[-1] == 0
    assert sorted(found) == list(range(10))


def test_none_leaves_a_row_out() -> None:
    async def odd(row: Row) -> tuple[int] | None:
        return (row.n,) if row.n % 2 else None

    for ordered in (True, False):
        assert sorted(numbers(task(odd, ordered=ordered)(batches(6, 2)))) == [1, 3, 5, 7]
    assert list(task(odd)(batches(1))) == []


@pytest.mark.parametrize("concurrency", [1, 3, 64])
def test_no_more_calls_run_at_once_than_allowed_over_all_batches(concurrency: int) -> None:
    running: set[int] = set()
    most = 0
    full = asyncio.Event()

    async def counted(row: Row) -> tuple[int]:
        nonlocal most
        running.add(row.n)
        most = max(most, len(running))
        if most >= concurrency:
            full.set()
        await asyncio.wait_for(full.wait(), 60)  # nobody leaves before as many are in as may be
        running.discard(row.n)
        return (row.n,)

    assert numbers(task(counted, concurrency=concurrency)(batches(40, 40, 40))) == list(range(120))
    assert most == concurrency


def test_input_is_read_as_results_are_taken() -> None:
    read = 0

    def watched() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for batch in batches(*[5] * 20):
            read += 1
            yield batch

    for taken, _ in enumerate(task(same)(watched())):
        assert read <= taken + 2


def test_a_call_continues_while_the_task_waits_for_input() -> None:
    """The loop has a thread of its own: an answer that comes meanwhile is not taken for a late one."""
    answered = threading.Event()

    async def answer(row: Row) -> tuple[int]:
        await asyncio.sleep(0)
        answered.set()
        return (row.n,)

    def slow() -> Iterator[pa.RecordBatch]:
        first, second = batches(1, 1)
        yield first
        assert answered.wait(30), "the call stood still while input was read"
        yield second

    assert numbers(task(answer, timeout=60)(slow())) == [0, 1]


def test_a_failure_names_the_row_and_cancels_the_rest() -> None:
    cancelled: list[int] = []

    async def fails(row: Row) -> tuple[int]:
        if row.n == 3:
            raise ValueError("no such flight")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(row.n)
            raise
        return (row.n,)

    with pytest.raises(SparkExtError, match="ValueError: no such flight") as failure:
        numbers(task(fails)(batches(20)))
    # What is done about it is decided by what the function raised, not by the class of this error.
    assert type(failure.value) is SparkExtError and isinstance(failure.value.__cause__, ValueError)
    assert "Row(n=3)" in failure.value.operator
    assert sorted(cancelled) == [0, 1, 2, *range(4, 8)]
    assert not [thread for thread in threading.enumerate() if thread.name == "spark-ext-async-map"]


async def hangs(row: Row) -> None:
    await asyncio.Event().wait()


async def cancels(row: Row) -> tuple[int]:
    if row.n == 1:
        raise asyncio.CancelledError
    return (row.n,)


async def says_so(row: Row) -> None:
    raise StateError("full", operator="cache")


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("fn", "kind", "says"),
    [(hangs, TransientError, "longer than"), (cancels, SparkExtError, "cancelled"), (says_so, StateError, "full")],
)
def test_a_call_that_goes_wrong_is_a_failure_and_no_lost_row(
    fn: Callable[[Row], Any], kind: type[SparkExtError], says: str, ordered: bool
) -> None:
    with pytest.raises(kind, match=says):
        numbers(task(fn, ordered=ordered, timeout=0.05 if fn is hangs else None)(batches(3)))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ("n int, name string", {"n": 1}, {"n": 1, "nmae": "a"}), ("n string, name string", ["a", "b"], "ab"),
        ("n int", (1.0,), (1.5,)), ("n decimal(5,2)", (Decimal("1.5"),), (Decimal("1.555"),)),
        ("n decimal(5,2)", (None,), (Decimal("NaN"),)), ("n float", (0.1,), (1e300,)),
        ("n double", (float("nan"),), ("x",)), ("n date", (datetime(2024, 1, 1),), (datetime(2024, 1, 1, 12),)),
        ("s struct<a: int>", ({"a": 1},), ({"a": 1, "b": 2},)), ("a array<int>", ([1, None],), ([2.5],)),
        ("m map<string, decimal(3,1)>", ({"a": Decimal("1.5")},), ({"a": Decimal("1.55")},)),
    ],
)  # fmt: skip
def test_a_result_that_would_be_changed_is_refused(schema: str, good: Any, bad: Any) -> None:
    """Spark's conversion rounds, cuts off, and leaves out what the schema does not have."""
    for result in (good, bad):

        async def fn(_: Row, result: Any = result) -> Any:
            return result

        rows = task(fn, target=columns(schema))(batches(1))
        if result is good:
            assert sum(batch.num_rows for batch in rows) == 1
        else:
            with pytest.raises(DataError, match="a result does not fit the schema"):
                list(rows)


def test_a_consumer_that_stops_early_leaves_no_thread() -> None:
    async def waits(row: Row) -> tuple[int]:
        if row.n >= 5:
            await asyncio.Event().wait()
        return (row.n,)

    out = task(waits)(batches(5, 5))
    assert next(out).num_rows == 5
    out.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name == "spark-ext-async-map"]


def test_no_rows_start_no_loop() -> None:
    assert list(task(same)(batches(0, 0))) == []
    assert list(task(same)(iter(()))) == []


def plain(row: Row) -> tuple[int]:
    return (row.n,)


@pytest.mark.parametrize(
    ("fn", "changes", "says"),
    [
        (plain, {}, "'plain' is not an async function"), (same, {"concurrency": 0}, "concurrency is 0"),
        (same, {"timeout": 0.0}, "timeout is 0"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_anything_runs(
    spark: SparkSession, fn: Callable[[Row], Any], changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        async_map(spark.range(1).toDF("n"), fn, "n bigint", **changes)


@pytest.mark.core
def test_types_survive_the_way_through_python(spark: SparkSession) -> None:
    df = spark.sql(
        "select id as n, if(id > 0, 's', null) as s, timestamp'2024-01-01 12:00:00' as t, array(id) as a, "
        "named_struct('x', id) as st, cast(1.5 as decimal(9, 2)) as d, map('k', id) as m from range(3)"
    )

    async def through(row: Row) -> Row:
        assert isinstance(row.t, datetime)
        return row

    mapped = async_map(df, through, df.schema)
    assert_df_equality(mapped.sort("n"), df.sort("n"))


def test_a_failure_in_a_worker_reaches_the_driver_with_its_row(spark: SparkSession) -> None:
    async def fails(row: Row) -> tuple[int]:
        raise ConnectionError("refused")

    with pytest.raises(PythonException) as failure:
        async_map(spark.range(7, 8).toDF("n"), fails, "n bigint").collect()
    ours = from_text(str(failure.value))
    assert type(ours) is SparkExtError
    assert "ConnectionError: refused" in ours.what
    assert "Row(n=7)" in ours.operator
    found = sx.classify(failure.value)
    assert (found.verdict.type, found.verdict.origin, found.decision) == ("NETWORK", "user", "restart")
    assert found.verdict.place.endswith("in fails")
